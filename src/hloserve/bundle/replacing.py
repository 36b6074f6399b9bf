"""Putting a finished directory in the place of its name, in one step.

What lives here: the renames. What does not: what is in the directory (`hloserve.bundle.writing`).
Linux only: `renameat2` is called through ctypes, because Python has no name for it. Any thread.

Rule: at no instant is a half-written directory under the name. Where the file system can exchange
two names, there is no instant without the name either. Where it cannot, the old directory waits
under a temporary name between two renames; a crash there loses neither directory, only the name.
"""

import ctypes
import errno
import os
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from hloserve.bundle.disk import DISK, Disk

__all__ = ["Rename", "RenameRule", "place_new", "rename_by_kernel", "replace_directory"]

_AT_FDCWD = -100
_UNSUPPORTED = frozenset((errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP))


class RenameRule(IntEnum):
    """What to do with the target of a rename; values are the kernel's flags."""

    MUST_BE_FREE = 1
    EXCHANGE = 2


class Rename(Protocol):
    """A rename with a rule; False when kernel or file system do not know the rule."""

    def __call__(self, source: Path, target: Path, rule: RenameRule) -> bool: ...


def rename_by_kernel(source: Path, target: Path, rule: RenameRule) -> bool:
    """Call renameat2.

    Raises:
        OSError: the rename failed for another reason than the rule.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # pragma: no cover  # a libc without it
        return False
    names = os.fsencode(source), os.fsencode(target)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(rule)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


def place_new(
    finished: Path, target: Path, rename: Rename = rename_by_kernel, disk: Disk = DISK
) -> None:
    """Rename a directory to a name that must be free.

    Raises:
        FileExistsError: the name is taken, be it by an empty directory.
        OSError: the rename failed.
    """
    disk.announce(f"rename {finished.name} to {target.name}, which must be free")
    if not rename(finished, target, RenameRule.MUST_BE_FREE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        disk.rename_directory(finished, target)
    disk.sync_directory(target.parent)


def replace_directory(
    finished: Path, target: Path, rename: Rename = rename_by_kernel, disk: Disk = DISK
) -> None:
    """Rename a directory to a name that is taken, and remove what had the name before.

    A symbolic link that had the name is removed; what it points to stays.

    Raises:
        OSError: a rename failed; the old directory still has the name.
    """
    retired = finished
    disk.announce(f"exchange {finished.name} and {target.name}")
    if not rename(finished, target, RenameRule.EXCHANGE):
        retired = finished.with_name(finished.name + "-old")
        disk.rename_directory(target, retired)
        try:
            disk.rename_directory(finished, target)
        except OSError:
            disk.rename_directory(retired, target)
            raise
    disk.sync_directory(target.parent)
    if retired.is_symlink():
        disk.remove(retired)
    else:
        # What cannot be removed keeps a name that discovery skips.
        disk.remove_tree(retired)
