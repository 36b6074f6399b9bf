"""Putting a finished directory in the place of its name, in one step.

What lives here: the renames. What does not: what is in the directory (`hloserve.bundle.writing`).
Linux only: `renameat2` is called through ctypes, because Python has no name for it. Any thread.

Rule: at no instant is a half-written directory under the name. Where the file system can exchange
two names there is no instant without the name either; where it cannot, the old directory waits
under a temporary name for the moment between two renames, so a crash there loses neither.
"""

import ctypes
import errno
import os
import shutil
from pathlib import Path

from hloserve.bundle.files import sync_directory

__all__ = ["place_new", "replace_directory"]

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = frozenset((errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP))


def place_new(finished: Path, target: Path) -> None:
    """Rename a directory to a name that must be free.

    Raises:
        FileExistsError: the name is taken, be it by an empty directory.
        OSError: the rename failed.
    """
    if not _rename(finished, target, _NOREPLACE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(finished, target)
    sync_directory(target.parent)


def replace_directory(finished: Path, target: Path) -> None:
    """Rename a directory to a name, and remove what had the name before.

    A symbolic link that had the name is removed; what it points to stays.

    Raises:
        OSError: a rename failed; the old directory still has the name.
    """
    if not os.path.lexists(target):
        place_new(finished, target)
        return
    retired = finished
    if not _rename(finished, target, _EXCHANGE):
        retired = finished.with_name(finished.name + "-old")
        os.rename(target, retired)
        try:
            os.rename(finished, target)
        except OSError:
            os.rename(retired, target)
            raise
    sync_directory(target.parent)
    if retired.is_symlink():
        retired.unlink()
    else:
        # What cannot be removed keeps a name that discovery skips.
        shutil.rmtree(retired, ignore_errors=True)


def _rename(source: Path, target: Path, flags: int) -> bool:
    """Call renameat2; False when the kernel or the file system does not know the flag."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # another libc
        return False
    names = os.fsencode(source), os.fsencode(target)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(flags)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))
