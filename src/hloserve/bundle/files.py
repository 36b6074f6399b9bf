"""The door to files that are read: regular files only, sizes bounded before anything is read.

What lives here: opening and reading files that others wrote. What does not: writing
(`hloserve.bundle.disk`) and what the bytes mean. `OSError` leaves this module as it is; the callers
say which file of the bundle it was. Any thread.

Rules.
1. Nothing but a regular file is read: a fifo would block for ever, a device has no size.
2. Descriptors are not inherited by child processes.
"""

import os
import stat
from pathlib import Path

__all__ = ["open_regular", "read_bounded"]


def open_regular(path: Path) -> int:
    """Open a regular file for reading, following symbolic links.

    Returns:
        A descriptor that the caller closes.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which.
    """
    # Non-blocking: opening a fifo must return, so that it can be refused. Regular files ignore it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise OSError(0, f"it is {kind}, expected a regular file", str(path))
    return fd


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Read a whole regular file of at most `limit_bytes`.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    with open(open_regular(path), "rb") as file:
        # What read is asked for it allocates, so ask for what is there. The file may grow, and
        # those of /proc have no size: go on to one byte more than allowed, to tell "too large".
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > limit_bytes else file.read(size + 1)
        if len(content) > size:
            content += file.read(limit_bytes + 1 - len(content))
    if max(size, len(content)) > limit_bytes:
        raise OSError(0, f"it is larger than {limit_bytes} bytes", str(path))
    return content
