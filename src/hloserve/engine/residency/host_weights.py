"""The weights of a model in the memory of the host, and the file that they are read from again.

What lives here: `WeightsSource`, which keeps the file of a loaded model and gives copies of it, the
seam to the stores that keep such copies, and the store for one process. What does not: the store
for all processes of a node (`hloserve.engine.residency.shared_store`), the format
(`hloserve.bundle.weights`), and who wants a copy when (`hloserve.engine.residency.weight_cache`).

Rules.
1. The file stays open for as long as the model is loaded. A file that another one has replaced, or
   that was removed, is still the model's.
2. A file that was written since the model was loaded is not read: right weights or an error. It is
   looked at before and after it is read.
3. On a device that computes in the memory of the host, a copy is not given back before its buffers.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array
from hloserve.engine.arena import HostArena, load_weights

__all__ = ["FileIdentity", "HostCopy", "HostStore", "PrivateStore", "WeightsSource"]


class HostCopy(Protocol):
    """The weights of a model in the memory of the host."""

    @property
    def arrays(self) -> Sequence[Array]:
        """Read-only, aligned, in argument order, until `release`."""
        ...

    def release(self, *, is_unused: bool) -> None:
        """Give the copy back. Once.

        Args:
            is_unused: nothing reads the arrays any more, so that memory may go at once; else with
                the last reference to them, which a transfer that goes on may hold.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What a file looks like when nobody has written it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    links: int
    mode: int
    owner: int
    group: int

    @classmethod
    def of(cls, fd: int) -> "FileIdentity":
        """Look at an open file.

        Raises:
            OSError: it cannot be looked at.
        """
        s = os.fstat(fd)
        return cls(
            s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_nlink, s.st_mode,
            s.st_uid, s.st_gid,
        )  # fmt: skip

    def why_written(self, now: "FileIdentity") -> str:
        """Say why the file may hold other bytes than before; nothing when it does not.

        The status time changes when a file is written, whatever its writer does to the other time;
        and when it is linked, renamed over, removed or given other permissions, which is seen.
        """
        if now.size != self.size:
            return f"it had {self.size} bytes, it has {now.size}"
        if now.mtime_ns != self.mtime_ns:
            return "it was written"
        if now.ctime_ns == self.ctime_ns:
            return ""
        was = (self.links, self.mode, self.owner, self.group)
        is_explained = was != (now.links, now.mode, now.owner, now.group)
        return "" if is_explained else "its status has changed, as by writing it and its time"

    @property
    def token(self) -> str:
        """Names the content, for whoever has the same file open."""
        return f"{self.device}:{self.inode}:{self.size}:{self.mtime_ns}"


class HostStore(Protocol):
    """Where copies are kept."""

    def acquire(self, model: str, weights: WeightsFile, token: str) -> HostCopy:
        """Make a copy of a file's weights, or join one that is there.

        Args:
            model: whose they are.
            weights: open; read only when there is no copy of it yet.
            token: names the content of the file.

        Raises:
            WeightsProblem: the file cannot be read, or there is no room for a copy.

        Threading: any thread, several at once.
        """
        ...

    def close(self) -> None:
        """Tidy up, after all copies were given back."""
        ...


class PrivateStore(HostStore):
    """Copies in memory of this process."""

    @override
    def acquire(self, model: str, weights: WeightsFile, token: str) -> HostCopy:
        try:
            arena = HostArena(HostArena.needed_bytes(t.nbytes for t in weights.arguments))
        except OSError as error:
            reason = f"the host has no room for {weights.nbytes} bytes of weights: {error.strerror}"
            raise WeightsProblem(weights.path, reason) from error
        return _PrivateCopy(arena, load_weights(weights, arena))

    @override
    def close(self) -> None:
        pass


class _PrivateCopy(HostCopy):
    def __init__(self, arena: HostArena, arrays: Sequence[Array]) -> None:
        self._arena: HostArena | None = arena
        self._arrays = arrays

    @property
    @override
    def arrays(self) -> Sequence[Array]:
        return self._arrays

    @override
    def release(self, *, is_unused: bool) -> None:
        self._arrays = ()
        arena, self._arena = self._arena, None
        if is_unused and arena is not None:
            arena.discard()


class WeightsSource:
    """The weights of one loaded model, to be read as often as they are needed.

    Args:
        model: its name when it was loaded.
        weights: its open file; the source closes it.
        store: where copies are kept.

    Raises:
        WeightsProblem: the file cannot be looked at.

    Threading: any thread, but `close` only when nobody reads.
    """

    def __init__(self, model: str, weights: WeightsFile, store: HostStore) -> None:
        self._model = model
        self._weights = weights
        self._store = store
        self._identity = self._look()
        self.nbytes = HostArena.needed_bytes(tensor.nbytes for tensor in weights.arguments)
        """What the weights take, with the gaps that alignment makes."""

    def read(self) -> HostCopy:
        """Get a copy of the weights.

        Raises:
            WeightsProblem: the file was written since the model was loaded, or cannot be read, or
                the host has no room.
        """
        self._check()
        store = self._store if self.nbytes else PrivateStore()  # nothing to be shared
        copy = store.acquire(self._model, self._weights, self._identity.token)
        try:
            self._check()
        except WeightsProblem:
            copy.release(is_unused=True)
            raise
        return copy

    def _check(self) -> None:
        why = self._identity.why_written(self._look())
        if why:
            raise WeightsProblem(
                self._weights.path,
                f"the file was changed after the model was loaded: {why}; the model has to be"
                " loaded again",
            )

    def _look(self) -> FileIdentity:
        try:
            return FileIdentity.of(self._weights.fd)
        except OSError as error:
            raise WeightsProblem(
                self._weights.path, f"cannot be looked at: {error.strerror}"
            ) from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._weights.close()
