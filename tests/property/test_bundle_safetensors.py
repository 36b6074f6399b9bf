"""Hostile weights files, and agreement with the reference library."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save
from support import bundle_examples as examples
from support.bundle_examples import safetensors_bytes
from support.bundle_strategies import arrays, mutations, names, weights

from hloserve.bundle.safetensors import parse_header
from hloserve.bundle.weights import WeightsFile
from hloserve.bundle.weights_writing import Layout, plan_weights
from hloserve.core.dtypes import DTYPES
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array


@contextmanager
def file_of(content: bytes) -> Iterator[Path]:
    """A file in memory, under a path of its own."""
    fd = os.memfd_create("weights")
    try:
        os.write(fd, content)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def read(content: bytes) -> dict[str, Array]:
    """All arguments of a weights file."""
    result = {}
    with file_of(content) as path, WeightsFile.open(path) as file:
        assert file.nbytes == sum(tensor.nbytes for tensor in file.arguments) <= len(content)
        for tensor in file.arguments:
            array = np.empty(tensor.shape, tensor.dtype.numpy)
            file.read_into(tensor, array.reshape(-1).view(np.uint8))
            result[tensor.name] = array
    return result


def write(tensors: dict[str, Array], layout: Layout) -> bytes:
    """The bytes of a weights file."""
    findings: list[str] = []
    plan = plan_weights(tensors, layout, findings)
    assert findings == []
    return b"".join(bytes(chunk) for chunk in plan.chunks())


def assert_same(expected: dict[str, Array], got: dict[str, Array]) -> None:
    """The same names in the same order, and the same bits."""
    assert list(expected) == list(got)
    for name, array in expected.items():
        assert (array.dtype, array.shape) == (got[name].dtype, got[name].shape)
        assert array.tobytes() == got[name].tobytes()


@given(weights, st.sampled_from(["xla", "legacy"]))
def test_weights_come_back_bit_for_bit(tensors: dict[str, Array], layout: Layout) -> None:
    """Either layout, any dtype, any memory order, empty arrays and scalars."""
    assert_same(tensors, read(write(tensors, layout)))


@given(weights)
def test_reference_library_agrees_with_our_writer(tensors: dict[str, Array]) -> None:
    """What we write, the library of the format's authors reads, where it knows the type."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(write(tensors, "xla"))
        file.flush()
        with safe_open(file.name, framework="numpy") as opened:
            assert set(tensors) == set(opened.keys())
            for name, array in tensors.items():
                assert list(array.shape) == opened.get_slice(name).get_shape()
                if array.dtype.isbuiltin == 1:  # 2: registered by ml_dtypes
                    assert array.tobytes() == opened.get_tensor(name).tobytes()


@given(st.dictionaries(names.filter(lambda name: name != "__metadata__"), arrays(), min_size=1))
def test_files_of_the_reference_library_are_read(tensors: dict[str, Array]) -> None:
    """What that library writes, we read, whatever order it puts the tensors in."""
    metadata = {"argument_order": json.dumps(list(tensors)), "axis_order": "xla"}
    # The library writes the memory of an array that is not contiguous as if it were.
    content = save({name: array.copy("C") for name, array in tensors.items()}, metadata)

    assert_same(tensors, read(content))


SEEDS = [
    examples.xla_weights(),
    examples.legacy_weights(),
    safetensors_bytes("{}"),
    write(
        {"a": np.ones((2, 3), np.int16), "b": np.zeros((0, 2), np.int64), "c": np.ones((), bool)},
        "xla",
    ),
]


@given(st.sampled_from(SEEDS).flatmap(mutations))
def test_damaged_file_is_read_or_refused_with_our_error(content: bytes) -> None:
    """A few changed bytes give other weights or a `WeightsProblem`, never anything else."""
    try:
        read(content)
    except WeightsProblem as problem:
        str(problem).encode()


@given(st.binary(max_size=64) | st.binary(max_size=64).map(safetensors_bytes))
def test_any_bytes_are_read_or_refused_with_our_error(content: bytes) -> None:
    """Most bytes are no weights."""
    try:
        assert {} == read(content)
    except WeightsProblem as problem:
        str(problem).encode()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_tensors = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([dtype.safetensors for dtype in DTYPES]) | _json,
        "shape": st.lists(st.integers(-1, 4) | st.just(2**62), max_size=3) | _json,
        "data_offsets": st.tuples(st.integers(-1, 40), st.integers(0, 40)).map(list) | _json,
    }
)


@given(
    st.dictionaries(names | st.just("__metadata__"), _tensors | _json, max_size=3),
    st.integers(0, 40),
)
def test_accepted_headers_cover_the_data_exactly(header: dict[str, object], size: int) -> None:
    """Whatever the JSON says: refused, or every byte belongs to exactly one tensor."""
    try:
        _, tensors = parse_header(json.dumps(header).encode(), size, "w")
    except WeightsProblem:
        return

    owners = [0] * size
    for tensor in tensors.values():
        assert tensor.end - tensor.begin == int(np.prod(tensor.shape, dtype=object)) * (
            tensor.dtype.itemsize
        )
        for byte in range(tensor.begin, tensor.end):
            owners[byte] += 1
    assert [1] * size == owners
