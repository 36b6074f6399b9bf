"""One process at a time changes a bundle: a lock in its `.cache` directory.

What lives here: taking and giving back. What does not: what is done meanwhile
(`hloserve.bundle.migration`). Any thread; threads of one process exclude each other too.

Rules.
1. The kernel holds the lock for an open file, so it is free again when its process dies, however.
2. The file stays. To remove it would let two processes lock two files of the same name.
3. `.cache` may be deleted by anybody at any time. The lock is then taken again on the new file;
   two processes that met in this way are told apart by `Lock.is_held`.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hloserve.bundle.disk import DISK, Disk
from hloserve.bundle.fingerprint import CACHE_DIRECTORY

__all__ = ["LOCK_FILE", "Lock", "bundle_lock"]

LOCK_FILE = "migration.lock"


class Lock:
    """A lock that is held.

    Attributes:
        path: its file.
        fd: the descriptor that holds it.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @property
    def is_held(self) -> bool:
        """False when somebody has deleted its file, so that others may hold another one."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self.fd))


@contextmanager
def bundle_lock(
    bundle: Path, *, on_wait: Callable[[], object] | None = None, disk: Disk = DISK
) -> Iterator[Lock]:
    """Hold the lock of a bundle for the length of the block; wait for whoever holds it.

    Args:
        bundle: its directory.
        on_wait: called once when somebody else holds it.
        disk: makes the directory and the file.

    Raises:
        OSError: the directory or the file cannot be made.
    """
    lock = _take(bundle / CACHE_DIRECTORY / LOCK_FILE, on_wait, disk)
    while not lock.is_held:
        os.close(lock.fd)
        lock = _take(lock.path, None, disk)
    try:
        yield lock
    finally:
        os.close(lock.fd)


def _take(path: Path, on_wait: Callable[[], object] | None, disk: Disk) -> Lock:
    disk.make_directory(path.parent, parents=False)
    disk.announce(f"open {path.name}")
    # Links are not followed: what `.cache` holds may come from whoever made the bundle.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    return Lock(path, fd)
