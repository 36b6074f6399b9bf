"""Regions of POSIX shared memory: named objects, what part of them is used, and its bounds.

What lives here: finding and opening an object that a client made, and reading and writing a region
of it. What does not: copying itself (`hloserve.wire.mapped_memory`), names of regions and who uses
them (`hloserve.server.shared_memory`), and making objects (`hloserve.client.shared_memory`).

Rules.
1. A key names a regular file directly in the directory of shared memory, on its file system, and
   nothing else: no path, no link, no pipe that would block whoever opens it.
2. Nothing is read or written outside of the part that was registered.
3. Objects belong to whoever made them: they are never created, resized or removed here.

Source: shm_open(3), shm_overview(7).
"""

import os
import stat
from pathlib import Path

import numpy as np

from hloserve.core.errors import BadRequest, RegionCutShort, RegionNotRegistered
from hloserve.core.requests import Placement
from hloserve.core.tensors import Array
from hloserve.wire.mapped_memory import MappedMemory, MemoryClosed, MemoryCut

__all__ = ["SHARED_MEMORY_DIR", "Region", "exists", "open_region"]

SHARED_MEMORY_DIR = Path("/dev/shm")

_INT64_MAX = 2**63 - 1
_LONGEST_KEY_BYTES = 255


class Region:
    """A registered part of a shared-memory object.

    Attributes:
        name: what tensors call it.
        key: the object's name, as it was given.
        offset: where the region begins in the object.
        byte_size: its length.
        owner_uid: the user that the object belongs to.

    Threading: any thread may read and write; one owner closes.
    """

    __slots__ = ("_memory", "byte_size", "key", "name", "offset", "owner_uid")

    def __init__(
        self, name: str, key: str, offset: int, byte_size: int, owner_uid: int, memory: MappedMemory
    ) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.owner_uid = owner_uid
        self._memory = memory

    @property
    def is_mapped(self) -> bool:
        """False once closed and no longer copied."""
        return self._memory.is_mapped

    def check_bounds(self, tensor: str, placement: Placement) -> None:
        """Check that a place lies inside.

        Args:
            tensor: what shall be there, for the message: ``input 'x'``.
            placement: its offset and size.

        Raises:
            BadRequest: it is not all inside.
        """
        _, offset, nbytes = placement
        if not (0 <= offset <= self.byte_size and 0 <= nbytes <= self.byte_size - offset):
            raise BadRequest(
                f"{tensor}: {nbytes} bytes at offset {offset} are not inside shared memory region"
                f" {self.name!r} of {self.byte_size} bytes"
            )

    def read(self, offset: int, target: Array) -> None:
        """Fill a contiguous array with bytes of the region; the caller has checked the bounds.

        Raises:
            RegionCutShort: the object is shorter than it was.
            RegionNotRegistered: the region was closed.
        """
        assert target.flags.c_contiguous, "bytes are read into contiguous memory"
        try:
            self._memory.copy_out(offset, target.ctypes.data, target.nbytes)
        except MemoryCut:
            raise RegionCutShort(self.name) from None
        except MemoryClosed:
            raise RegionNotRegistered(self.name) from None

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes into the region; the caller has checked the bounds.

        Raises:
            RegionCutShort: the object is shorter than it was.
            RegionNotRegistered: the region was closed.
        """
        source = np.frombuffer(data, np.uint8)
        try:
            self._memory.copy_in(offset, source.ctypes.data, source.nbytes)
        except MemoryCut:
            raise RegionCutShort(self.name) from None
        except MemoryClosed:
            raise RegionNotRegistered(self.name) from None

    def close(self) -> None:
        """Let go of the memory, after the copies under way. Idempotent."""
        self._memory.close()


def open_region(
    name: str, key: str, offset: int, byte_size: int, directory: Path = SHARED_MEMORY_DIR
) -> Region:
    """Open a part of an existing object.

    Args:
        name: what tensors will call it.
        key: the object's name, with or without the leading slash.
        offset: where the part begins.
        byte_size: its length, above 0.
        directory: where objects are.

    Raises:
        BadRequest: there is no such object, it is none, or the part is not inside; the message
            names the region.
    """
    role = f"shared memory region {name!r}"
    if not name:
        raise BadRequest("a shared memory region needs a name")
    if not 0 <= offset <= _INT64_MAX:
        raise BadRequest(f"{role}: offset is {offset}; it must be from 0 to 2**63 - 1")
    if not 0 < byte_size <= _INT64_MAX:
        raise BadRequest(f"{role}: byte_size is {byte_size}; it must be from 1 to 2**63 - 1")
    try:
        fd = _open(key, os.O_RDWR, directory)
        try:
            found = os.fstat(fd)
            if byte_size > found.st_size - offset:
                raise BadRequest(
                    f"{role}: {byte_size} bytes at offset {offset} are more than the object {key!r}"
                    f" has, {found.st_size}"
                )
            memory = MappedMemory(fd, offset, byte_size)
        finally:
            os.close(fd)
    except OSError as error:
        raise BadRequest(
            f"{role}: shared memory object {key[:300]!r} cannot be opened: {error.strerror}"
        ) from None
    return Region(name, key, offset, byte_size, found.st_uid, memory)


def exists(key: str, directory: Path = SHARED_MEMORY_DIR) -> bool:
    """True when there is such an object and it may be read."""
    try:
        os.close(_open(key, os.O_RDONLY, directory))
    except (OSError, BadRequest):
        return False
    return True


def _open(key: str, mode: int, directory: Path) -> int:
    """Open the object of a key, and nothing else.

    Raises:
        BadRequest: the key is no name of an object, or something else bears the name.
        OSError: it cannot be opened.
    """
    name = key.removeprefix("/")
    encoded = name.encode("utf-8", "surrogateescape")
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(encoded) > _LONGEST_KEY_BYTES:
        raise BadRequest(
            f"shared memory key {key[:300]!r} is no name of an object: one name of 1 to 255 bytes,"
            " with or without a slash in front, without others"
        )
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(encoded, flags, dir_fd=place)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_dev != os.fstat(place).st_dev:
            os.close(fd)
            raise BadRequest(f"shared memory key {key!r} names something that is no shared memory")
    finally:
        os.close(place)
    return fd
