"""Objects of shared memory for tests, in the real directory, and removed again."""

import mmap
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from hloserve.wire.shared_memory import SHARED_MEMORY_DIR


class SharedObject:
    """A shared-memory object of its own name, mapped here as `bytes`."""

    def __init__(self, nbytes: int, directory: Path = SHARED_MEMORY_DIR) -> None:
        self.key = f"hloserve-test-{os.getpid()}-{secrets.token_hex(6)}"
        self.path = directory / self.key
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._fd, nbytes)
        self.bytes = np.frombuffer(mmap.mmap(self._fd, nbytes), np.uint8)

    def resize(self, nbytes: int) -> None:
        """Cut it, or make it longer; after a cut, `bytes` must not be touched."""
        os.ftruncate(self._fd, nbytes)

    def close(self) -> None:
        """Remove it."""
        os.close(self._fd)
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def mappings_of(key: str, pid: int | str = "self") -> int:
    """How many mappings of an object a process has."""
    return Path(f"/proc/{pid}/maps").read_text().count(f"/{key}")
