"""Model and sample files in which any bytes are wrong."""

import io
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hloserve.core.array_files import load_array
from hloserve.core.errors import ExportProblem
from hloserve.export.torchscript.loading import load_script, quiet

pytestmark = pytest.mark.xla


@cache
def _script() -> bytes:
    file = io.BytesIO()
    with quiet():
        torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), file)
    return file.getvalue()


@cache
def _state_dict() -> bytes:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(3, 2).state_dict(), file)
    return file.getvalue()


@cache
def _old_state_dict() -> bytes:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(3, 2).state_dict(), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


@cache
def _array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(8, dtype=np.float32))
    return file.getvalue()


@cache
def _arrays() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(8), b=np.ones(3))
    return file.getvalue()


flips = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3
)
"""Where in the file, and which bits."""


def _damaged(content: bytes, flips: list[tuple[float, int]], kept: float) -> bytes:
    damaged = bytearray(content)
    for where, bits in flips:
        damaged[int(where * len(damaged))] ^= bits
    return bytes(damaged[: 1 + int(kept * len(damaged))])


@settings(max_examples=300, deadline=None)  # each example writes a file
@given(
    st.sampled_from([_script, _script, _state_dict, _old_state_dict]),
    flips,
    st.just(1.0) | st.floats(0, 1),
)
def test_damaged_torch_file_is_a_finding(
    content: Callable[[], bytes], flips: list[tuple[float, int]], kept: float
) -> None:
    """It is read, where the damage is in nothing that is looked at, or refused in a sentence."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "net.pt"
        path.write_bytes(_damaged(content(), flips, kept))
        try:
            load_script(path, "net")
        except ExportProblem as problem:
            (finding,) = problem.findings
            assert finding.startswith(f"{path}: ")


@settings(max_examples=300, deadline=None)  # each example writes a file
@given(st.sampled_from([_array, _arrays]), flips, st.just(1.0) | st.floats(0, 1))
def test_damaged_array_file_is_no_array(
    content: Callable[[], bytes], flips: list[tuple[float, int]], kept: float
) -> None:
    """It is read, or refused; nothing else is raised."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "a.npy"
        path.write_bytes(_damaged(content(), flips, kept))
        with suppress(ValueError):
            load_array(path)
