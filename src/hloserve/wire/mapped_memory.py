"""A file in memory that somebody else may make shorter at any time, and copies that survive it.

What lives here: one mapping and copying in and out of it. What does not: which file
(`hloserve.wire.shared_memory`). Any thread may copy; one owner opens and closes.

Whoever may write to a file may cut it, and touching a page that is gone raises SIGBUS, which ends
the process. Looking at the size first does not help, since the cut may come later. `os.pread`
cannot fault, and takes 3.6 ms for 16 MB where a copy takes 1.0. So we copy, and survive the signal.

Rules.
1. Nobody but `copy_in` and `copy_out` touches a mapping, and its address does not leave this
   module: a fault happens inside of `memmove`, never in Python, numpy or XLA.
2. `memmove` is async-signal-safe, so the handler may do what it likes (POSIX, signal concepts). It
   puts private memory in the place of the whole mapping, marks that as cut, and lets the copy end.
3. A fault anywhere else is not ours: the handler before us is put back, and the fault repeats.
"""

import ctypes
import mmap
import os
import signal
import threading

__all__ = ["MappedMemory", "MemoryClosed", "MemoryCut"]

_PAGE_BYTES = mmap.PAGESIZE
_MAP_ANONYMOUS_THERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_SI_ADDR = 16  # where siginfo_t has the address, on 64-bit Linux
_SA_SIGINFO = 4
_FAILED = ctypes.c_void_p(-1).value

_LONG_COPY_BYTES = 256 * 1024
"""From here on a copy lets other threads run; below, getting the lock back would cost more."""

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_long_copy = _libc.memmove
_long_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_long_copy.restype = ctypes.c_void_p
_short_copy = ctypes.PyDLL(None).memmove  # keeps the interpreter's lock
_short_copy.argtypes = _long_copy.argtypes
_short_copy.restype = ctypes.c_void_p


class MemoryClosed(Exception):
    """The mapping was given up before the copy began."""


class MemoryCut(Exception):
    """The file is shorter than it was; what was copied is worth nothing."""


class MappedMemory:
    """A writable mapping of a part of a file.

    Args:
        fd: the file, open for reading and writing; may be closed afterwards.
        offset: where the part begins; any byte.
        nbytes: its length, above 0.

    Raises:
        OSError: the system does not map it.

    Threading: any thread may copy. `close` waits for nobody: the last copy takes the mapping away.
    """

    __slots__ = ("_address", "_copies", "_is_closed", "_lock", "_start", "_total_bytes", "is_cut")

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        _guard()
        skip = offset % _PAGE_BYTES
        self._total_bytes = -(-(skip + nbytes) // _PAGE_BYTES) * _PAGE_BYTES
        start = _mmap(None, self._total_bytes, _READ_WRITE, mmap.MAP_SHARED, fd, offset - skip)
        if start is None or start == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._start: int = start
        self._address = start + skip
        self._lock = threading.Lock()  # guards the two below; never held while copying
        self._copies = 0
        self._is_closed = False
        self.is_cut = False
        _mappings[start] = self

    @property
    def is_mapped(self) -> bool:
        """False once closed and no longer copied."""
        return bool(self._start)

    def copy_out(self, offset: int, target: int, nbytes: int) -> None:
        """Copy from the file to memory of ours.

        Args:
            offset: from the beginning of the part; the caller has checked the bounds.
            target: address of at least `nbytes` bytes.
            nbytes: how much.

        Raises:
            MemoryCut: the file was made shorter, now or before.
            MemoryClosed: `close` came first.
        """
        self._copy(target, offset, nbytes, is_in=False)

    def copy_in(self, offset: int, source: int, nbytes: int) -> None:
        """Copy memory of ours to the file; as `copy_out`, the other way."""
        self._copy(source, offset, nbytes, is_in=True)

    def _copy(self, ours: int, offset: int, nbytes: int, *, is_in: bool) -> None:
        with self._lock:
            if self._is_closed:
                raise MemoryClosed
            self._copies += 1
        try:
            if not self.is_cut:
                theirs = self._address + offset
                copy = _long_copy if nbytes >= _LONG_COPY_BYTES else _short_copy
                copy(theirs if is_in else ours, ours if is_in else theirs, nbytes)
        finally:
            self._copied()
        if self.is_cut:
            raise MemoryCut

    def _copied(self) -> None:
        with self._lock:
            self._copies -= 1
            is_last = self._is_closed and not self._copies
        if is_last:
            self._unmap()

    def close(self) -> None:
        """Give the mapping up. Idempotent."""
        with self._lock:
            is_last = not self._is_closed and not self._copies
            self._is_closed = True
        if is_last:
            self._unmap()

    def _unmap(self) -> None:
        start, self._start = self._start, 0
        del _mappings[start]
        _munmap(start, self._total_bytes)

    def holds(self, address: int) -> bool:
        """True when an address is inside."""
        return 0 <= address - self._start < self._total_bytes

    def replace(self) -> None:
        """For the handler: have private memory, all zeros, in the place of the file."""
        self.is_cut = True
        _mmap(self._start, self._total_bytes, _READ_WRITE, _MAP_ANONYMOUS_THERE, -1, 0)


_mappings: dict[int, MappedMemory] = {}


class _SigAction(ctypes.Structure):
    """`struct sigaction` of 64-bit Linux: the same on x86-64 and AArch64, in glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_before = _SigAction()


def _on_sigbus(number: int, info: int, context: int) -> None:
    address = ctypes.c_uint64.from_address(info + _SI_ADDR).value
    for mapping in tuple(_mappings.values()):
        if mapping.holds(address):
            mapping.replace()
            return
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_before), None)
    ctypes.memset(ctypes.byref(_before), 0, ctypes.sizeof(_before))  # next time: the default, death


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_sigbus)
_action = _SigAction(ctypes.cast(_handler, ctypes.c_void_p).value, flags=_SA_SIGINFO)


def _guard() -> None:
    """See that the handler is installed; others may have installed theirs since."""
    found = _SigAction()
    _libc.sigaction(signal.SIGBUS, None, ctypes.byref(found))
    if found.handler == _action.handler:
        return
    if _libc.sigaction(signal.SIGBUS, ctypes.byref(_action), ctypes.byref(_before)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
