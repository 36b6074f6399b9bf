"""Unfinished bundles: making the directory of one, and removing those of writers that died.

What lives here: their names, the lock that tells whether somebody still writes, and clearing up.
What does not: what is written (`hloserve.bundle.placing`). Any thread.

Rules.
1. A writer holds a lock of its directory. The kernel frees it when the process ends, however.
2. A directory whose lock is free is abandoned. On file systems without locks it is when nothing in
   it has changed for an hour.
3. A directory beside one of the same name and ``-old`` stays: a crash between two renames left
   them, and they are the bundle.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hloserve.bundle.disk import Disk
from hloserve.bundle.fingerprint import TEMPORARY_MARK

__all__ = ["make_temporary", "remove_abandoned"]

_NAME = re.compile(rf"\..*{re.escape(TEMPORARY_MARK)}\d+-[0-9a-f]{{8}}", re.DOTALL)
_ABANDONED_S = 3600.0
_MOST_TRIES = 10


@contextmanager
def make_temporary(target: Path, disk: Disk) -> Iterator[Path]:
    """Make a directory beside a bundle's place; it is gone after the block, unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    temporary, fd = _make_locked(target, disk)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(fd)


def remove_abandoned(repository: Path, disk: Disk) -> None:
    """Remove the unfinished bundles in a directory whose writers have died, as far as possible."""
    with suppress(OSError):
        names = set(os.listdir(repository))
        for name in sorted(names):
            if _NAME.fullmatch(name) and f"{name}-old" not in names:
                _remove_if_abandoned(repository / name, disk)


def _make_locked(target: Path, disk: Disk) -> tuple[Path, int]:
    for _ in range(_MOST_TRIES):
        # mkdir and not mkdtemp: the bundle's mode is the umask's business, servers have other
        # users.
        name = f".{target.name[:32]}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
        temporary = target.with_name(name)
        disk.make_directory(temporary)
        with suppress(FileNotFoundError):  # another writer took it for abandoned just now
            fd = _open(temporary)
            if _try_lock(fd) is not False and os.path.lexists(temporary):
                return temporary, fd
            os.close(fd)
    raise OSError(f"its unfinished directory is removed again and again in {target.parent}")


def _remove_if_abandoned(directory: Path, disk: Disk) -> None:
    with suppress(OSError):
        fd = _open(directory)
        try:
            is_free = _try_lock(fd)
            if is_free or (is_free is None and _idle_s(directory) > _ABANDONED_S):
                disk.remove_tree(directory)
        finally:
            os.close(fd)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _try_lock(fd: int) -> bool | None:
    """Lock an open directory; False when somebody else has, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _idle_s(directory: Path) -> float:
    """Seconds since something in it changed."""
    newest = directory.stat().st_mtime
    for each in os.scandir(directory):
        newest = max(newest, each.stat(follow_symlinks=False).st_mtime)
    return time.time() - newest
