"""Assembling one message body into one buffer, without believing what its sender announces.

What lives here: growth and caps. What does not: framing (`hloserve.wire.http1`). One thread.
"""

import numpy as np

from hloserve.wire.bytes_in_hand import Claim
from hloserve.wire.http1_messages import Body

__all__ = ["BodyAssembly"]

_PROOF_BYTES = 2**20
"""What must have arrived before a longer body gets its whole buffer."""

_NOTHING = bytearray()
_EMPTY = memoryview(b"")


class BodyAssembly:
    """The body of one message on its way.

    Attributes:
        length: announced bytes; None when the body is chunked.
        claim: what it takes of the bytes in hand, if it is large and does not come whole.
    """

    __slots__ = ("_buffer", "_chunks", "_filled", "claim", "length")

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.claim: Claim | None = None
        self._chunks = bytearray() if length is None else _NOTHING
        self._buffer = _EMPTY
        self._filled = 0

    @property
    def is_complete(self) -> bool:
        """True once the announced length has arrived."""
        return self._filled == self.length

    @property
    def came_bytes(self) -> int:
        """How much of it is here."""
        return self._filled or len(self._chunks)

    def append(self, data: bytes | memoryview, max_bytes: int) -> bool:
        """Take a chunk; False, and nothing is kept, when the body would exceed `max_bytes`."""
        if len(self._chunks) + len(data) > max_bytes:
            return False
        self._chunks += data
        return True

    def tail(self) -> memoryview:
        """Where the next bytes of a body of known length go; never empty while incomplete.

        Raises:
            MemoryError: the whole body does not fit.
        """
        assert self.length is not None, "a chunked body has no fixed place"
        if self._filled == len(self._buffer):
            size = self.length if self._filled else min(self.length, _PROOF_BYTES)
            grown = np.empty(size, np.uint8).data  # pages are committed when touched
            grown[: self._filled] = self._buffer
            self._buffer = grown
        return self._buffer[self._filled :]

    def advance(self, count: int) -> None:
        """Say that `count` bytes were put into `tail`."""
        self._filled += count

    def fill(self, data: bytes | memoryview) -> int:
        """Copy as much of `data` as the body still lacks; returns the count.

        Raises:
            MemoryError: the whole body does not fit.
        """
        taken = 0
        while taken < len(data) and not self.is_complete:
            tail = self.tail()
            count = min(len(tail), len(data) - taken)
            tail[:count] = data[taken : taken + count]
            self._filled += count
            taken += count
        return taken

    def finish(self) -> Body:
        """The whole body, read-only."""
        if self.length is None:
            return memoryview(self._chunks).toreadonly()
        return self._buffer.toreadonly()
