"""The memory of a device that is not there.

What lives here: a first-fit allocator that only counts. It needs contiguous room when it is told
to, so that tests see what fragmentation does. What does not: the arrays
(`hloserve.engine.fake_backend`). Any thread.
"""

import threading
from dataclasses import dataclass

from hloserve.core.errors import DeviceMemoryFull

__all__ = ["FakeBlock", "FakeMemory"]


@dataclass(frozen=True, slots=True)
class FakeBlock:
    """Reserved bytes: where they begin, and how many they are."""

    start: int
    nbytes: int


class FakeMemory:
    """What is reserved on a device.

    Args:
        limit_bytes: memory of the device; None for no limit.
        is_contiguous: a block needs room in one piece. Then free memory may be too scattered to be
            of use, until what lies between is freed.

    Attributes:
        limit_bytes: from now on.
        in_use_bytes: of all blocks that are not freed.
        peak_bytes: most that was ever in use.
    """

    def __init__(self, limit_bytes: int | None, *, is_contiguous: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.in_use_bytes = 0
        self.peak_bytes = 0
        self._is_contiguous = is_contiguous
        self._blocks: list[FakeBlock] = []  # by address
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> FakeBlock:
        """Take the first room that is large enough.

        Raises:
            DeviceMemoryFull: there is none, or none in one piece.
        """
        with self._lock:
            if self.limit_bytes is not None:
                free_bytes = self.limit_bytes - self.in_use_bytes
                if nbytes > free_bytes:
                    raise DeviceMemoryFull(nbytes, free_bytes)
            block = FakeBlock(self._place_for(nbytes), nbytes)
            self._blocks.append(block)
            self._blocks.sort(key=lambda other: other.start)
            self.in_use_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
            return block

    def release(self, block: FakeBlock) -> None:
        """Give a block back, once."""
        with self._lock:
            self._blocks.remove(block)
            self.in_use_bytes -= block.nbytes

    @property
    def largest_free_bytes(self) -> int | None:
        """The largest block that can be had; None without a limit."""
        with self._lock:
            if self.limit_bytes is None:
                return None
            if not self._is_contiguous:
                return self.limit_bytes - self.in_use_bytes
            return max(size for _, size in self._gaps(self.limit_bytes))

    def _place_for(self, nbytes: int) -> int:
        if self.limit_bytes is None or not self._is_contiguous:
            return 0
        gaps = self._gaps(self.limit_bytes)
        for start, size in gaps:
            if nbytes <= size:
                return start
        raise DeviceMemoryFull(nbytes, max(size for _, size in gaps))

    def _gaps(self, limit_bytes: int) -> list[tuple[int, int]]:
        """Free stretches by address: start and size, perhaps 0; the last one ends the memory."""
        gaps, end = [], 0
        for block in self._blocks:
            gaps.append((end, block.start - end))
            end = block.start + block.nbytes
        return [*gaps, (end, max(0, limit_bytes - end))]
