"""Decompression in bounded pieces: of gRPC messages and of HTTP bodies.

What lives here: gzip and deflate streams, one behind the other, onto one result that stops at its
cap. What does not: how many streams there may be, and what may follow them
(`hloserve.wire.grpc_framing`, `hloserve.wire.http1_content`). No I/O; the thread of the caller.

Rules.
1. Whoever counts bytes is asked before a piece is decompressed, not after.
2. Nothing is decompressed beyond the first byte over the cap.
"""

import zlib
from dataclasses import dataclass

from hloserve.core.errors import BodyTooLarge, MalformedBody, Overloaded
from hloserve.wire.bytes_in_hand import Growth

__all__ = ["Inflater", "Source"]

_PIECE_BYTES = 2**20
"""What one call gives."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where streams come from.

    Attributes:
        slice_bytes: most bytes that one call takes in. What follows a stream in its last slice is
            copied.
        cut_short: error text for a stream that does not end.
        damaged: error text for a stream that cannot be read; zlib's reason is put behind it.
    """

    slice_bytes: int
    cut_short: str
    damaged: str


class Inflater:
    """Decompresses streams that lie one behind the other.

    Args:
        packed: all of their bytes; borrowed.
        source: where they come from.
        limit: most bytes of the result.
        setting: the configuration key of the limit, for the error text.
        growth: counts what comes out.

    Attributes:
        result: what has come out; who made this takes it.
        rest_bytes: how many bytes lie behind the streams that were read.
    """

    __slots__ = ("_growth", "_limit", "_packed", "_setting", "_source", "rest_bytes", "result")

    def __init__(
        self,
        packed: bytes | bytearray | memoryview,
        source: Source,
        limit: int,
        setting: str,
        growth: Growth | None = None,
    ) -> None:
        self._packed = memoryview(packed)
        self._source = source
        self._limit = limit
        self._setting = setting
        self._growth = growth
        self.result = bytearray()
        self.rest_bytes = len(packed)

    def read_stream(self, wbits: int) -> None:
        """Decompress the next stream.

        Args:
            wbits: which coding it is, as for `zlib.decompressobj`.

        Raises:
            Overloaded: the process has too many bytes in hand.
            BodyTooLarge: the result is over the limit.
            MalformedBody: the stream is damaged, or cut short.
        """
        stream = zlib.decompressobj(wbits)
        packed, result, growth = self._packed, self.result, self._growth
        source, limit = self._source, self._limit
        position, is_full = len(packed) - self.rest_bytes, False
        while not stream.eof:
            piece = packed[position : position + source.slice_bytes]
            if not piece and not is_full:
                raise MalformedBody(source.cut_short)
            room = min(limit - len(result) + 1, _PIECE_BYTES)
            try:
                if growth is not None:
                    growth.reach(len(result) + room)
                unpacked = stream.decompress(piece, room)
            except Overloaded:
                result.clear()  # or the traceback keeps it
                raise
            except zlib.error as error:
                raise MalformedBody(f"{source.damaged}: {error}") from error
            result += unpacked
            is_full = len(unpacked) == room
            if len(result) > limit:
                raise BodyTooLarge(limit, None, self._setting)
            position += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
        self.rest_bytes = len(packed) - position
