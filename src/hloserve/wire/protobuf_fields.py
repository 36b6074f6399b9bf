"""The outermost fields of a protobuf message, split and joined without a copy of large ones.

What lives here: the wire format's records. What does not: what the fields mean
(`hloserve.wire.v2_protobuf`). protobuf's own parser would do, but it copies every tensor twice and
makes an object per field; messages inside these records do go through it. Stateless; any thread.

Rules.
1. Fields that nobody asked for are skipped, whatever their wire type.
2. Work and memory are bounded by the body: at most `MAX_RECORDS` records, nothing is allocated
   from an announced length before the bytes are known to be there.

Source: protobuf encoding guide, "Message Structure".
"""

from typing import NoReturn, TypeAlias

from hloserve.core.errors import MalformedBody
from hloserve.wire.tensor_bytes import ByteString

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MAX_RECORDS",
    "Records",
    "check_fields",
    "length_delimited",
    "split_fields",
    "varint",
]

MAX_MESSAGE_BYTES = 2**31 - 1
"""Every protobuf implementation ends here, so a longer message reaches nobody."""

MAX_RECORDS = 16384
"""More than any real message has; reading as many tensors takes some 50 ms of the event loop."""

Records: TypeAlias = list[ByteString]
"""What one field holds, in the order of the message."""

_VIEW_FROM_BYTES = 16384
"""A record of this size is viewed in place; copying a smaller one costs less than a view."""

_RECORDS = range(MAX_RECORDS)
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_WANTED_TAGS = [
    frozenset(number << 3 | _LENGTH_DELIMITED for number in range(1, highest + 1))
    for highest in range(16)
]
_MAX_SHIFT = 63  # ten bytes of seven bits are the longest varint


def split_fields(  # noqa: C901  # one loop on the hot path
    body: ByteString, highest: int
) -> list[Records | None]:
    """Collect the length-delimited fields of a message.

    Args:
        body: the message. Large records are views of it, so it must not change.
        highest: the highest field number to keep, at most 15.

    Returns:
        The records of field `n` at index `n`, in the order of the message, or None when there are
        none. Small ones are bytes.

    Raises:
        MalformedBody: the body ends inside a record, or is no protobuf message at all.
    """
    fields: list[Records | None] = [None] * (highest + 1)
    wanted = _WANTED_TAGS[highest]
    end = len(body)
    if end > MAX_MESSAGE_BYTES:
        raise MalformedBody(f"message of {end} bytes; protobuf messages end at 2 GiB")
    if is_small := end < _VIEW_FROM_BYTES:
        body = bytes(body)
    start = at = 0
    try:
        for _ in _RECORDS:
            if at >= end:
                break
            start = at
            tag = body[at]
            if tag not in wanted:
                at = _skip(body, at)
                continue
            size = body[at + 1]
            if size < 0x80:
                at += 2
            elif (high := body[at + 2]) < 0x80:  # nearly always: two bytes count up to 16 KiB
                size = size & 0x7F | high << 7
                at += 3
            else:
                size, at = _read_varint(body, at + 1)
            to = at + size
            record = body[at:to] if is_small else _cut(body, at, to)
            records = fields[tag >> 3]
            if records is None:
                fields[tag >> 3] = [record]
            else:
                records.append(record)
            at = to
    except IndexError:
        at = end + 1
    if at != end:
        _fail(at, end, start)
    return fields


def _fail(at: int, end: int, start: int) -> NoReturn:
    if at < end:
        raise MalformedBody(f"the message has more than {MAX_RECORDS} fields", at)
    raise MalformedBody("the protobuf message ends inside a field", start)


def _cut(body: ByteString, at: int, to: int) -> ByteString:
    """A record of a large body, which may be of any type: in place when it is large too."""
    record = memoryview(body)[at:to]
    return record.toreadonly() if to - at >= _VIEW_FROM_BYTES else bytes(record)


def _read_varint(body: ByteString, at: int) -> tuple[int, int]:
    """The value at `at` and the place behind it; IndexError when the body ends before."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
        if shift > _MAX_SHIFT:
            raise MalformedBody("a protobuf number is longer than ten bytes", at)


def _skip(body: ByteString, at: int) -> int:
    """The place behind a record that nobody asked for."""
    start = at
    tag, at = _read_varint(body, at)
    wire_type = tag & 7
    if not 0 < tag >> 3 < 2**29:
        raise MalformedBody(f"{tag >> 3} is no protobuf field number", start)
    if wire_type == _VARINT:
        return _read_varint(body, at)[1]
    if wire_type == _LENGTH_DELIMITED:
        size, at = _read_varint(body, at)
        return at + size
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    raise MalformedBody(f"protobuf wire type {wire_type} is not read here", start)


def check_fields(body: ByteString, most: int, what: str) -> None:
    """Refuse a message of more fields than `most`, whatever they are; its own parser reads it next.

    Args:
        body: the message.
        most: how many fields it may have.
        what: the message's name, for the message.

    Raises:
        MalformedBody: there are more, or a field cannot be read.
    """
    at, end, count = 0, len(body), 0
    try:
        while at < end:
            if count == most:
                raise MalformedBody(f"{what} come in more than {most} pieces; send them raw", at)
            count += 1
            at = _skip(body, at)
    except IndexError:
        at = end + 1
    if at > end:
        raise MalformedBody(f"{what} end inside a field", end)


def varint(value: int) -> bytes:
    """Encode a non-negative integer."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def length_delimited(number: int, data: bytes) -> bytes:
    """Encode one small field with its tag and length; large data is better joined once."""
    size = len(data)
    if size < 0x80 and number < 16:
        return bytes((number << 3 | _LENGTH_DELIMITED, size)) + data
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(size) + data
