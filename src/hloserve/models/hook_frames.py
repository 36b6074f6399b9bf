"""Tensors between the server and a hook process: bytes in shared memory, descriptions in messages.

What lives here: `SharedBlock`, laying tensors into it, and the messages. What does not: who sends
them (`hloserve.models.hook_processes`) and who answers (`hloserve.models.hook_process`). One thread
per block and side.

Rules.
1. A block belongs to one request at a time; what is read from it is copied.
2. Each side maps as much as the message of the other says there is.
"""

import mmap
import os
from collections.abc import Sequence

import msgspec
import numpy as np

from hloserve.core.dtypes import BYTES, by_token
from hloserve.core.dtypes import of_wire as dtype_of
from hloserve.core.tensors import Array
from hloserve.wire.strings import strings_as_bytes, strings_from_bytes

__all__ = [
    "Answer",
    "Move",
    "Question",
    "Refusal",
    "SharedBlock",
    "Started",
    "StoredTensor",
    "read_tensors",
    "write_tensors",
]

_ALIGNMENT_BYTES = 64


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies in the block.

    Attributes:
        name: its name.
        dtype: the manifest's token of its dtype.
        shape: outermost extent first.
        start: offset of its bytes, row-major; of strings, as the wire has them.
        nbytes: how many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Question(msgspec.Struct, frozen=True, tag=True):
    """Call a hook: ``preprocess`` or ``postprocess``."""

    role: str
    tensors: tuple[StoredTensor, ...]
    block_bytes: int


class Move(msgspec.Struct, frozen=True, tag=True):
    """The bundle was renamed; nothing is answered."""

    bundle: str
    name: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """The hook file has run; `problem` says why it cannot serve, empty when it can."""

    problem: str = ""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What the hook returned, in the order of the specs."""

    tensors: tuple[StoredTensor, ...]
    block_bytes: int


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The hook did not return: it refused the input, or it failed."""

    text: str
    is_callers_fault: bool


class SharedBlock:
    """Anonymous memory that two processes map, which grows as it is needed.

    Args:
        descriptor: of a file in memory, open for as long as the block.

    Attributes:
        descriptor: likewise; -1 when the block is closed.
        nbytes: how much is mapped.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None
        self.nbytes = 0

    def grow(self, needed_bytes: int) -> None:
        """Make room for `needed_bytes`; what is there stays.

        Raises:
            OSError: the machine has no memory for it.
        """
        if needed_bytes > os.fstat(self.descriptor).st_size:
            os.posix_fallocate(self.descriptor, 0, needed_bytes)  # now, not by a signal later
        self.follow(os.fstat(self.descriptor).st_size)

    def follow(self, block_bytes: int) -> None:
        """Map as much as the other side says there is."""
        if block_bytes != self.nbytes:
            self._unmap()
            if block_bytes:
                self._mapped = mmap.mmap(self.descriptor, block_bytes)
            self.nbytes = block_bytes

    def shrink(self, kept_bytes: int) -> None:
        """Give memory back that only a large request needed."""
        if self.nbytes > kept_bytes:
            self._unmap()
            os.ftruncate(self.descriptor, kept_bytes)
            self.follow(kept_bytes)

    def close(self) -> None:
        """Let go of the memory, and close the descriptor. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._unmap()

    @property
    def memory(self) -> memoryview:
        """The bytes; let go of it before the block changes its size."""
        return memoryview(b"" if self._mapped is None else self._mapped)

    def _unmap(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
        self._mapped, self.nbytes = None, 0


def write_tensors(
    names: Sequence[str], arrays: Sequence[Array], block: SharedBlock
) -> tuple[StoredTensor, ...]:
    """Lay tensors into the block, whatever was in it.

    Raises:
        OSError: the machine has no memory for them.
    """
    contents = [
        np.frombuffer(strings_as_bytes(array), np.uint8) if array.dtype.hasobject else array
        for array in arrays
    ]
    stored: list[StoredTensor] = []
    end = 0
    for name, array, content in zip(names, arrays, contents, strict=True):
        dtype = BYTES if array.dtype.hasobject else dtype_of(array.dtype)
        stored.append(StoredTensor(name, dtype.token, array.shape, end, content.nbytes))
        end += -(-content.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    block.grow(end)
    with block.memory as memory:
        for tensor, content in zip(stored, contents, strict=True):
            if tensor.nbytes:
                target = np.ndarray(content.shape, content.dtype, memory, tensor.start)
                np.copyto(target, content)
                del target  # it would keep the memory mapped
    return tuple(stored)


def read_tensors(stored: Sequence[StoredTensor], block: SharedBlock) -> list[Array]:
    """Copy tensors out of the block.

    Returns:
        Arrays of their own, writable and C-contiguous.
    """
    arrays: list[Array] = []
    with block.memory as memory:
        for tensor in stored:
            dtype = by_token(tensor.dtype)
            data = bytearray(memory[tensor.start : tensor.start + tensor.nbytes])
            if dtype is BYTES:
                elements = int(np.prod(tensor.shape, dtype=np.int64))
                arrays.append(strings_from_bytes(tensor.name, tensor.shape, elements, data))
            else:
                arrays.append(np.frombuffer(data, dtype.numpy).reshape(tensor.shape))
    return arrays
