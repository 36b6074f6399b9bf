"""Regions of shared memory that clients registered, and requests whose tensors are in them.

What lives here: which regions there are and who uses them; bringing inputs in and outputs out. What
does not: objects and bounds (`hloserve.wire.shared_memory`), messages (the codecs), and everything
else about a request (`server.inference`). Loop thread only.

Rules.
1. A request holds its regions from the check of its places to its answer, however it ends.
2. `unregister` takes the name away at once: it can be registered anew, and no new request finds it.
   It is answered when the last request that holds the region has ended, so that the memory is the
   client's alone from then on.
3. Inputs are copied before anything runs: a client that writes to them later changes nothing, and
   nothing of the engine reads memory that others can change or cut.
4. A copy stops the loop for a fraction of a millisecond; a large one lets others run in between.
"""

from collections.abc import Awaitable, Callable, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from hloserve.config.schema import SharedMemoryConfig
from hloserve.core.clock import Clock
from hloserve.core.dtypes import BYTES, of_wire
from hloserve.core.errors import NotPossibleNow, Overloaded, RegionNotRegistered, TensorMismatch
from hloserve.core.requests import (
    InferRequest,
    InferResponse,
    Placement,
    RegionStatus,
    SharedTensor,
    SharedTensors,
)
from hloserve.core.reused_memory import ReusedMemory
from hloserve.core.tensors import Array, Tensors
from hloserve.core.tickets import Ticket
from hloserve.engine.backend import ALIGNMENT_BYTES
from hloserve.wire.shared_memory import SHARED_MEMORY_DIR, Region, exists, open_region
from hloserve.wire.strings import check_count
from hloserve.wire.tensor_bytes import array_from_bytes, bytes_of

__all__ = ["SharedMemory"]

Soon: TypeAlias = Callable[..., object]
"""Calls a function with arguments in the next turn of the loop."""

_COPY_BYTES = 8 * 2**20
"""Most bytes per turn of the loop: 0.5 to 1 ms; a turn costs 0.02 to 0.1 ms."""

_ONE_ELEMENT = bytes(16)
"""Room for one element of any dtype."""

_MOST_REGIONS = 4096
"""Clients that die leave theirs registered; each keeps a mapping, of which a process has 65530."""


class _Held(NamedTuple):
    """A placement with its region, checked."""

    region: Region
    placement: Placement


class _Entry:
    """One region in the registry: who uses it, and who waits for them."""

    __slots__ = ("ended", "is_removed", "region", "registered_ns", "requests")

    def __init__(self, region: Region, registered_ns: int) -> None:
        self.region = region
        self.registered_ns = registered_ns
        self.requests = 0
        self.is_removed = False
        self.ended: list[Ticket[None]] = []

    def remove(self) -> Ticket[None] | None:
        """Take the region out of use; a ticket for its end, None when it has ended."""
        self.is_removed = True
        if not self.requests:
            self.region.close()
            return None
        ticket: Ticket[None] = Ticket()
        self.ended.append(ticket)
        return ticket

    def release(self) -> None:
        """One request less."""
        self.requests -= 1
        if self.is_removed and not self.requests:
            self.region.close()
            for ticket in self.ended:
                ticket.resolve(None)


class SharedMemory:
    """The regions of one worker.

    Args:
        config: whether shared memory is in use, and how much of it is copied at once.
        clock: tells the age of regions.
        soon: calls in the next turn of the loop.
        directory: where shared-memory objects are.
    """

    def __init__(
        self,
        config: SharedMemoryConfig,
        clock: Clock,
        soon: Soon,
        directory: Path = SHARED_MEMORY_DIR,
    ) -> None:
        self._config = config
        self._now_ns = clock.now_ns
        self._soon = soon
        self._directory = directory
        self._entries: dict[str, _Entry] = {}
        self._buffers = ReusedMemory(alignment_bytes=ALIGNMENT_BYTES)
        self.copied_bytes = 0

    @property
    def extensions(self) -> tuple[str, ...]:
        """What the server's metadata says of it."""
        return ("system_shared_memory",) if self._config.enabled else ()

    def _check_enabled(self) -> None:
        if not self._config.enabled:
            raise NotPossibleNow(
                "system shared memory is not enabled on this server: set shared_memory.enabled"
                " there, or send tensors in the message"
            )

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of an object; one of the same name is replaced.

        Raises:
            NotPossibleNow: shared memory is not enabled.
            BadRequest: there is no such object, or the part is not inside it.
            Overloaded: there are too many regions.
        """
        self._check_enabled()
        if len(self._entries) >= _MOST_REGIONS and name not in self._entries:
            raise Overloaded(
                f"{_MOST_REGIONS} regions of shared memory are registered, the limit; unregister"
                " some"
            )
        region = open_region(name, key, offset, byte_size, self._directory)
        before = self._entries.pop(name, None)
        if before is not None:
            before.remove()
        self._entries[name] = _Entry(region, self._now_ns())

    async def unregister(self, name: str) -> None:
        """Forget a region, all of them when `name` is empty; an unknown one is no error.

        Returns when nothing here touches their memory any more.

        Raises:
            NotPossibleNow: shared memory is not enabled.
        """
        self._check_enabled()
        names = [name] if name else list(self._entries)
        removed = [self._entries.pop(name) for name in names if name in self._entries]
        for ticket in [entry.remove() for entry in removed]:
            if ticket is not None:
                await ticket

    def status(self, name: str = "") -> list[RegionStatus]:
        """The region of that name, all of them when it is empty; nothing when it is unknown.

        Raises:
            NotPossibleNow: shared memory is not enabled.
        """
        self._check_enabled()
        now_ns = self._now_ns()
        return [
            RegionStatus(
                region.name,
                region.key,
                region.offset,
                region.byte_size,
                region.owner_uid,
                entry.requests,
                (now_ns - entry.registered_ns) / 1e9,
            )
            for entry in self._entries.values()
            if (region := entry.region).name == name or not name
        ]

    def is_same_namespace(self, key: str) -> bool:
        """True when an object of that name can be seen from here."""
        return self._config.enabled and exists(key, self._directory)

    def close(self) -> None:
        """Forget all regions; those that requests still hold go with the last of them."""
        for entry in self._entries.values():
            entry.remove()
        self._entries.clear()

    async def infer(
        self,
        request: InferRequest,
        check: Callable[[InferRequest, Tensors], object],
        infer: Callable[[InferRequest], Awaitable[InferResponse]],
    ) -> InferResponse:
        """Serve a request that has tensors in shared memory.

        Args:
            request: its inputs in shared memory are added to the others.
            check: refuses inputs that do not fit the model, by dtype and shape alone.
            infer: serves it once all inputs are there.

        Raises:
            RegionNotRegistered, RegionCutShort: a tensor's region is not there.
            BadRequest: a place is not inside its region, or an output is larger than its place.
            Overloaded: requests in flight hold too many copied bytes already. Retryable.
        """
        shared = request.shared
        assert shared is not None, "a request without shared tensors came here"
        self._check_enabled()
        held = self._hold(shared)
        copied_bytes = sum(tensor.placement.byte_size for tensor in shared.inputs.values())
        self.copied_bytes += copied_bytes
        try:
            if copied_bytes and self.copied_bytes > self._config.max_copied_bytes:
                raise Overloaded(
                    f"requests in flight hold {self.copied_bytes - copied_bytes} bytes copied from"
                    f" shared memory, {copied_bytes} more are over the limit"
                    " (shared_memory.max_copied_bytes); try again later"
                )
            check(request, {name: _outline(tensor) for name, tensor in shared.inputs.items()})
            for name, tensor in shared.inputs.items():
                region = held[tensor.placement.region].region
                request.inputs[name] = await self._read(region, name, tensor)
            response = await infer(request)
            if shared.outputs:
                response.shared = await self._write_outputs(held, shared.outputs, response.outputs)
            return response
        finally:
            self.copied_bytes -= copied_bytes
            for entry in held.values():
                entry.release()

    def _hold(self, shared: SharedTensors) -> dict[str, _Entry]:
        """Find the regions of a request, check all places, and only then hold the regions."""
        held: dict[str, _Entry] = {}
        places = [
            *((f"input {name!r}", tensor.placement) for name, tensor in shared.inputs.items()),
            *((f"output {name!r}", placement) for name, placement in shared.outputs.items()),
        ]
        for role, placement in places:
            entry = self._entries.get(placement.region)
            if entry is None:
                raise RegionNotRegistered(placement.region)
            entry.region.check_bounds(role, placement)
            held[placement.region] = entry
        for entry in held.values():
            entry.requests += 1
        return held

    async def _read(self, region: Region, name: str, tensor: SharedTensor) -> Array:
        """Copy an input, to where a device can take it as it lies."""
        dtype, shape, placement = tensor
        if dtype is BYTES:
            check_count(f"input {name!r}", prod(shape))
        memory = self._buffers.take(placement.byte_size)
        for start in range(0, placement.byte_size, _COPY_BYTES):
            if start:
                await self._next_turn()
            region.read(placement.offset + start, memory[start : start + _COPY_BYTES])
        return array_from_bytes(name, dtype, shape, memory.data)

    async def _write_outputs(
        self,
        held: Mapping[str, _Entry],
        placements: Mapping[str, Placement],
        outputs: Tensors,
    ) -> dict[str, SharedTensor]:
        """Copy outputs to their places; nothing when one of them does not fit."""
        contents = {name: memoryview(bytes_of(outputs[name])) for name in placements}
        for name, data in contents.items():
            byte_size = placements[name].byte_size
            if len(data) > byte_size:
                needed = f"at least {len(data)}"
                raise TensorMismatch(
                    f"output {name!r}", "shared_memory_byte_size", needed, byte_size
                )
        written = {}
        for name, data in contents.items():
            region_name, offset, _ = placements[name]
            region = held[region_name].region
            for start in range(0, len(data), _COPY_BYTES):
                if start:
                    await self._next_turn()
                region.write(offset + start, data[start : start + _COPY_BYTES])
            array = outputs[name]
            placement = Placement(region_name, offset, len(data))
            written[name] = SharedTensor(of_wire(array.dtype), array.shape, placement)
        return written

    def _next_turn(self) -> Ticket[None]:
        """Let the loop see to others between two pieces of a large copy."""
        ticket: Ticket[None] = Ticket()
        self._soon(ticket.resolve, None)
        return ticket


def _outline(tensor: SharedTensor) -> Array:
    """An array of the tensor's dtype and shape that takes no memory."""
    shape = tensor.shape
    return np.ndarray(shape, tensor.dtype.numpy, _ONE_ELEMENT, strides=(0,) * len(shape))
