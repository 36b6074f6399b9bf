"""Proof that a copy in program order holds what its legacy original holds."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from support.migration_bundles import WEIGHTS, legacy_weights, write_legacy

from hloserve.bundle.active_weights import COPY_FILE
from hloserve.bundle.migration import migrate_bundle
from hloserve.bundle.migration_proof import open_with_library, prove_equal
from hloserve.bundle.weights import WeightsFile
from hloserve.core.dtypes import DTYPES
from hloserve.core.errors import MissingExtra, WeightsProblem

Change: TypeAlias = Callable[[dict[str, Any]], object]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A bundle with a migrated copy."""
    bundle = write_legacy(tmp_path / "model")
    migrate_bundle(bundle, "copy")
    return bundle


def prove(bundle: Path) -> None:
    """Prove the copy of a bundle."""
    with (
        WeightsFile.open(bundle / "weights.safetensors") as original,
        WeightsFile.open(bundle / COPY_FILE) as copy,
    ):
        prove_equal(original, copy)


def rewrite(path: Path, change: Change) -> None:
    """Change the header of a file, and let the bytes of the tensors be."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def set_metadata(**items: str | None) -> Change:
    """A change of the metadata; None removes a key."""

    def change(header: dict[str, Any]) -> None:
        for key, value in items.items():
            header["__metadata__"].pop(key, None)
            if value is not None:
                header["__metadata__"][key] = value

    return change


def set_tensor(name: str, **items: object) -> Change:
    """A change of one tensor's entry."""

    def change(header: dict[str, Any]) -> None:
        header[name] |= items

    return change


def rename_tensor(header: dict[str, Any]) -> None:
    """Swap the places of two tensors of equal size and dtype."""
    header["scalar2"] = header.pop("scalar")
    header["__metadata__"]["argument_order"] = header["__metadata__"]["argument_order"].replace(
        '"scalar"', '"scalar2"'
    )


def test_sound_copy_is_proved(copied: Path) -> None:
    """NaN, -0.0 and the smallest denormal are in it; bytes count, not values."""
    prove(copied)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_metadata(axis_order=None), ["'axis_order' is missing"]),
        (set_metadata(more="x"), ["metadata 'more'"]),
        (set_metadata(argument_order='["w"]'), ["metadata 'argument_order'"]),
        (set_tensor("w", shape=[3, 2]), ["dtype or shape of 'w' differs in the copy"]),
        (set_tensor("w", dtype="U32"), ["dtype or shape of 'w'"]),
        (rename_tensor, ["'scalar', 'scalar2'"]),
    ],
)
def test_header_that_differs_is_found(copied: Path, change: Change, words: list[str]) -> None:
    """Names, dtypes, shapes and metadata."""
    rewrite(copied / COPY_FILE, change)

    with pytest.raises(WeightsProblem) as caught:
        prove(copied)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", [name for name in WEIGHTS if WEIGHTS[name].size])
def test_every_bit_counts(copied: Path, name: str) -> None:
    """The lowest bit of any tensor, the payload of a NaN among them."""
    with WeightsFile.open(copied / COPY_FILE) as copy:
        at = copy.tensors[name].offset
    content = bytearray((copied / COPY_FILE).read_bytes())
    content[at] ^= 1
    (copied / COPY_FILE).write_bytes(bytes(content))

    with pytest.raises(WeightsProblem, match=f"'{name}' differs from what"):
        prove(copied)


def test_original_in_program_order_has_no_copy(copied: Path) -> None:
    """There is nothing that such a copy would be proved to be."""
    with (
        WeightsFile.open(copied / COPY_FILE) as copy,
        pytest.raises(WeightsProblem, match="is in program order already"),
    ):
        prove_equal(copy, copy)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.token)
def test_second_reader_reads_every_dtype(tmp_path: Path, dtype: Any) -> None:
    """Also those that the library's numpy side does not know."""
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype.numpy)
    path = tmp_path / "w"
    path.write_bytes(legacy_weights({"a": array, "none": np.zeros((0, 2), dtype.numpy)}))

    with WeightsFile.open(path) as weights, open_with_library(weights) as second:
        assert (dtype.safetensors, (3, 2)) == second.tensors["a"]
        read = second.read("a")
        assert array.T.tobytes() == read.tobytes()
        assert (0, dtype.itemsize) == (second.read("none").size, read.itemsize)


def test_second_reader_may_refuse_the_file(tmp_path: Path) -> None:
    """What one of two readers does not take proves nothing: here a file that was cut off."""
    path = tmp_path / "w"
    path.write_bytes(legacy_weights({"a": np.zeros(2, np.float32)}))
    with WeightsFile.open(path) as weights:
        path.write_bytes(b"cut off")

        with pytest.raises(WeightsProblem, match="the safetensors library cannot read it"):
            prove_equal(weights, weights)


def test_library_that_is_not_installed_is_a_finding(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "safetensors", None)

    with pytest.raises(MissingExtra, match=r"hloserve\[server\]"):
        prove(copied)
