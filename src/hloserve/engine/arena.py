"""Host memory for weights: one aligned block per model, filled straight from the file.

What lives here: `HostArena` and reading a weights file into one. What does not: the file's format
(`hloserve.bundle.weights`) and device memory (`hloserve.engine.backend`). On CPU the device uses
these very bytes, so a model holds its arena for as long as its buffers live.
"""

import mmap
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from hloserve.bundle.weights import WeightsFile
from hloserve.core.dtypes import DType
from hloserve.core.tensors import Array
from hloserve.engine.backend import ALIGNMENT_BYTES

__all__ = ["HostArena", "load_weights"]

_HUGE_PAGE_BYTES = 2 << 20


class HostArena:
    """One anonymous block of memory, cut into aligned arrays from front to back.

    The arrays keep the block alive; it goes back to the system with the last of them.

    Args:
        capacity_bytes: room for all arrays; see `needed_bytes`.

    Threading: one thread at a time.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        # Private, because Python's default is shared memory, which gets no huge pages; and with
        # room to start on one. Filling it from the page cache then runs at 3.8 GB/s, not at 0.8.
        # What is not a whole huge page at the end stays on small ones, so that none is wasted.
        block = mmap.mmap(
            -1, capacity_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._block = block
        memory = np.frombuffer(block, np.uint8)
        start = 0
        whole = capacity_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if whole and hasattr(mmap, "MADV_HUGEPAGE"):
            start = -memory.ctypes.data % _HUGE_PAGE_BYTES
            block.madvise(mmap.MADV_HUGEPAGE, start, whole)
        self._memory = memory[start : start + capacity_bytes]
        self._used_bytes = 0

    @staticmethod
    def needed_bytes(sizes_bytes: Iterable[int]) -> int:
        """Capacity for arrays of these sizes, with the gaps that alignment makes."""
        return sum(_aligned(size) for size in sizes_bytes)

    def take(self, dtype: DType, shape: Sequence[int]) -> Array:
        """Cut the next array: aligned, writable, zero.

        Raises:
            MemoryError: the arena is full.
        """
        size = prod(shape) * dtype.itemsize
        start = self._used_bytes
        if start + size > self.capacity_bytes:
            raise MemoryError(f"arena of {self.capacity_bytes} bytes has no room for {size} more")
        self._used_bytes = start + _aligned(size)
        return self._memory[start : start + size].view(dtype.numpy).reshape(shape)

    def discard(self) -> None:
        """Give the memory back to the system now, whoever still refers to it: all reads are zeros.

        XLA lets go of an array that it used in place only at its next call.
        """
        self._block.madvise(mmap.MADV_DONTNEED)


def load_weights(weights: WeightsFile, arena: HostArena) -> list[Array]:
    """Read all weights into an arena.

    Args:
        weights: an open file.
        arena: with room for `weights.arguments`.

    Returns:
        Read-only arrays in argument order, program axis order, each at a multiple of
        `ALIGNMENT_BYTES`.

    Raises:
        WeightsProblem: the file is shorter than its header says.
    """
    arrays = []
    for tensor in weights.arguments:
        array = arena.take(tensor.dtype, tensor.shape)
        if array.nbytes:
            weights.read_into(tensor, array.reshape(-1).view(np.uint8))
        array.flags.writeable = False
        arrays.append(array)
    return arrays


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
