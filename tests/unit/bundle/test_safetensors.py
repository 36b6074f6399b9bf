"""The safetensors header: what is accepted, what is refused, what is written."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from support.bundle_examples import safetensors_bytes

from hloserve.bundle.safetensors import (
    MAX_HEADER_BYTES,
    Header,
    TensorEntry,
    encode_header,
    parse_header,
    read_header,
)
from hloserve.core.dtypes import DTYPES, F32, by_safetensors
from hloserve.core.errors import WeightsProblem


@pytest.fixture
def read(tmp_path: Path) -> "Read":
    """Reads the header of bytes as of a file."""
    return Read(tmp_path / "w")


class Read:
    """Writes a file and reads its header."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, content: bytes) -> Header:
        self.path.write_bytes(content)
        return self.open()

    def open(self) -> Header:
        """Read the header of the file as it is."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return read_header(fd, "w")
        finally:
            os.close(fd)


def tensor(
    dtype: object = "F32", shape: object = (2,), begin: object = 0, end: object = 8
) -> dict[str, object]:
    """A tensor's entry in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_header_is_read(read: Read) -> None:
    """Metadata, tensors in the header's order, and where their bytes begin."""
    header = {"__metadata__": {"k": "v"}, "b": tensor(begin=8, end=16), "a": tensor()}

    result = read(safetensors_bytes(header, bytes(16)))

    assert {"k": "v"} == result.metadata
    assert TensorEntry("a", F32, (2,), 0, 8) == result.tensors["a"]
    assert ["b", "a"] == list(result.tensors)
    assert 8 + len(json.dumps(header, separators=(",", ":"))) == result.data_start


@pytest.mark.parametrize("header", ["{}", "{}      ", '{"__metadata__":{}}', "{\n}"])
def test_file_without_tensors_is_read(read: Read, header: str) -> None:
    """Zero tensors are legal, and so is padding."""
    assert {} == read(safetensors_bytes(header)).tensors


def test_empty_tensors_and_scalars_are_read(read: Read) -> None:
    """A tensor of no bytes sits anywhere between two others."""
    header = {
        "z": tensor(shape=[0, 7], begin=4, end=4),
        "s": tensor(shape=[], begin=0, end=4),
        "y": tensor(shape=[2**62, 0], begin=0, end=0),
    }

    assert (0, 7) == read(safetensors_bytes(header, bytes(4))).tensors["z"].shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read(read: Read, dtype: object) -> None:
    """All fifteen element types have a name and a width in the file."""
    known = {d.safetensors: d for d in DTYPES}
    name = next(name for name, d in known.items() if d is dtype)
    end = 3 * known[name].itemsize

    result = read(safetensors_bytes({"x": tensor(name, [3], 0, end)}, bytes(end)))

    assert dtype is result.tensors["x"].dtype is by_safetensors(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["has 0 bytes"]),
        (b"1234567", ["has 7 bytes"]),
        (struct.pack("<Q", 3) + b"{}", ["claims 3 bytes", "has only 10", "cut off"]),
        (struct.pack("<Q", MAX_HEADER_BYTES) + b"{}", ["claims 100000000 bytes"]),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", ["100000001", "limit is 100000000"]),
        (b"\xff" * 64, ["18446744073709551615", "limit"]),
        (b'{"a": 1}' * 4, ["limit"]),
        (struct.pack("<Q", 0), ["does not begin with '{'"]),
        (safetensors_bytes("[]"), ["does not begin with '{'"]),
        (safetensors_bytes(" {}"), ["does not begin with '{'"]),
        (safetensors_bytes("{"), ["not JSON", "character 1"]),
        (safetensors_bytes("{}{}"), ["not JSON: Extra data"]),
        (safetensors_bytes(b'{"\xff":1}'), ["not UTF-8 (at byte 2)"]),
        (safetensors_bytes('{"a":' * 100_000), ["header: "]),
        (safetensors_bytes('{"a":' + "[" * 100_000), ["header: "]),
        (safetensors_bytes('{"a":' + "9" * 5000 + "}"), ["header: "]),
        (safetensors_bytes('{"a":NaN}'), ["number NaN is not an integer"]),
        (safetensors_bytes('{"a":1e3}'), ["number 1e3 is not an integer"]),
        (safetensors_bytes('{"a":1,"a":2}'), ["'a' appears twice"]),
        (safetensors_bytes('{"a":{"dtype":"F32","dtype":"F64"}}'), ["'dtype' appears twice"]),
        (safetensors_bytes({"__metadata__": 3}), ["__metadata__", "3 (int)"]),
        (safetensors_bytes({"__metadata__": {"a": 1}}), ["values of 'a' are not strings"]),
        (safetensors_bytes({"x": 3}), ["tensor 'x'", "3 (int)"]),
        (safetensors_bytes({"x": {"dtype": "F32"}}), ["tensor 'x'", "'dtype'", "data_offsets"]),
        (safetensors_bytes({"x": tensor() | {"scale": 1}}, bytes(8)), ["'scale'"]),
        (safetensors_bytes('{"\\ud800":' + json.dumps(tensor()) + "}", bytes(8)), ["surrogate"]),
        (safetensors_bytes({"x": tensor("C64")}, bytes(8)), ["dtype 'C64' (str)", "F32"]),
        (safetensors_bytes({"x": tensor(3)}, bytes(8)), ["dtype 3 (int)"]),
        (safetensors_bytes({"x": tensor(shape=3)}, bytes(8)), ["shape must be a list"]),
        (safetensors_bytes({"x": tensor(shape=[-2])}, bytes(8)), ["shape", "[-2] (list)"]),
        (safetensors_bytes({"x": tensor(shape=[True, 2])}, bytes(8)), ["shape", "[True, 2]"]),
        (safetensors_bytes({"x": tensor(shape=["2"])}, bytes(8)), ["shape", "['2']"]),
        (safetensors_bytes({"x": tensor(shape=[2**63])}, bytes(8)), ["shape"]),
        (safetensors_bytes({"x": tensor(shape=[1] * 33, end=4)}, bytes(4)), ["33 axes"]),
        (safetensors_bytes({"x": tensor(end=True)}, bytes(8)), ["data_offsets", "True"]),
        (safetensors_bytes({"x": tensor(begin=-8, end=0)}, bytes(8)), ["data_offsets"]),
        (safetensors_bytes({"x": tensor(begin=8, end=0)}, bytes(8)), ["[begin, end]"]),
        (safetensors_bytes({"x": tensor() | {"data_offsets": [0]}}, bytes(8)), ["[begin, end]"]),
        (safetensors_bytes({"x": tensor(end=12)}, bytes(12)), ["span 12 bytes", "takes 8"]),
        (
            safetensors_bytes({"x": tensor(shape=[2**32, 2**32], end=0)}),
            ["span 0 bytes", "takes 73786976294838206464"],
        ),
        (
            safetensors_bytes({"x": tensor(shape=[2**62] * 32, end=0)}),
            ["takes an integer of 1987 bits"],
        ),
        (safetensors_bytes({"x": tensor()}, bytes(7)), ["take 8 bytes, but 7 follow", "cut off"]),
        (safetensors_bytes({"x": tensor()}, bytes(9)), ["take 8 bytes, but 9", "belong to none"]),
        (safetensors_bytes("{}", b"x"), ["take 0 bytes, but 1"]),
        (
            safetensors_bytes({"x": tensor(), "y": tensor(begin=4, end=12)}, bytes(12)),
            ["'y' overlaps tensor 'x'", "begins at 4, expected 8"],
        ),
        (
            safetensors_bytes({"x": tensor(), "y": tensor()}, bytes(8)),
            ["overlaps"],
        ),
        (
            safetensors_bytes({"x": tensor(), "y": tensor(begin=12, end=20)}, bytes(20)),
            ["'y' leaves a gap after tensor 'x'", "begins at 12, expected 8"],
        ),
        (
            safetensors_bytes({"x": tensor(begin=4, end=12)}, bytes(12)),
            ["'x' leaves a gap after the header"],
        ),
        (
            safetensors_bytes({"x": tensor(begin=2**62, end=2**62 + 8)}, bytes(8)),
            ["leaves a gap"],
        ),
        (
            safetensors_bytes({"x": tensor(), "z": tensor(shape=[0], begin=4, end=4)}, bytes(8)),
            ["'z' overlaps tensor 'x'"],
        ),
    ],
)
def test_fault_of_a_file_says_what_is_wrong(read: Read, content: bytes, words: list[str]) -> None:
    """Whatever the bytes are, the answer is one of our errors, and nothing large is allocated."""
    with pytest.raises(WeightsProblem) as caught:
        read(content)

    for word in words:
        assert word in str(caught.value)


def test_all_faulty_tensors_are_found_at_once(read: Read) -> None:
    """One finding per fault, not the first one only."""
    header = {"x": tensor("C64"), "y": tensor(shape=3), "__metadata__": []}

    with pytest.raises(WeightsProblem) as caught:
        read(safetensors_bytes(header, bytes(8)))

    assert len(caught.value.findings) == 3


def test_header_that_was_cut_off_while_it_was_read(tmp_path: Path) -> None:
    """A sparse file may claim a header that is there; zeros are no JSON."""
    read = Read(tmp_path / "w")
    read.path.write_bytes(struct.pack("<Q", 1000))
    os.truncate(read.path, 1 << 40)

    with pytest.raises(WeightsProblem, match="does not begin"):
        read.open()


def test_unreadable_descriptor_is_a_weights_problem() -> None:
    """An error of the disk is translated at this door."""
    with pytest.raises(WeightsProblem, match="cannot be read"):
        read_header(-1, "w")


@pytest.mark.parametrize("metadata", [{}, {"k": "v", "argument_order": '["ä"]'}])
def test_encoded_header_is_parsed_back(metadata: Mapping[str, str]) -> None:
    """What we write we read, padded to eight bytes."""
    tensors = [TensorEntry("ä", F32, (2,), 0, 8), TensorEntry("b", F32, (), 8, 12)]

    content = encode_header(tensors, metadata)

    assert len(content) % 8 == 0
    assert struct.unpack("<Q", content[:8])[0] == len(content) - 8
    assert (metadata, {t.name: t for t in tensors}) == parse_header(content[8:], 12, "w")


def test_header_is_encoded_as_the_sibling_server_writes_it() -> None:
    """Keys in the usual order, nothing but the JSON."""
    content = encode_header([TensorEntry("W", F32, (2, 3), 0, 24)], {"axis_order": "xla"})

    assert (
        b'{"__metadata__":{"axis_order":"xla"},'
        b'"W":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    ) == content[8:].rstrip(b" ")


def test_files_of_the_reference_writer_are_read(read: Read) -> None:
    """The library of the format's authors writes what we read."""
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True])}

    header = read(save(arrays, metadata={"k": "v"}))

    assert {"a": (2, 3), "b": (1,)} == {name: t.shape for name, t in header.tensors.items()}
    assert {"k": "v"} == header.metadata
