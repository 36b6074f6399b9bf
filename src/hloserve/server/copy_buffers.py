"""Memory for copies of large inputs, used again: fresh memory costs a quarter of the copy on top.

What lives here: which memory is free. What does not: what is copied (`server.shared_memory`).
Loop thread; the arrays may be let go of on any thread.

Rule: memory is free when nothing but this module refers to its owner. NumPy, memoryview and XLA all
keep the owner of what they use, so nothing has to be given back, and nothing can be forgotten.
"""

import sys

import numpy as np

from hloserve.core.tensors import Array
from hloserve.engine.backend import ALIGNMENT_BYTES

__all__ = ["CopyBuffers"]

_SMALL_BYTES = 2**20
"""Below it the allocator does well by itself."""

_UNUSED_REFERENCES = 3
"""To an owner that is only here: from the list, from the loop, from the call that counts."""


class CopyBuffers:
    """Hands out aligned memory.

    Args:
        kept_bytes: most that is kept for use again.
    """

    def __init__(self, kept_bytes: int = 128 * 2**20) -> None:
        self._most_kept_bytes = kept_bytes
        self._owners: list[Array] = []

    @property
    def kept_bytes(self) -> int:
        """What is kept, in use or not."""
        return sum(owner.nbytes for owner in self._owners)

    def take(self, nbytes: int) -> Array:
        """Bytes of unspecified content that begin where a device takes them without a copy."""
        needed = nbytes + ALIGNMENT_BYTES
        if nbytes < _SMALL_BYTES:
            return _aligned(np.empty(needed, np.uint8), nbytes)
        for owner in self._owners:
            is_of_size = needed <= owner.nbytes <= 2 * needed
            if is_of_size and sys.getrefcount(owner) == _UNUSED_REFERENCES:
                return _aligned(owner, nbytes)
        made = np.empty(needed, np.uint8)
        if needed <= self._most_kept_bytes:
            self._make_room(needed)
            self._owners.append(made)
        return _aligned(made, nbytes)

    def _make_room(self, needed: int) -> None:
        """Let go of what has been kept for longest, used or not, until there is room."""
        while self._owners and self.kept_bytes + needed > self._most_kept_bytes:
            del self._owners[0]


def _aligned(owner: Array, nbytes: int) -> Array:
    skip = -owner.ctypes.data % ALIGNMENT_BYTES
    return owner[skip : skip + nbytes]
