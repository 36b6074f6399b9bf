"""Files of keys and tokens: reading them carefully, and noticing that they changed.

What lives here: what a file must be before it is trusted, and when a change of it is over. What
does not: what is in it (`hloserve.server.tokens`, `hloserve.server.tls`). Any thread.
"""

import logging
import os
import stat
from collections.abc import Sequence

from hloserve.core.errors import ConfigProblem
from hloserve.core.logging import log_event

__all__ = ["WatchedFiles", "read_secret"]

log = logging.getLogger("hloserve.server.security")

_MOST_BYTES = 1 << 20


def read_secret(path: str, setting: str, *, is_secret: bool = True) -> bytes:
    """Read a file of which the security of the server depends.

    Args:
        path: the file.
        setting: the setting that names it, for messages.
        is_secret: warn when every user of the machine may read it.

    Raises:
        ConfigProblem: it cannot be read, is no file or a huge one, or every user of the machine may
            change it.
    """
    try:
        # A pipe or a terminal must not hold the server up.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigProblem(path, setting, error.strerror or str(error)) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigProblem(path, setting, "is not a file")
        if mode & stat.S_IWOTH:
            raise ConfigProblem(
                path, setting, "may be changed by every user of this machine; chmod o-w it"
            )
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if is_secret and mode & stat.S_IROTH:
        log_event(
            log, "secret_is_readable", level=logging.WARNING, file=path, setting=setting,
            hint="every user of this machine can read it; chmod o-r it",
        )  # fmt: skip
    if len(data) > _MOST_BYTES:
        raise ConfigProblem(path, setting, f"is larger than {_MOST_BYTES} bytes")
    return data


class WatchedFiles:
    """Notices changes of some files, once they are over.

    Files are often written in place, and a key is not renewed at the same instant as its
    certificate. So a change counts when two looks have found the same. Construct it before the
    files are read, so that no change is missed.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(path for path in paths if path)
        self._taken = self._last = self._look()

    def has_changed(self) -> bool:
        """True when the files are others than last time this was true, and left alone since."""
        now = self._look()
        is_quiet, self._last = now == self._last, now
        if now == self._taken or not is_quiet:
            return False
        self._taken = now
        return True

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_signature, self._paths))


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
