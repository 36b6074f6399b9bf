"""Splitting a protobuf message by hand: every bound, and what protobuf's own parser says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from hloserve.core.errors import MalformedBody
from hloserve.wire.protobuf_fields import (
    MAX_MESSAGE_BYTES,
    MAX_RECORDS,
    length_delimited,
    split_fields,
    varint,
)


def test_records_are_collected_by_field_in_order() -> None:
    """Repeated fields keep their order, whatever stands between them."""
    body = b"\x0a\x01a\x12\x01b\x0a\x02cd"

    assert split_fields(body, 3) == [None, [b"a", b"cd"], [b"b"], None]


def test_an_empty_message_has_no_fields() -> None:
    """No bytes are a valid message."""
    assert split_fields(b"", 2) == [None, None, None]


@pytest.mark.parametrize(
    "unknown",
    [
        b"\x08\x96\x01",
        b"\x09" + bytes(8),
        b"\x0d" + bytes(4),
        b"\x22\x03abc",
        b"\x82\x01\x03abc",
        b"\xf8\xff\xff\xff\x0f\x00",
        b"\x08" + b"\xff" * 9 + b"\x01",
    ],
    ids=["varint", "fixed64", "fixed32", "field4", "field16", "field536870911", "int64-minus-1"],
)
def test_fields_that_nobody_asked_for_are_skipped(unknown: bytes) -> None:
    """Unknown numbers and other wire types are passed over; what follows is read."""
    body = unknown + b"\x0a\x01a" + unknown

    assert split_fields(body, 3) == [None, [b"a"], None, None]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"\x0a", 0),
        (b"\x0a\x02a", 0),
        (b"\x0a\x01a\x0a\x05b", 3),
        (b"\x0a\x80", 0),
        (b"\x0a\x80\x80", 0),
        (b"\x0a\xff\xff\xff\xff\x07", 0),
        (b"\x80", 0),
        (b"\x09\x00", 0),
        (b"\x0d\x00", 0),
        (b"\x22\x7f", 0),
        (b"\x08\xff", 0),
    ],
    ids=repr,
)
def test_truncated_messages_say_where(body: bytes, offset: int) -> None:
    """A message that ends inside a field is refused with the field's offset."""
    with pytest.raises(MalformedBody, match="ends inside a field") as caught:
        split_fields(body, 3)

    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "body",
    [b"\x00", b"\x02\x00", b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x80\x80\x80\x80\x20\x00"],
    ids=repr,
)
def test_bytes_that_are_no_field_are_refused(body: bytes) -> None:
    """Field 0, groups, undefined wire types and numbers beyond 2**29 are no message of ours."""
    with pytest.raises(MalformedBody):
        split_fields(body, 3)


@pytest.mark.parametrize("prefix", [b"", b"\x08", b"\x0a"])
def test_numbers_of_more_than_ten_bytes_are_refused(prefix: bytes) -> None:
    """An endless number ends the parse, as a tag, as a value and as a length."""
    with pytest.raises(MalformedBody, match="longer than ten bytes"):
        split_fields(prefix + b"\xff" * 50, 3)


def test_a_flood_of_fields_is_refused() -> None:
    """The work for one message is bounded, however many fields fit into it."""
    assert len(split_fields(b"\x0a\x00" * MAX_RECORDS, 3)[1] or []) == MAX_RECORDS
    with pytest.raises(MalformedBody, match="more than 16384 fields"):
        split_fields(b"\x0a\x00" * (MAX_RECORDS + 1), 3)


def test_messages_over_2_gib_are_refused() -> None:
    """No protobuf implementation reads more, so the message says so at once."""

    class Huge(bytes):
        @override
        def __len__(self) -> int:
            return MAX_MESSAGE_BYTES + 1

    with pytest.raises(MalformedBody, match="end at 2 GiB"):
        split_fields(Huge(), 3)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_every_kind_of_buffer_gives_hashable_small_records(kind: Callable[[bytes], Any]) -> None:
    """Small records are bytes whatever the body is, because they are looked up in caches."""
    small, large = b"\x0a\x01a", length_delimited(2, bytes(20_000))

    for body in (small, small + large):
        record = (split_fields(kind(body), 3)[1] or [])[0]
        assert (type(record), record) == (bytes, b"a")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_large_records_are_read_only_views(kind: Callable[[bytes], Any]) -> None:
    """A tensor is not copied out of the message, and cannot be written through."""
    body = kind(length_delimited(7, bytes(20_000)))

    record = (split_fields(body, 7)[7] or [])[0]

    assert isinstance(record, memoryview)
    assert record.readonly
    assert np.shares_memory(np.frombuffer(record, np.uint8), np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32, "8080808010")],
)
def test_numbers_are_written_as_the_guide_says(value: int, encoded: str) -> None:
    """Seven bits a byte, the lowest first."""
    assert varint(value).hex() == encoded
