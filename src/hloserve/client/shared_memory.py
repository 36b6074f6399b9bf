"""Memory that the client and the server both see, so that large tensors cross no socket.

What lives here: making the memory, arrays in it, and what a call says about them. What does not:
calls (`hloserve.client.blocking`) and the server's side (`hloserve.server.shared_memory`). Client
and server must be on one machine, with one `/dev/shm`. Any thread; one array serves one call at a
time.
"""

import contextlib
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hloserve.client.arrays import plain_array
from hloserve.core.dtypes import DType, by_numpy
from hloserve.core.errors import BadRequest, HloserveError, NotPossibleNow, Unavailable
from hloserve.core.requests import InferResponse, Placement, SharedTensor, SharedTensors
from hloserve.core.tensors import Array, Tensors
from hloserve.wire import v2_protobuf_shared_memory as codec
from hloserve.wire.grpc_framing import Message
from hloserve.wire.shared_memory import SHARED_MEMORY_DIR

__all__ = [
    "SharedArray",
    "SharedMemory",
    "call_registered",
    "collect_outputs",
    "plain_arrays",
    "shared_tensors",
]

_ALIGNMENT_BYTES = 64

_UNREGISTERED = "unregistered shared memory region"
"""What V2 servers say when they were started after a region was registered."""


class SharedArray:
    """An array in shared memory: give it to `Client.infer` as an input, or in `into`.

    Attributes:
        array: reads and writes the memory. While a call is under way, leave it alone.
        memory: where it is.
    """

    __slots__ = ("_dtype", "_offset", "array", "memory")

    def __init__(self, memory: "SharedMemory", offset: int, array: Array, dtype: DType) -> None:
        self.memory = memory
        self.array = array
        self._offset = offset
        self._dtype = dtype

    @property
    def placement(self) -> Placement:
        """Where it is, as a request says it."""
        return Placement(self.memory.name, self._offset, self.array.nbytes)

    @property
    def tensor(self) -> SharedTensor:
        """What a request announces of it as an input."""
        return SharedTensor(self._dtype, self.array.shape, self.placement)

    def view(self, name: str, tensor: SharedTensor) -> Array:
        """The output that a server wrote here.

        Raises:
            HloserveError: it says that it wrote something else.
        """
        dtype, shape, placement = tensor
        nbytes = prod(shape) * dtype.itemsize
        here = self.placement
        is_here = (placement.region, placement.offset) == (here.region, here.offset)
        if not is_here or nbytes != placement.byte_size or nbytes > here.byte_size:
            raise HloserveError(
                f"output {name!r}: the server says that it wrote {placement}, the place is {here}"
            )
        return np.ndarray(shape, dtype.numpy, self.memory.buffer, self._offset)


class SharedMemory:
    """Memory that is registered with one server; make it by `Client.shared_memory`.

    Close it, or use it as a context manager. Arrays made before stay usable in this process.

    Attributes:
        name: of the region and of its object, unique.
        nbytes: its size.
        buffer: the memory itself.
    """

    def __init__(self, call: Callable[[str, bytes], Message], nbytes: int, mode: int) -> None:
        if nbytes <= 0:
            raise BadRequest(f"shared memory of {nbytes} bytes; it must be above 0")
        self._call = call
        self.nbytes = nbytes
        self.name = f"hloserve-{os.getpid()}-{secrets.token_hex(8)}"
        self._used_bytes = 0
        self._is_closed = False
        path = SHARED_MEMORY_DIR / self.name
        # Also when it is forgotten, or the interpreter ends.
        self._remove = weakref.finalize(self, _remove, path, os.getpid())
        try:
            self.buffer = _make_object(path, nbytes, mode)
            self.register()
        except BaseException:
            self._remove()
            raise

    def register(self) -> None:
        """Tell the server of the memory; again after the server was started anew.

        Raises:
            NotPossibleNow: it has shared memory not enabled.
            BadRequest: it does not find the memory: it is on another machine, or in a container
                with a `/dev/shm` of its own, or is a user who may not open it.
        """
        request = codec.RegionRequest(self.name, self.name, 0, self.nbytes)
        self._call("SystemSharedMemoryRegister", codec.encode_register_request(request))

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> SharedArray:
        """Set a part of the memory aside for an array, of unspecified content.

        Args:
            shape: in numpy order.
            dtype: of its elements.

        Raises:
            BadRequest: V2 has no such datatype, or the memory is used up.
            NotPossibleNow: the memory is closed.
        """
        if self._is_closed:
            raise NotPossibleNow("this shared memory is closed; make a new one")
        known = _known_dtype(np.dtype(dtype))
        start = -(-self._used_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        nbytes = prod(shape) * known.itemsize
        if min(shape, default=0) < 0 or start + nbytes > self.nbytes:
            raise BadRequest(
                f"an array of shape {tuple(shape)} and dtype {known} does not fit: it needs"
                f" {nbytes} bytes, {max(0, self.nbytes - start)} of {self.nbytes} are free"
            )
        self._used_bytes = start + nbytes
        array: Array = np.ndarray(tuple(shape), known.numpy, self.buffer, start)
        return SharedArray(self, start, array, known)

    def copy(self, array: npt.ArrayLike) -> SharedArray:
        """Copy an array into the memory.

        Raises:
            BadRequest, NotPossibleNow: as `array` does.
        """
        source = np.asarray(array)
        shared = self.array(source.shape, source.dtype)
        shared.array[...] = source
        return shared

    def close(self) -> None:
        """Have the server forget the memory, and remove it. Idempotent.

        When it returns, the server does not touch it any more. One that is gone is no error.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with contextlib.suppress(Unavailable, NotPossibleNow):
                body = codec.encode_unregister_request(self.name)
                self._call("SystemSharedMemoryUnregister", body)
        finally:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _make_object(path: Path, nbytes: int, mode: int) -> mmap.mmap:
    """Make a shared-memory object whose every page is there: a full disk shows now, or never."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, mode)
            os.posix_fallocate(fd, 0, nbytes)
            return mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)
    except OSError as error:
        raise NotPossibleNow(
            f"shared memory of {nbytes} bytes cannot be made in {path.parent}: {error.strerror}"
        ) from error


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a child made by fork
        path.unlink(missing_ok=True)


def _known_dtype(dtype: np.dtype[np.generic]) -> DType:
    try:
        known = by_numpy(dtype)
    except KeyError:
        known = None
    if known is None or known.kserve is None:
        raise BadRequest(f"arrays of dtype {dtype} cannot be in shared memory; convert them")
    return known


def plain_arrays(inputs: Mapping[str, npt.ArrayLike | SharedArray]) -> Tensors:
    """The inputs that go into the message."""
    return {
        name: plain_array(name, array)
        for name, array in inputs.items()
        if not isinstance(array, SharedArray)
    }


def call_registered(
    call: Callable[[], Message],
    inputs: Mapping[str, object],
    into: Mapping[str, SharedArray],
) -> Message:
    """Make a call; register the memory and call again when the server was started meanwhile."""
    try:
        return call()
    except NotPossibleNow as error:
        if _UNREGISTERED not in str(error):
            raise
    arrays = (*inputs.values(), *into.values())
    for memory in {array.memory for array in arrays if isinstance(array, SharedArray)}:
        memory.register()
    return call()


def shared_tensors(
    inputs: Mapping[str, object], into: Mapping[str, SharedArray]
) -> SharedTensors | None:
    """What a request says of arrays in shared memory; None when there are none."""
    shared = {
        name: given.tensor for name, given in inputs.items() if isinstance(given, SharedArray)
    }
    if not shared and not into:
        return None
    return SharedTensors(shared, {name: array.placement for name, array in into.items()})


def collect_outputs(
    response: InferResponse, into: Mapping[str, SharedArray], wanted: Sequence[str]
) -> Tensors:
    """Bring outputs of the message and of shared memory together, in the order asked for.

    Raises:
        HloserveError: an output is not where it was asked to be.
    """
    outputs = dict(response.outputs)
    for name, tensor in (response.shared or {}).items():
        if name not in into:
            raise HloserveError(f"output {name!r}: nobody asked for it in shared memory")
        outputs[name] = into[name].view(name, tensor)
    return {name: outputs[name] for name in wanted if name in outputs} or outputs
