"""Messages in a byte stream."""

import gzip
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from typing_extensions import override

from hloserve.core.errors import BodyTooLarge, MalformedBody, Overloaded
from hloserve.core.reused_memory import ReusedMemory
from hloserve.core.tensors import Array
from hloserve.wire.grpc_framing import (
    VIEW_FROM_BYTES,
    MessageReader,
    frame_message,
    prefix_of,
    read_whole,
)


def test_a_small_whole_message_is_bytes() -> None:
    """A small message comes out as bytes."""
    assert read_whole(frame_message(b"abc"), 10) == b"abc"


def test_a_large_whole_message_is_not_copied() -> None:
    """A large message is a view of the event's own bytes."""
    data = frame_message(bytes(VIEW_FROM_BYTES))

    message = read_whole(data, VIEW_FROM_BYTES)

    assert isinstance(message, memoryview)
    assert message.obj is data
    assert len(message) == VIEW_FROM_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\0",
        prefix_of(3) + b"ab",
        prefix_of(3) + b"abcd",
        prefix_of(11) + bytes(11),
        b"\1" + prefix_of(3)[1:] + b"abc",
    ],
    ids=["empty", "half a prefix", "too short", "too long", "over the cap", "compressed"],
)
def test_what_is_not_one_whole_message_is_left_to_the_reader(data: bytes) -> None:
    """The short path takes nothing that needs a second look."""
    assert read_whole(data, 10) is None


def test_reader_gives_small_messages_as_bytes_however_they_come() -> None:
    """Whole, in pieces, and behind another; large ones are not copied once more."""
    reader = MessageReader(1 << 20)
    small, large = frame_message(b"abc"), frame_message(bytes(VIEW_FROM_BYTES))

    whole = reader.feed(small)
    pieces = [*reader.feed(small[:6]), *reader.feed(small[6:])]
    behind = reader.feed(large + small)

    assert [bytes] * 3 == [type(message) for message in (*whole, *pieces, behind[1])]
    assert [b"abc"] * 3 == [*whole, *pieces, behind[1]]
    assert isinstance(reader.feed(large)[0], memoryview)


def test_several_messages_may_come_at_once() -> None:
    """A reader gives every message that is complete and keeps the rest."""
    reader = MessageReader(10)

    messages = reader.feed(frame_message(b"a") + frame_message(b"") + frame_message(b"bc")[:6])

    assert messages == [b"a", b""]
    assert (reader.is_between_messages, reader.buffered_bytes) == (False, 1)
    assert reader.feed(b"c") == [b"bc"]
    assert (reader.is_between_messages, reader.buffered_bytes) == (True, 0)


def test_the_cap_is_enforced_at_the_prefix() -> None:
    """A message over the cap is refused before any of it has come, naming the setting."""
    reader = MessageReader(10, setting="some.setting")

    with pytest.raises(BodyTooLarge) as caught:
        reader.feed(prefix_of(11))

    assert (caught.value.limit_bytes, caught.value.got_bytes) == (10, 11)
    assert caught.value.setting == "some.setting"
    assert MessageReader(10).feed(prefix_of(10) + bytes(10)) == [bytes(10)]


def test_an_unknown_flag_is_malformed() -> None:
    """The compressed flag is 0 or 1."""
    with pytest.raises(MalformedBody, match="flag"):
        MessageReader(10).feed(b"\2\0\0\0\0")


def test_a_compressed_message_needs_an_encoding() -> None:
    """Without grpc-encoding nobody knows how to read it."""
    with pytest.raises(MalformedBody, match="grpc-encoding"):
        MessageReader(10).feed(b"\1\0\0\0\0")


def _compressed(message: bytes, compress: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    data = compress(message)
    return b"\1" + prefix_of(len(data))[1:] + data


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_gzip_and_deflate_are_decompressed(compress: Callable[[bytes], bytes]) -> None:
    """Compressed and plain messages may alternate on a stream that declares a coding."""
    reader = MessageReader(100, has_coding=True)
    packed = _compressed(b"a" * 100, compress)

    assert [b"a" * 100, b"b"] == reader.feed(packed + frame_message(b"b"))


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_what_unpacks_to_whole_pieces_is_complete(size: int) -> None:
    """It comes out a mebibyte at a time, whatever is left inside when its input has ended."""
    (message,) = MessageReader(2**23, has_coding=True).feed(_compressed(bytes(size)))

    assert bytes(size) == bytes(message)


def test_a_gzip_bomb_stops_at_the_cap() -> None:
    """Decompression ends when the cap is reached."""
    with pytest.raises(BodyTooLarge) as caught:
        MessageReader(100_000, has_coding=True).feed(_compressed(bytes(50_000_000)))

    assert caught.value.got_bytes is None


@pytest.mark.parametrize("fault", ["garbage", "cut", "trailing"])
def test_broken_gzip_is_malformed(fault: str) -> None:
    """Garbage, an early end and bytes after the end are refused."""
    data = gzip.compress(b"some message that is long enough")
    body = {"garbage": b"\x00" * 30, "cut": data[:-9], "trailing": data + b"x"}[fault]

    with pytest.raises(MalformedBody):
        MessageReader(1000, has_coding=True).feed(b"\1" + prefix_of(len(body))[1:] + body)


LONG = 3 * 2**20
PIECE = 300_000


def feed_in_pieces(reader: MessageReader, data: bytes) -> list[object]:
    """Feed bytes as a socket would give them."""
    return [
        message
        for start in range(0, len(data), PIECE)
        for message in reader.feed(data[start : start + PIECE])
    ]


def address_of(message: object) -> int:
    """Where a message lies."""
    assert isinstance(message, memoryview)
    address: int = np.frombuffer(message, np.uint8).ctypes.data
    return address


def test_long_messages_are_assembled_in_memory_that_was_used_before() -> None:
    """A message takes the place of one that nobody has any more, and of no other."""
    memory = ReusedMemory()
    reader = MessageReader(2 * LONG, memory=memory)
    bodies = [bytes([number]) * LONG for number in (1, 2, 3)]

    first = feed_in_pieces(reader, frame_message(bodies[0]))
    second = feed_in_pieces(reader, frame_message(bodies[1]))

    assert [bodies[0]] == first
    assert [bodies[1]] == second
    assert isinstance(second[0], memoryview)
    assert second[0].readonly
    address = address_of(first.pop())
    third = feed_in_pieces(MessageReader(2 * LONG, memory=memory), frame_message(bodies[2]))
    assert [bodies[2]] == third
    assert [bodies[1]] == second
    assert address == address_of(third[0])


def test_announced_length_takes_no_memory_before_a_mebibyte_has_come() -> None:
    """What a prefix says costs nothing; what has come is told while it is incomplete."""
    memory = ReusedMemory()
    reader = MessageReader(LONG, memory=memory)
    data = frame_message(bytes(LONG))

    reader.feed(data[: 2**20])

    assert 0 == memory.kept_bytes
    reader.feed(data[2**20 : 2**20 + 100])
    assert memory.kept_bytes >= LONG
    assert 2**20 + 100 - len(prefix_of(0)) == reader.buffered_bytes
    assert [bytes(LONG)] == reader.feed(data[2**20 + 100 :])
    assert 0 == reader.buffered_bytes


class NoMemory(ReusedMemory):
    """A machine that is full."""

    @override
    def take(self, nbytes: int) -> Array:
        raise MemoryError


def test_message_for_which_there_is_no_memory_is_refused() -> None:
    """A full machine is the answer to that request, and no fault of ours."""
    reader = MessageReader(LONG, memory=NoMemory())

    with pytest.raises(Overloaded, match=f"no memory for a message of {LONG} bytes"):
        feed_in_pieces(reader, frame_message(bytes(LONG)))
