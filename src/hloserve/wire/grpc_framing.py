"""gRPC messages in a byte stream: the five-byte prefix, the caps, gzip.

What lives here: taking messages apart and putting them together. What does not: HTTP/2
(`hloserve.wire.http2`), headers (`hloserve.wire.grpc_headers`) and decompression
(`hloserve.wire.inflating`). No I/O; the thread that drives the connection.

Rules.
1. The cap is enforced at the prefix, before anything is allocated for the message.
2. A message is assembled in one buffer that grows with the bytes that have come, so a prefix that
   announces much costs nothing until the bytes arrive. Once a mebibyte has come, the rest gets its
   place at once, in memory that was used before: growing and fresh pages take as long as a copy.
3. A decompressed message obeys the same cap as a plain one, and decompression stops at it.

Source: gRPC over HTTP2, "Length-Prefixed-Message".
"""

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import TypeAlias

from hloserve.core.errors import BodyTooLarge, MalformedBody, Overloaded
from hloserve.core.reused_memory import ReusedMemory
from hloserve.wire.bytes_in_hand import Growth
from hloserve.wire.inflating import Inflater, Source

__all__ = [
    "MAX_RECV_SETTING",
    "MAX_SEND_SETTING",
    "PREFIX_BYTES",
    "VIEW_FROM_BYTES",
    "Message",
    "MessageReader",
    "PackedMessage",
    "frame_message",
    "prefix_of",
    "read_whole",
]

Message: TypeAlias = bytes | bytearray | memoryview
"""One message, without its prefix. Small ones are bytes; a large one is the buffer that it came in
or was assembled in, so that it is not copied once more."""

PREFIX_BYTES = 5
MAX_RECV_SETTING = "grpc.max_recv_msg_bytes"
MAX_SEND_SETTING = "grpc.max_send_msg_bytes"

VIEW_FROM_BYTES = 16_384
"""Below this a copy is cheaper than a view or a second call (at 300 bytes 40 ns against 150 ns)."""

_PROOF_BYTES = 2**20
_WBITS = 32 + zlib.MAX_WBITS
"""Both codings of gRPC that are read, gzip and deflate (zlib): their first bytes tell which."""
_QUICK_PACKED_BYTES = 1024
"""Compressed messages up to here grow to a megabyte at most, which takes a few milliseconds."""

_SOURCE = Source(
    slice_bytes=64 * 1024,
    cut_short="the compressed data of a message ends too early",
    damaged="a message is not valid gzip or deflate data",
)

_PREFIX = Struct(">BI")
_pack_prefix = _PREFIX.pack
_unpack_prefix = _PREFIX.unpack_from


def frame_message(message: Message) -> bytes:
    """Prefix and message in one; for small messages, where one copy beats a second call."""
    return _pack_prefix(0, len(message)) + message


def prefix_of(nbytes: int) -> bytes:
    """The prefix of an uncompressed message."""
    return _pack_prefix(0, nbytes)


def read_whole(data: bytes, limit: int) -> Message | None:
    """The message when `data` is exactly one plain message within the cap; None otherwise.

    The hot path: most requests arrive as one DATA frame. None says: use a `MessageReader`, which
    has the reason.
    """
    if len(data) < PREFIX_BYTES:
        return None
    is_compressed, announced = _unpack_prefix(data)
    if is_compressed or announced != len(data) - PREFIX_BYTES or announced > limit:
        return None
    if announced < VIEW_FROM_BYTES:
        return data[PREFIX_BYTES:]
    return memoryview(data)[PREFIX_BYTES:]


class PackedMessage(bytearray):
    """A message as it was sent: compressed. It may grow a thousandfold."""

    __slots__ = ("limit", "setting")

    limit: int
    setting: str

    def unpack(self, growth: Growth | None = None) -> Message:
        """Decompress it; any thread.

        Args:
            growth: counts what comes out.

        Raises:
            Overloaded: the process has too many bytes in hand.
            BodyTooLarge: it is over the cap.
            MalformedBody: it is neither gzip nor deflate.
        """
        return _inflate(self, self.limit, self.setting, growth)


class MessageReader:
    """Turns the bytes of one direction of one stream into messages.

    Args:
        limit: most bytes of one message, decompressed.
        has_coding: whether `grpc-encoding` is gzip or deflate; a compressed message is malformed
            otherwise.
        setting: the configuration key that raises the limit, for the error text.
        keeps_packed: give back compressed messages as `PackedMessage`, but for short ones: for who
            has others to serve meanwhile.
        memory: where long messages are assembled; None to let a buffer of their own grow.

    Attributes:
        pieces: how many came that were no whole message.
    """

    __slots__ = (
        "_announced", "_body", "_filled", "_head", "_memory", "_place", "has_coding",
        "keeps_packed", "limit", "pieces", "setting",
    )  # fmt: skip

    def __init__(
        self,
        limit: int,
        *,
        has_coding: bool = False,
        setting: str = MAX_RECV_SETTING,
        keeps_packed: bool = False,
        memory: ReusedMemory | None = None,
    ) -> None:
        self.keeps_packed = keeps_packed
        self.pieces = 0
        self.limit = limit
        self.has_coding = has_coding
        self.setting = setting
        self._head = b""
        self._body: bytearray | None = None
        self._place: memoryview | None = None
        self._memory = memory
        self._announced = self._filled = 0

    @property
    def is_between_messages(self) -> bool:
        """True when the stream may end here."""
        return self._body is None and not self._head

    @property
    def announced_bytes(self) -> int:
        """What the message that is not complete announces; 0 without one."""
        return 0 if self._body is None else self._announced

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a message that is not complete."""
        return len(self._head) + self._filled

    def feed(self, data: bytes) -> Sequence[Message]:
        """Take bytes; return the messages that they complete, in order.

        Raises:
            BodyTooLarge: a message is over the cap. The reader is of no use afterwards.
            MalformedBody: the bytes are no gRPC message.
            Overloaded: there is no memory for a message. Retryable.
        """
        if self.is_between_messages:
            whole = read_whole(data, self.limit)  # nearly always; 1.0 us, not 4.2
            if whole is not None:
                return [whole]
        self.pieces += 1
        messages: list[Message] = []
        view = memoryview(data)
        position = 0
        while position < len(view):
            body = self._body
            if body is None:
                position = self._read_prefix(view, position)
                if self._body is not None and not self._announced:
                    messages.append(self._finish(self._body))
                continue
            end = min(position + self._announced - self._filled, len(view))
            self._append(body, view[position:end])
            position = end
            if self._filled == self._announced:
                messages.append(self._finish(body))
        return messages

    def _append(self, body: bytearray, piece: memoryview) -> None:
        start = self._filled
        self._filled = start + len(piece)
        if self._place is not None:
            self._place[start : self._filled] = piece
            return
        body += piece
        is_long = _PROOF_BYTES <= self._filled < self._announced and type(body) is bytearray
        if is_long and self._memory is not None:
            try:
                self._place = self._memory.take(self._announced).data
            except MemoryError:
                size = self._announced
                raise Overloaded(f"there is no memory for a message of {size} bytes") from None
            self._place[: self._filled] = body
            body.clear()

    def _read_prefix(self, view: memoryview, position: int) -> int:
        end = position + PREFIX_BYTES - len(self._head)
        head = self._head + bytes(view[position:end])
        if len(head) < PREFIX_BYTES:
            self._head = head
            return len(view)
        self._head = b""
        flag, self._announced = _unpack_prefix(head)
        if flag > 1:
            raise MalformedBody(f"the compressed flag of a message is {flag}, expected 0 or 1")
        if flag and not self.has_coding:
            raise MalformedBody("a message is marked compressed but there is no grpc-encoding")
        if self._announced > self.limit:
            raise BodyTooLarge(self.limit, self._announced, self.setting)
        self._body = PackedMessage() if flag else bytearray()
        return end

    def _finish(self, body: bytearray) -> Message:
        place, self._place, self._body, self._filled = self._place, None, None, 0
        if place is not None:
            return place.toreadonly()
        if isinstance(body, PackedMessage):
            body.limit, body.setting = self.limit, self.setting
            is_quick = len(body) <= _QUICK_PACKED_BYTES
            return body.unpack() if is_quick or not self.keeps_packed else body
        return bytes(body) if len(body) < VIEW_FROM_BYTES else body


def _inflate(body: bytearray, limit: int, setting: str, growth: Growth | None) -> Message:
    inflater = Inflater(body, _SOURCE, limit, setting, growth)
    inflater.read_stream(_WBITS)
    if inflater.rest_bytes:
        raise MalformedBody("there is data after the compressed data of a message")
    message = inflater.result
    return bytes(message) if len(message) < VIEW_FROM_BYTES else message
