"""Putting the files of a bundle on the disk: all of them at once, or none.

What lives here: a directory that is filled beside its place. What does not: what is in the files
(`hloserve.bundle.writing`), and taking the place (`hloserve.bundle.replacing`). Any thread, but one
writer per bundle.

Rules.
1. What a crash leaves has a name that discovery skips.
2. The next writer in the same repository removes it (`hloserve.bundle.abandoned`).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hloserve.bundle.abandoned import make_temporary, remove_abandoned
from hloserve.bundle.disk import DISK, Chunks, Disk
from hloserve.bundle.manifest import MANIFEST_FILE
from hloserve.bundle.replacing import Rename, place_new, rename_by_kernel, replace_directory
from hloserve.core.errors import BundleProblem

__all__ = ["place_bundle"]

_EXISTS = "exists already; pass overwrite=True to replace it in one step"


def place_bundle(
    target: Path,
    files: Mapping[str, Chunks],
    *,
    overwrite: bool,
    check: Callable[[Path], object] | None = None,
    rename: Rename = rename_by_kernel,
    disk: Disk = DISK,
) -> None:
    """Write a directory of files; parents are made.

    Args:
        target: where it will be; absolute.
        files: bare name to bytes.
        overwrite: replace an existing bundle.
        check: looks at the finished directory before it takes its place; what it raises is let
            through, and nothing is left.
        rename: takes the place; what a file system knows of rules for it.
        disk: makes all other changes.

    Raises:
        BundleProblem: something else is there, or the disk failed; what was there still is.
    """
    is_taken = os.path.lexists(target)
    if is_taken and not overwrite:
        raise BundleProblem(target, _EXISTS)
    if is_taken and not target.is_dir():
        raise BundleProblem(target, "is in the way and not a directory; move it away")
    if is_taken and not _is_replaceable(target):
        raise BundleProblem(
            target, f"is a directory without {MANIFEST_FILE}, so not a bundle; move it away"
        )
    try:
        disk.make_directory(target.parent)
        remove_abandoned(target.parent, disk)
        with make_temporary(target, disk) as temporary:
            for name, chunks in files.items():
                disk.write_new(temporary / name, chunks)
            disk.sync_directory(temporary)
            if check is not None:
                check(temporary)
            if is_taken:
                replace_directory(temporary, target, rename, disk)
            else:
                _place_new(temporary, target, rename, disk)
    except OSError as error:
        raise BundleProblem(target, f"cannot be written: {error.strerror or error}") from error


def _is_replaceable(target: Path) -> bool:
    """True for a bundle and for an empty directory: nothing else is ours to remove."""
    return os.path.lexists(target / MANIFEST_FILE) or not any(target.iterdir())


def _place_new(temporary: Path, target: Path, rename: Rename, disk: Disk) -> None:
    try:
        place_new(temporary, target, rename, disk)
    except FileExistsError as error:  # it appeared while we wrote
        raise BundleProblem(target, _EXISTS) from error
