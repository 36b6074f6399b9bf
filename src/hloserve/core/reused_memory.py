"""Memory for large messages and copies, used again: fresh memory costs a quarter of a copy on top.

What lives here: which memory is free. What does not: what is put there
(`hloserve.wire.grpc_framing`, `hloserve.server.shared_memory`). The thread that takes; the arrays
may be let go of on any thread.

Rule: memory is free when nothing but this module refers to its owner. NumPy, memoryview and XLA all
keep the owner of what they use, so nothing has to be given back, and nothing can be forgotten.
"""

import sys

import numpy as np

from hloserve.core.tensors import Array

__all__ = ["ReusedMemory"]

_SMALL_BYTES = 2**20
"""Below it the allocator does well by itself."""

_UNUSED_REFERENCES = 3
"""To an owner that is only here: from the list, from the loop, from the call that counts."""


class ReusedMemory:
    """Hands out aligned memory.

    Args:
        kept_bytes: most that is kept for use again.
        alignment_bytes: a power of two.
    """

    def __init__(self, kept_bytes: int = 128 * 2**20, alignment_bytes: int = 64) -> None:
        self._most_kept_bytes = kept_bytes
        self._alignment_bytes = alignment_bytes
        self._owners: list[Array] = []

    @property
    def kept_bytes(self) -> int:
        """What is kept, in use or not."""
        return sum(owner.nbytes for owner in self._owners)

    def take(self, nbytes: int) -> Array:
        """Aligned bytes of unspecified content.

        Raises:
            MemoryError: there is not so much.
        """
        needed = nbytes + self._alignment_bytes
        if nbytes < _SMALL_BYTES:
            return self._aligned(np.empty(needed, np.uint8), nbytes)
        for owner in self._owners:
            is_of_size = needed <= owner.nbytes <= 2 * needed
            if is_of_size and sys.getrefcount(owner) == _UNUSED_REFERENCES:
                return self._aligned(owner, nbytes)
        made = np.empty(needed, np.uint8)
        if needed <= self._most_kept_bytes:
            self._make_room(needed)
            self._owners.append(made)
        return self._aligned(made, nbytes)

    def _make_room(self, needed: int) -> None:
        """Let go of what has been kept for longest, used or not, until there is room."""
        while self._owners and self.kept_bytes + needed > self._most_kept_bytes:
            del self._owners[0]

    def _aligned(self, owner: Array, nbytes: int) -> Array:
        skip = -owner.ctypes.data % self._alignment_bytes
        return owner[skip : skip + nbytes]
