"""What the C library's allocator does with memory that was freed.

What lives here: its settings. What does not: memory that we use again ourselves
(`hloserve.core.reused_memory`). Process-wide; the main thread, before there are others.

XLA on the CPU takes the memory of every result from the allocator. By default that gives large
pieces back to the system as soon as they are freed, or not, as they happen to lie; where it does,
each page of the next result is a fault, and a result of 16 MB takes twice as long. Whether a server
was fast was a matter of luck at its start: one of three was not.
"""

import ctypes
import os
from collections.abc import Mapping

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {
    _M_MMAP_THRESHOLD: 32 * 2**20,  # the most that there is: larger pieces are not kept
    _M_TOP_PAD: 64 * 2**20,  # stays at the end of a heap; with less, heaps of threads go whole
    _M_TRIM_THRESHOLD: 128 * 2**20,  # more than this does not stay there
}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Have the allocator keep pieces of up to 32 MB for use again.

    Args:
        environment: an operator who sets the allocator there knows better.

    Returns:
        False when nothing was changed: for that reason, or because the allocator is not glibc's.

    Source: mallopt(3).
    """
    is_set = any(name.startswith("MALLOC_") for name in environment)
    if is_set or "glibc.malloc" in environment.get("GLIBC_TUNABLES", ""):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all(libc.mallopt(name, nbytes) for name, nbytes in _SETTINGS.items())
