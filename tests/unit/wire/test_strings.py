"""BYTES tensors: every length is checked before it is believed."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.wire.strings import (
    MAX_STRINGS,
    check_count,
    json_strings,
    strings_as_bytes,
    strings_from_bytes,
    strings_from_values,
)
from hloserve.wire.tensor_bytes import array_from_bytes


def packed(*strings: bytes) -> bytes:
    """Each behind its length."""
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_strings_come_back_exactly(strings: list[bytes]) -> None:
    """Also empty ones, zeros at the end, and bytes that are no text."""
    data = strings_as_bytes(strings_from_values(strings, [len(strings)]))

    array = strings_from_bytes("input 'x'", [len(strings)], len(strings), memoryview(data))

    assert packed(*strings) == data
    assert strings == array.tolist()
    assert not array.flags.writeable


@pytest.mark.parametrize("shape", [(), (1, 1), (0, 4), (2, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    """Rank 0 is one string; a zero extent is none."""
    count = int(np.prod(shape))

    array = array_from_bytes("x", BYTES, shape, packed(*[b"a"] * count))

    assert shape == array.shape
    assert [b"a"] * count == array.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("count", "data", "says"),
    [
        (1, b"\xff\xff\xff\xffabc", "string 0 needs 4294967295 bytes, 3 are left"),
        (2, packed(b"abcd", b"")[:-1], "the length of string 1 needs 4 bytes, 3 are left"),
        (2, packed(b"a") + b"\5\0\0\0abc", "string 1 needs 5 bytes, 3 are left"),
        (1, packed(b"a", b""), "4 bytes are left after the last of 1 strings"),
        (0, b"a", "1 bytes are left after the last of 0 strings"),
    ],
)
def test_lengths_that_lie_are_refused_with_their_place(count: int, data: bytes, says: str) -> None:
    """The message says which element, what it needs and what is there."""
    with pytest.raises(BadRequest, match=f"input 'x': {says}"):
        strings_from_bytes("input 'x'", [count], count, data)


def test_more_elements_than_lengths_fit_are_refused_first() -> None:
    """Nothing is made of a shape that the bytes cannot hold."""
    with pytest.raises(TensorMismatch, match="for 3 strings is 8, expected at least 12"):
        strings_from_bytes("input 'x'", [3], 3, bytes(8))


def test_a_message_has_a_bounded_number_of_strings() -> None:
    """Each costs the loop as much as it likes to be long."""
    check_count("input 'x'", MAX_STRINGS)
    with pytest.raises(BadRequest, match="input 'x': with it the message announces"):
        strings_from_bytes("input 'x'", [MAX_STRINGS + 1], MAX_STRINGS + 1, b"")


def test_json_carries_text_alone() -> None:
    """What is not UTF-8 is named, with the way out."""
    good = strings_from_values(["Bär".encode(), b"\0"], [2])
    bad = strings_from_values([b"a", b"\xffb"], [2])

    assert ["Bär", "\0"] == json_strings("output 'y'", good)
    with pytest.raises(BadRequest, match=r"output 'y': element 1 is not UTF-8 .*binary_data"):
        json_strings("output 'y'", bad)


def test_other_objects_are_no_strings() -> None:
    """An array of objects may hold anything."""
    with pytest.raises(BadRequest, match="element 1 is of type int"):
        strings_as_bytes(np.array([b"a", 1], object))
