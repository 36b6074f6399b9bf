"""Compiled programs on disk, so that a warm start compiles nothing.

What lives here: one directory of entries: reading, writing, and keeping it small. What does not:
what a compiled program is and what its key depends on (`Backend.cache_key`), and which directory
(`hloserve.models.loader`).

Rules.
1. An entry is a file named by its key, written under another name and renamed, so that workers
   share a directory without a lock: whoever is last wins, and both wrote the same.
2. An entry is checked against its own digest before the compiler's library sees a byte of it. What
   does not fit is removed, and is a miss.
3. No failure here fails a load: a cache that cannot be read or written is no cache.
4. Entries are machine code: whoever may write the directory runs code in the server, as whoever
   writes a bundle's `model.py` does.

Entry: magic, format version, length of the payload, SHA-256 of key and payload, payload.
"""

import errno
import hashlib
import logging
import os
import secrets
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from hloserve.bundle.disk import DISK, Disk
from hloserve.bundle.files import read_bounded
from hloserve.bundle.fingerprint import TEMPORARY_MARK
from hloserve.core.errors import BackendFailed
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend, Executable, Program

__all__ = ["Compiled", "ExecutableCache", "compile_cached"]

log = logging.getLogger(__name__)

_MAGIC = b"HLOSEXE\x01"
_HEAD = struct.Struct("<8sQ32s")
_SUFFIX = ".executable"
_MAX_PAYLOAD_BYTES = 4 << 30
_ABANDONED_S = 3600.0
"""After this long, an unfinished file is of a process that died."""


@dataclass(frozen=True, slots=True)
class ExecutableCache:
    """A directory of compiled programs.

    Attributes:
        directory: made when the first entry is written; the one above it must be there.
        limit_bytes: most bytes of all entries; the least recently used go first, when one is added.
        told: what was logged already.
        disk: adds and evicts entries.

    Threading: any thread, and several processes.
    """

    directory: Path
    limit_bytes: int
    disk: Disk = DISK
    told: set[str] = field(default_factory=set, compare=False, repr=False)

    def read(self, key: str) -> bytes | None:
        """The payload of an entry; None when there is none that can be trusted."""
        path = self._path(key)
        try:
            content = read_bounded(path, _MAX_PAYLOAD_BYTES + _HEAD.size)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell("executable_cache_unreadable", error)
            return None
        payload = _unpack(key, content)
        if payload is None:
            self.remove(key, "it is damaged")
            return None
        with suppress(OSError):  # a read-only mount: then nothing is evicted either
            os.utime(path)
        return payload

    def has(self, key: str) -> bool:
        """True when there is an entry, good or not."""
        return self._path(key).exists()

    def write(self, key: str, payload: bytes) -> None:
        """Add an entry, and remove the least recently used ones if they are too many."""
        if len(payload) > min(_MAX_PAYLOAD_BYTES, self.limit_bytes):
            log_event(
                log, "program_not_kept", entry=key, payload_bytes=len(payload),
                limit_bytes=self.limit_bytes, setting="runtime.executable_cache_bytes",
            )  # fmt: skip
            return
        path = self._path(key)
        temporary = path.with_name(f"{key}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
        head = _HEAD.pack(_MAGIC, len(payload), _digest(key, payload))
        try:
            self.disk.make_directory(self.directory, parents=False)
            try:
                self.disk.write_new(temporary, (head, payload))
                self.disk.rename(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._make_room(path)
        except OSError as error:
            self._tell("executable_cache_unwritable", error)

    def remove(self, key: str, reason: str) -> None:
        """Take an entry out; it is compiled again."""
        log_event(
            log, "executable_cache_healed", level=logging.WARNING, directory=str(self.directory),
            entry=key, reason=reason,
        )  # fmt: skip
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.directory / (key + _SUFFIX)

    def _make_room(self, newest: Path) -> None:
        entries, total = [], 0
        now = time.time()
        with os.scandir(self.directory) as found:
            for each in found:
                with suppress(FileNotFoundError):  # another worker was quicker
                    state = each.stat(follow_symlinks=False)
                    if TEMPORARY_MARK in each.name and now - state.st_mtime > _ABANDONED_S:
                        self.disk.remove(Path(each.path))
                    elif each.name.endswith(_SUFFIX):
                        entries.append((state.st_mtime_ns, each.path, state.st_size))
                        total += state.st_size
        for _, path, size in sorted(entries):
            if total <= self.limit_bytes:
                return
            if path != str(newest):
                self.disk.remove(Path(path))
                total -= size

    def _tell(self, event: str, error: OSError) -> None:
        """Log once per load, not per program."""
        if event in self.told:
            return
        self.told.add(event)
        is_expected = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        log_event(
            log, event, level=logging.INFO if is_expected else logging.WARNING,
            directory=str(self.directory), reason=error.strerror or str(error),
            setting="runtime.executable_cache_dir",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """An executable, and where it came from.

    Attributes:
        executable: for the device.
        key: names what it was compiled from.
        is_restored: it was there, and nothing was compiled.
    """

    executable: Executable
    key: str
    is_restored: bool


def compile_cached(
    backend: Backend,
    program: Program,
    model: str,
    cache: ExecutableCache | None,
    known: Mapping[str, Executable] = MappingProxyType({}),
) -> Compiled:
    """Restore a compiled program, or compile and keep it.

    Args:
        backend: the device.
        program: of static types.
        model: whose it is, for messages.
        cache: None keeps nothing.
        known: what is compiled already, by key; kept in the cache too.

    Raises:
        BackendFailed: the compiler refused the program.
    """
    key = backend.cache_key(program)
    if key in known:
        _keep(backend, known[key], key, cache)
        return Compiled(known[key], key, is_restored=True)
    if cache is None:
        return Compiled(backend.compile(program, model), key, is_restored=False)
    payload = cache.read(key)
    if payload is not None:
        try:
            return Compiled(backend.restore(payload, program, model), key, is_restored=True)
        except BackendFailed as error:
            cache.remove(key, error.reason)
    executable = backend.compile(program, model)
    _keep(backend, executable, key, cache)
    return Compiled(executable, key, is_restored=False)


def _keep(
    backend: Backend, executable: Executable, key: str, cache: ExecutableCache | None
) -> None:
    if cache is None or cache.has(key):
        return
    serialised = backend.serialise(executable)
    if serialised is not None:
        cache.write(key, serialised)


def _digest(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return digest.digest()


def _unpack(key: str, content: bytes) -> bytes | None:
    if len(content) < _HEAD.size:
        return None
    magic, length, digest = _HEAD.unpack_from(content)
    payload = content[_HEAD.size :]
    if magic != _MAGIC or length != len(payload) or digest != _digest(key, payload):
        return None
    return payload
