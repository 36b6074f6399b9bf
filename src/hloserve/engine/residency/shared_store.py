"""One copy of each model's weights for all processes of a node: files in `/dev/shm`.

What lives here: making, joining and removing them. What does not: reading weights
(`hloserve.bundle.weights`), and who wants a copy when (`hloserve.engine.residency.weight_cache`).

A file holds a header (magic, whether it is complete, digest, size) and then each tensor at a
multiple of 64 bytes. Its name is ``hlow-<model>-<digest>``; the digest is of the weights file's
identity and of the names, types and shapes of the tensors, so a name never means other content.

Rules.
1. The kernel's lock of the file itself says who uses it. Whoever has it for itself alone fills or
   removes it; whoever shares it uses it, for life. A process that dies, however, has no lock: what
   it left half filled the next one fills, and what it left whole the next one uses, or removes.
2. A lock counts only while the name still means the locked file: one that was removed in between
   is let go, and everything starts again.
3. "Complete" is written last. Memory is reserved before it is written, so that a full `/dev/shm` is
   an error and not a signal.
4. Only files of whom the mode trusts are used: our own, root's, and those of our group or of others
   where the mode lets these write.
5. The last one out removes the file. Who comes sweeps what is left of older versions of the model.

It is not `multiprocessing.shared_memory`, whose tracker removes files that others use.

Source: spec "Private vs shared host store", with the lock on the file instead of beside it, so that
nothing stays behind.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import re
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import random

import numpy as np
from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array
from hloserve.engine.arena import HostArena
from hloserve.engine.backend import ALIGNMENT_BYTES
from hloserve.engine.residency.host_weights import HostCopy, HostStore

__all__ = ["SharedStore"]

SHARED_MEMORY = Path("/dev/shm")

_PREFIX = "hlow"
_MAGIC = 0x48_4C_57_01  # HLW, version 1
_HEADER = struct.Struct("<II16sQ")
_DATA_START = ALIGNMENT_BYTES
_DIGEST_BYTES = 16
_NAME_CHARACTERS = 100  # of the model in a file's name, which has at most 255

_PIECE_BYTES = 1 << 20

_PAUSE_S = 0.005
_PATIENCE_S = 300.0
"""How long another process may take to fill a file before we give up on it."""


class SharedStore(HostStore):
    """Copies that processes share.

    Args:
        mode: permissions of the files.
        directory: where they are.
        pause: waits between two looks at a file that another process fills.
    """

    def __init__(
        self,
        mode: int = 0o660,
        directory: Path = SHARED_MEMORY,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._mode = mode
        self._directory = directory
        self._pause = pause
        self._known: set[str] = set()  # files whose older versions were looked for

    @override
    def acquire(self, model: str, weights: WeightsFile, token: str) -> HostCopy:
        digest = _digest(weights, token)
        path = self._directory / f"{_stem(model)}-{digest.hex()}"
        size = _DATA_START + HostArena.needed_bytes(t.nbytes for t in weights.arguments)
        try:
            fd = self._attach(path, weights, digest, size)
        except OSError as error:
            raise WeightsProblem(weights.path, self._reason(error, size)) from error
        try:
            copy = _SharedCopy(path, fd, _views(fd, size, weights))
        except BaseException:
            os.close(fd)
            raise
        if path.name not in self._known:
            self._known.add(path.name)
            self._sweep(f"{_stem(model)}-", keep=path.name)
        return copy

    def _reason(self, error: OSError, size: int) -> str:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            where = error.filename or self._directory
            told = f"shared memory {where}: {error.strerror}"
            if error.errno == errno.EACCES:
                told += (
                    "; workers that share weights must be of one user, or of one group that"
                    " runtime.shared_host_weights_mode lets read and write, as 660 does"
                )
            return told
        free = 0
        with suppress(OSError):
            found = os.statvfs(self._directory)
            free = found.f_bavail * found.f_frsize
        return (
            f"{self._directory} has no room for {size} bytes of weights, {free} are free; make it"
            " larger (of a container: --shm-size), or set runtime.shared_host_weights: false"
        )

    def _attach(self, path: Path, weights: WeightsFile, digest: bytes, size: int) -> int:
        """An open file with the weights in it, its lock shared."""
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            fd = self._open(path)
            try:
                if self._is_ours(fd, path, weights, digest, size):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if time.monotonic() > give_up:
                raise WeightsProblem(
                    weights.path,
                    f"another process has filled {path} for {_PATIENCE_S:g} seconds and is not"
                    " done; end that process, or remove the file",
                )
            self._pause(_PAUSE_S * (1 + random()))  # or two would meet for ever

    def _open(self, path: Path) -> int:
        # Without O_CREAT first: with it, Linux refuses files of others in a sticky directory.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            try:
                return os.open(path, flags)
            except FileNotFoundError:
                pass
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            try:
                os.fchmod(fd, self._mode)  # the umask has no say
            except BaseException:
                os.close(fd)
                raise
            return fd

    def _is_ours(self, fd: int, path: Path, weights: WeightsFile, digest: bytes, size: int) -> bool:
        """Lock the file shared, with the weights in it; False when somebody else was quicker."""
        self._check_trust(fd, path, weights)
        if _try_lock(fd, fcntl.LOCK_EX):
            if not _is_named(fd, path):
                return False
            if not _is_complete(fd, digest, size):
                self._fill(fd, path, weights, digest, size)
            fcntl.flock(fd, fcntl.LOCK_SH)  # another one may have had it in between
        elif not _try_lock(fd, fcntl.LOCK_SH):
            return False
        return _is_named(fd, path) and _is_complete(fd, digest, size)

    def _check_trust(self, fd: int, path: Path, weights: WeightsFile) -> None:
        found = os.fstat(fd)
        is_trusted = (
            found.st_uid in (os.geteuid(), 0)
            or bool(self._mode & 0o002)
            or (bool(self._mode & 0o020) and found.st_gid in (os.getegid(), *os.getgroups()))
        )
        if not is_trusted:
            raise WeightsProblem(
                weights.path,
                f"{path} belongs to user {found.st_uid}, whose weights are not trusted; remove it,"
                " or set runtime.shared_host_weights_mode so that they are",
            )

    def _fill(self, fd: int, path: Path, weights: WeightsFile, digest: bytes, size: int) -> None:
        try:
            os.ftruncate(fd, 0)
            self._reserve(fd, path, size)
            _write(fd, _HEADER.pack(_MAGIC, 0, digest, size), 0)
            # Not through a mapping, whose pages would come one at a time: 1.2 GB/s, not 2.0.
            buffer = np.empty(_PIECE_BYTES, np.uint8)
            for tensor, at in zip(weights.arguments, _starts(weights), strict=True):
                done = 0
                for piece in weights.read_pieces(tensor, buffer):
                    _write(fd, piece.data, at + done)
                    done += piece.nbytes
            _write(fd, _HEADER.pack(_MAGIC, 1, digest, size), 0)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise

    def _reserve(self, fd: int, path: Path, size: int) -> None:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._sweep(f"{_PREFIX}-", keep=path.name)  # what dead processes left
            os.posix_fallocate(fd, 0, size)

    def _sweep(self, prefix: str, keep: str = "") -> None:
        """Remove files of ours that nobody uses."""
        pattern = re.compile(f"{re.escape(prefix)}([A-Za-z0-9_]+-)?[0-9a-f]{{{2 * _DIGEST_BYTES}}}")
        try:
            names = os.listdir(self._directory)
        except OSError:
            return
        for name in names:
            if name != keep and pattern.fullmatch(name):
                _remove_if_unused(self._directory / name)

    @override
    def close(self) -> None:
        """Remove what processes that died have left."""
        self._sweep(f"{_PREFIX}-")


class _SharedCopy(HostCopy):
    """Weights in a file that is locked for as long as they are used."""

    def __init__(self, path: Path, fd: int, arrays: Sequence[Array]) -> None:
        self._path = path
        self._fd = fd
        self._arrays = arrays

    @property
    @override
    def arrays(self) -> Sequence[Array]:
        return self._arrays

    @override
    def release(self, *, is_unused: bool) -> None:
        # The memory goes with the last mapping, of whichever process; at once when nobody reads it.
        self._arrays = ()
        if _try_lock(self._fd, fcntl.LOCK_EX) and _is_named(self._fd, self._path):
            with suppress(OSError):  # of another user, in a sticky directory
                os.unlink(self._path)
                if is_unused:
                    _discard(self._fd)
        os.close(self._fd)


def _discard(fd: int) -> None:
    """Give the memory of a file back, whoever maps it: all reads are zeros.

    XLA lets go of an array that it used in place only at its next call.

    Raises:
        OSError: the file system cannot.
    """
    with mmap.mmap(fd, 0) as block:
        block.madvise(mmap.MADV_REMOVE)


def _write(fd: int, content: bytes | memoryview, offset: int) -> None:
    done, view = 0, memoryview(content)
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], offset + done)


def _remove_if_unused(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        if _try_lock(fd, fcntl.LOCK_EX) and _is_named(fd, path):
            with suppress(OSError):
                os.unlink(path)
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_complete(fd: int, digest: bytes, size: int) -> bool:
    return os.fstat(fd).st_size == size and os.pread(fd, _HEADER.size, 0) == _HEADER.pack(
        _MAGIC, 1, digest, size
    )


def _views(fd: int, size: int, weights: WeightsFile) -> list[Array]:
    """Read-only arrays in the file, which is mapped for as long as one of them lives."""
    block = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    memory = np.frombuffer(block, np.uint8)
    return [
        memory[start : start + tensor.nbytes].view(tensor.dtype.numpy).reshape(tensor.shape)
        for tensor, start in zip(weights.arguments, _starts(weights), strict=True)
    ]


def _starts(weights: WeightsFile) -> list[int]:
    starts, at = [], _DATA_START
    for tensor in weights.arguments:
        starts.append(at)
        at += HostArena.needed_bytes((tensor.nbytes,))
    return starts


def _stem(model: str) -> str:
    name = re.sub("[^A-Za-z0-9_]", "_", model)[:_NAME_CHARACTERS]
    return f"{_PREFIX}-{name}"


def _digest(weights: WeightsFile, token: str) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    digest.update(f"{_MAGIC:x}|{token}|{weights.is_legacy}".encode())
    for tensor in weights.arguments:
        extents = ",".join(map(str, tensor.shape))
        digest.update(f"|{tensor.name!r}:{tensor.dtype.token}:{extents}".encode())
    return digest.digest()
