"""What tells one state of a bundle directory from another, without reading a file.

What lives here: `Fingerprint` and taking one. What does not: what follows from a difference
(`hloserve.models.changes`). Any thread.

Rules.
1. Every file below the bundle counts, by name, size, modification time, inode, mode and owner,
   except what servers write themselves (`.cache`), Python's caches, and names of unfinished files.
2. Links are followed: a file that is swapped behind a link is a change.
3. What cannot be looked at counts as such, so that its mending is a change too.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

__all__ = ["CACHE_DIRECTORY", "MAX_FILES", "TEMPORARY_MARK", "Fingerprint", "take_fingerprint"]

CACHE_DIRECTORY = ".cache"
"""Where servers keep what they derive from a bundle; deleting it is always safe."""

TEMPORARY_MARK = ".tmp-"
"""Part of every name that a writer has not finished."""

MAX_FILES = 10_000
"""Files looked at per bundle; a directory with more of them is not a bundle but an accident."""

_IGNORED = {CACHE_DIRECTORY, "__pycache__"}

_File: TypeAlias = tuple[str, int, int, int, int]
"""Path below the bundle, size, modification time in ns, inode, and who may read it (mode and owner
in one number); -1 for what cannot be known."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One state of a bundle.

    Attributes:
        identity: device and inode of the directory, behind links: it stays when it is renamed.
        files: sorted by path.
    """

    identity: tuple[int, int]
    files: tuple[_File, ...]


def take_fingerprint(bundle: Path) -> Fingerprint | None:
    """Look at a bundle directory.

    Returns:
        None when there is no such directory, or no more.
    """
    identity = (-1, -1)
    files: list[_File] = []
    try:
        found = os.stat(bundle)
        identity = found.st_dev, found.st_ino
        _collect(str(bundle), "", files, {identity})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        files.append(("", -1, -1, error.errno or -1, -1))
    return Fingerprint(identity, tuple(sorted(files)))


def _collect(directory: str, prefix: str, files: list[_File], seen: set[tuple[int, int]]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name in _IGNORED or TEMPORARY_MARK in name:
                continue
            if len(files) >= MAX_FILES:
                return
            _add(entry, prefix + name, files, seen)


def _add(
    entry: os.DirEntry[str], path: str, files: list[_File], seen: set[tuple[int, int]]
) -> None:
    try:
        if entry.is_dir():
            found = entry.stat()
            identity = found.st_dev, found.st_ino
            if identity not in seen:
                seen.add(identity)
                _collect(entry.path, path + "/", files, seen)
            return
        found = entry.stat()
        access = found.st_uid << 16 | found.st_mode
        files.append((path, found.st_size, found.st_mtime_ns, found.st_ino, access))
    except OSError as error:  # gone meanwhile, a link that leads nowhere, or not ours to read
        files.append((path, -1, -1, error.errno or -1, -1))
