"""Where a bundle will be: whether it can be written there, before the hours of a large export.

What lives here: name, what is in the way, rights and space. What does not: writing
(`hloserve.bundle.writing`). Makes an empty directory for a moment, and leaves nothing.
"""

import os
import secrets
import shutil
from pathlib import Path

from hloserve.bundle.fingerprint import TEMPORARY_MARK
from hloserve.bundle.manifest import MANIFEST_FILE
from hloserve.core.units import format_bytes

__all__ = ["check_destination", "check_space"]

_LONGEST_NAME_BYTES = 255


def check_destination(directory: Path, *, overwrite: bool) -> list[str]:
    """What keeps a bundle from being written to a directory, one sentence each."""
    name_bytes = len(os.fsencode(directory.name))
    if name_bytes > _LONGEST_NAME_BYTES:
        return [
            f"dir: its last part is the name of the model, and has {name_bytes} bytes; file systems"
            f" take {_LONGEST_NAME_BYTES}"
        ]
    if "\0" in str(directory):
        return [f"dir: {str(directory)!r} holds a null character, and cannot be written"]
    try:
        return _in_the_way(directory, overwrite=overwrite) or _try_to_write(directory)
    except OSError as error:
        return [f"dir: {directory} cannot be written: {error.strerror or error}"]


def check_space(directory: Path, needed_bytes: int) -> list[str]:
    """Whether the disk has room for so many bytes; a finding when it has not."""
    try:
        free_bytes = shutil.disk_usage(_existing(directory.parent)).free
    except OSError:
        return []
    if needed_bytes <= free_bytes:
        return []
    return [
        f"dir: the bundle takes {format_bytes(needed_bytes)}, and {directory.parent} has"
        f" {format_bytes(free_bytes)} left; make room, or choose another place"
    ]


def _in_the_way(directory: Path, *, overwrite: bool) -> list[str]:
    if not os.path.lexists(directory):
        return []
    if not overwrite:
        return [
            f"dir: {directory} exists already; pass overwrite=True to replace it in one step",
        ]
    if not directory.is_dir():
        return [f"dir: {directory} is in the way and not a directory; move it away"]
    if not os.path.lexists(directory / MANIFEST_FILE) and any(directory.iterdir()):
        return [
            f"dir: {directory} is a directory without {MANIFEST_FILE}, so not a bundle; move it"
            " away"
        ]
    return []


def _try_to_write(directory: Path) -> list[str]:
    parent = _existing(directory.parent)
    if not parent.is_dir():
        return [f"dir: {parent} is in the way and not a directory; choose another place"]
    trial = parent / f".trial{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}"
    trial.mkdir()
    trial.rmdir()
    return []


def _existing(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path
