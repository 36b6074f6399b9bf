"""BYTES tensors on the wire: strings of any length, each behind its length.

What lives here: raw bytes to object arrays of `bytes` and back, JSON strings, and how many strings
a message may hold. What does not: the other datatypes (`hloserve.wire.tensor_bytes`), messages (the
codecs). Stateless; any thread.

Rules.
1. In raw contents and binary tensors an element is its length, 4 bytes little-endian, and its
   bytes; nothing is between them and nothing follows on the last one.
2. A length is believed only as far as there are bytes; the count of strings is bounded per message
   before the first one is made.
3. In JSON a string is text. Its UTF-8 is the element; an element that is no UTF-8 cannot be written
   so, and is asked for as binary tensor.

Source: V2 protocol, "Tensor Data" of BYTES; binary tensor data extension.
"""

import struct
from collections.abc import Sequence

import numpy as np

from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.tensors import Array

__all__ = [
    "MAX_STRINGS",
    "check_count",
    "json_strings",
    "strings_as_bytes",
    "strings_from_bytes",
    "strings_from_values",
]

MAX_STRINGS = 2**18
"""Of one message; reading as many takes some 80 ms of the event loop."""

_LENGTH = struct.Struct("<I")


def check_count(tensor: str, strings: int) -> None:
    """Refuse a message with more strings than one may have.

    Args:
        tensor: the one that was announced last, with its role.
        strings: elements of all BYTES tensors up to it.
    """
    if strings > MAX_STRINGS:
        raise BadRequest(
            f"{tensor}: with it the message announces {strings} strings; at most {MAX_STRINGS} are"
            " possible: send fewer rows at a time"
        )


def strings_from_bytes(
    tensor: str, shape: Sequence[int], elements: int, data: bytes | bytearray | memoryview
) -> Array:
    """Read a BYTES tensor of raw contents.

    Args:
        tensor: its name with the role, ``input 'x'``.
        shape: outermost extent first.
        elements: the product of `shape`.
        data: exactly the tensor's bytes.

    Returns:
        A read-only object array; its elements are copies.

    Raises:
        BadRequest: it is larger than `MAX_STRINGS`, or an element reaches over the end.
        TensorMismatch: `data` has bytes for fewer or more elements.
    """
    check_count(tensor, elements)
    size = len(data)
    if elements * _LENGTH.size > size:
        needed = f"at least {elements * _LENGTH.size}"
        raise TensorMismatch(tensor, f"byte length for {elements} strings", needed, size)
    body = bytes(data)
    length_at = _LENGTH.unpack_from
    strings: list[bytes] = []
    at = 0
    try:
        for _ in range(elements):
            (length,) = length_at(body, at)
            start = at + 4
            at = start + length
            strings.append(body[start:at])
        if at > size:
            raise struct.error
    except struct.error:
        raise _cut_short(tensor, body, elements) from None
    if at != size:
        raise BadRequest(
            f"{tensor}: {size - at} bytes are left after the last of {elements} strings; each is"
            " its length in 4 bytes, little-endian, and its bytes"
        )
    return strings_from_values(strings, shape)


def _cut_short(tensor: str, body: bytes, elements: int) -> BadRequest:
    """Say which element reaches over the end."""
    at = index = length = 0
    while (left := len(body) - at - 4) >= 0 and index < elements:
        (length,) = _LENGTH.unpack_from(body, at)
        if length > left:
            break
        at, index = at + 4 + length, index + 1
    if left < 0:
        text = f"the length of string {index} needs 4 bytes, {left + 4} are left"
    else:
        text = f"string {index} needs {length} bytes, {left} are left"
    return BadRequest(
        f"{tensor}: {text}; each is its length in 4 bytes, little-endian, and its bytes"
    )


def strings_from_values(values: Sequence[bytes], shape: Sequence[int]) -> Array:
    """Make a read-only array of strings; their number is that of the shape."""
    array = np.empty(len(values), object)
    array[:] = values
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def strings_as_bytes(array: Array, tensor: str = "a BYTES tensor") -> bytes:
    """Write a BYTES tensor as raw contents.

    Args:
        array: object array of `bytes`.
        tensor: its name with the role, for the messages.

    Raises:
        BadRequest: an element is no `bytes`, or has no length of 4 bytes.
    """
    parts: list[bytes] = []
    for index, value in enumerate(array.reshape(-1).tolist()):
        if type(value) is not bytes:
            kind = type(value).__name__
            raise BadRequest(f"{tensor}: element {index} is of type {kind}; it must be bytes")
        if len(value) >= 2**32:
            raise BadRequest(f"{tensor}: element {index} has 4 GiB or more")
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)
    return b"".join(parts)


def json_strings(tensor: str, array: Array) -> list[str]:
    """The elements of a BYTES tensor as text, flat and row-major.

    Args:
        tensor: its name with the role, ``output 'y'``.
        array: object array of `bytes`.

    Raises:
        BadRequest: an element is not UTF-8.
    """
    texts: list[str] = []
    try:
        texts.extend(value.decode() for value in array.reshape(-1).tolist())
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{tensor}: element {len(texts)} is not UTF-8 (at byte {error.start}), which JSON"
            " cannot carry; ask for this output with binary_data"
        ) from None
    return texts
