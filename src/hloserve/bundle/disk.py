"""Changes to the disk, each one a step with a name.

What lives here: every call that creates, fills, renames or removes what a bundle is made of. What
does not: reading (`hloserve.bundle.files`), and which steps make a safe order: that is the business
of whoever writes. `OSError` leaves this module as it is. Any thread.

Rules.
1. A step is announced before it is done. Whoever listens may raise `OSError` in its place, or end
   the process: so tests enumerate the places where a disk is full and a process dies.
2. What is written is on the disk before its name counts: files are synced before they are renamed.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["DISK", "Chunks", "Disk"]

Chunks = Iterable[bytes | memoryview]

_PIECE_BYTES = 16 << 20


def _unheard(step: str) -> None:
    """Nobody listens."""


class Disk:
    """The disk.

    Args:
        announce: called with each step before it is done: ``rename a to b``.
    """

    def __init__(self, announce: Callable[[str], object] = _unheard) -> None:
        self.announce = announce

    def make_directory(self, path: Path, *, parents: bool = True) -> None:
        """Make a directory where it is missing.

        Args:
            path: the directory.
            parents: make those above it as well. Not below a bundle, which may have been removed
                meanwhile and must not come back as an empty directory.
        """
        if not path.is_dir():
            self.announce(f"make directory {path.name}")
            path.mkdir(parents=parents, exist_ok=True)

    def write_new(self, path: Path, chunks: Chunks, *, like: os.stat_result | None = None) -> None:
        """Write a file that must not exist yet, and wait until the disk has it.

        Args:
            path: where.
            chunks: its bytes.
            like: a file of the same owner and mode, as far as this process may; None for the
                process's own.
        """
        self.announce(f"create {path.name}")
        with open(path, "xb", buffering=0) as file:
            if like is not None:
                _imitate(file.fileno(), like)
            for chunk in chunks:
                rest = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
                while rest:
                    self.announce(f"write {path.name}")
                    rest = rest[file.write(rest[:_PIECE_BYTES]) :]
            self.announce(f"sync {path.name}")
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of whatever file has it."""
        self.announce(f"rename {source.name} to {target.name}")
        os.replace(source, target)

    def rename_directory(self, source: Path, target: Path) -> None:
        """Give a directory another name; where that is taken, be it by an empty one, who knows."""
        self.announce(f"rename {source.name} to {target.name}")
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must be free; a symbolic link is not followed."""
        self.announce(f"link {source.name} as {target.name}")
        os.link(source, target, follow_symlinks=False)

    def remove(self, path: Path) -> None:
        """Remove a file, where there is one."""
        self.announce(f"remove {path.name}")
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it, as far as that is possible."""
        self.announce(f"remove {path.name}")
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        """Wait until the disk has the names in a directory."""
        self.announce(f"sync directory {path.name}")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


DISK = Disk()
"""The disk, with nobody listening."""


def _imitate(fd: int, like: os.stat_result) -> None:
    # The owner first: changing it clears bits of the mode. Only root may give files away.
    with suppress(PermissionError):
        os.fchown(fd, like.st_uid, like.st_gid)
    os.fchmod(fd, like.st_mode & 0o7777)
