"""Arrays in files."""

from pathlib import Path

import numpy as np
import pytest

from hloserve.core.array_files import load_array


def test_array_is_read(tmp_path: Path) -> None:
    """What numpy.save wrote comes back."""
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))

    assert load_array(tmp_path / "a.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_other_files_are_explained_without_unsafe_advice(tmp_path: Path) -> None:
    """Pickles, archives, text and cut files are named; nobody is told to run a pickle."""
    np.save(tmp_path / "objects.npy", np.array([{}, None]), allow_pickle=True)
    np.savez(tmp_path / "several.npz", a=np.ones(2), b=np.ones(2))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_bytes(b"")

    for name, told in (
        ("objects.npy", "Python objects"),
        ("text.npy", "is not an array that numpy.save wrote"),
        ("empty.npy", "cut off"),
        ("several.npz", "holds several arrays; save one"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            load_array(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        load_array(tmp_path / "absent.npy")
