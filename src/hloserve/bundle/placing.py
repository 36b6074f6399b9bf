"""Putting the files of a bundle on the disk: all of them at once, or none.

What lives here: a directory that is filled beside its place. What does not: what is in the files
(`hloserve.bundle.writing`), and taking the place (`hloserve.bundle.replacing`). Any thread, but one
writer per bundle.

Rule: what a crash leaves has a name that discovery skips.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from hloserve.bundle.disk import DISK, Chunks, Disk
from hloserve.bundle.fingerprint import TEMPORARY_MARK
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
    rename: Rename = rename_by_kernel,
    disk: Disk = DISK,
) -> None:
    """Write a directory of files; parents are made.

    Args:
        target: where it will be; absolute.
        files: bare name to bytes.
        overwrite: replace an existing bundle.
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
        temporary = _make_temporary(target, disk)
        try:
            for name, chunks in files.items():
                disk.write_new(temporary / name, chunks)
            disk.sync_directory(temporary)
            if is_taken:
                replace_directory(temporary, target, rename, disk)
            else:
                _place_new(temporary, target, rename, disk)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
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


def _make_temporary(target: Path, disk: Disk) -> Path:
    # mkdir and not mkdtemp: the bundle's mode is the umask's business, servers have other users.
    name = f".{target.name[:32]}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
    temporary = target.with_name(name)
    disk.make_directory(temporary)
    return temporary
