"""The registry of regions: who holds them, when they go, and what a request may copy."""

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.shared_objects import SharedObject, mappings_of

from hloserve.config.schema import SharedMemoryConfig
from hloserve.core.clock import ManualClock
from hloserve.core.dtypes import BYTES, F32
from hloserve.core.errors import BadRequest, HloserveError, NotPossibleNow, RegionNotRegistered
from hloserve.core.requests import (
    InferRequest,
    InferResponse,
    Placement,
    SharedTensor,
    SharedTensors,
)
from hloserve.core.tensors import Tensors
from hloserve.core.tickets import Call, Ticket
from hloserve.server.shared_memory import SharedMemory

NBYTES = 16


class Turns:
    """Stands for the loop: what was asked for the next turn."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, ...]] = []

    def soon(self, function: Any, *arguments: Any) -> None:
        """Keep it for `run`."""
        self.waiting.append((function, *arguments))

    def run(self) -> int:
        """Run what was asked for, and what that asks for; how many turns it took."""
        turns = 0
        while self.waiting:
            turns += 1
            due, self.waiting = self.waiting, []
            for function, *arguments in due:
                function(*arguments)
        return turns


class Ended:
    """The outcome of a coroutine that is driven without a loop."""

    def __init__(self, coroutine: Coroutine[Ticket[Any], None, Any]) -> None:
        self.outcomes: list[tuple[Any, Exception | None]] = []
        self.call = Call(coroutine, lambda value, error: self.outcomes.append((value, error)))
        self.call.step()

    @property
    def error(self) -> Exception | None:
        """What it raised."""
        return self.outcomes[0][1]


@pytest.fixture
def shared() -> Iterator[SharedObject]:
    """An object of three pages."""
    with SharedObject(3 * 4096) as made:
        yield made


@pytest.fixture
def turns() -> Turns:
    """The loop."""
    return Turns()


@pytest.fixture
def memory(turns: Turns) -> Iterator[SharedMemory]:
    """A registry that is enabled."""
    made = SharedMemory(SharedMemoryConfig(enabled=True), ManualClock(), turns.soon)
    yield made
    made.close()


def _request(*regions: str, size: int = NBYTES, outputs: dict[str, Placement] | None = None) -> Any:
    inputs = {
        f"x{i}": SharedTensor(F32, (size // 4,), Placement(region, 0, size))
        for i, region in enumerate(regions)
    }
    shared = SharedTensors(inputs, outputs or {})
    return InferRequest("m", {}, outputs=tuple(shared.outputs), shared=shared)


def _accept(request: InferRequest, outlines: Tensors) -> None:
    """A check that finds nothing."""


class Device:
    """Answers when it is told to; y is the sum of all inputs."""

    def __init__(self) -> None:
        self.ticket: Ticket[None] = Ticket()
        self.request: InferRequest | None = None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Serve a request once `ticket` is resolved."""
        self.request = request
        await self.ticket
        return InferResponse("m", {"y": sum(request.inputs.values(), np.zeros((), np.float32))})


def _serve(memory: SharedMemory, request: InferRequest) -> tuple[Ended, Device]:
    device = Device()
    return Ended(memory.infer(request, _accept, device.infer)), device


def test_inputs_are_copies(memory: SharedMemory, shared: SharedObject) -> None:
    """What the client writes afterwards changes nothing; they lie as a device wants them."""
    memory.register("r", shared.key, 0, 4096)
    shared.bytes[:NBYTES].view(np.float32)[:] = [1, 2, 3, 4]
    ended, device = _serve(memory, _request("r"))
    shared.bytes[:] = 0

    device.ticket.resolve(None)

    ((response, _),) = ended.outcomes
    assert [1, 2, 3, 4] == response.outputs["y"].tolist()
    assert device.request is not None
    assert 0 == device.request.inputs["x0"].ctypes.data % 64


def test_unregister_is_answered_when_the_last_request_has_ended(
    memory: SharedMemory, shared: SharedObject
) -> None:
    """The name is free at once; the memory is given up at the end, after outputs are written."""
    memory.register("r", shared.key, 0, 4096)
    place = {"y": Placement("r", 1024, NBYTES)}
    first, device = _serve(memory, _request("r", outputs=place))
    second, other = _serve(memory, _request("r"))
    assert 2 == memory.status("r")[0].requests

    gone = Ended(memory.unregister("r"))
    late, _ = _serve(memory, _request("r"))
    memory.register("r", shared.key, 64, 64)
    assert isinstance(late.error, RegionNotRegistered)
    assert not gone.outcomes
    assert 3 == mappings_of(shared.key)

    shared.bytes[1024:] = 255
    device.ticket.resolve(None)
    assert not gone.outcomes
    other.ticket.resolve(None)

    assert [(None, None)] == gone.outcomes
    assert first.error is None
    assert second.error is None
    assert [0] * 4 == shared.bytes[1024 : 1024 + NBYTES].view(np.float32).tolist()
    assert 2 == mappings_of(shared.key)


def test_cancelled_request_lets_go_of_its_regions(
    memory: SharedMemory, shared: SharedObject, turns: Turns
) -> None:
    """Wherever it stands: at the device, or between two pieces of a copy."""
    with SharedObject(2**24) as large:
        memory.register("r", shared.key, 0, 4096)
        memory.register("large", large.key, 0, 2**24)
        calls = [_serve(memory, _request("r"))[0], _serve(memory, _request("large", size=2**24))[0]]
        gone = Ended(memory.unregister(""))
        assert memory.copied_bytes == NBYTES + 2**24

        for ended in calls:
            ended.call.cancel()
        turns.run()

        assert 0 == memory.copied_bytes
        assert [(None, None)] == gone.outcomes
        assert [1, 1] == [mappings_of(shared.key), mappings_of(large.key)]


def test_large_copies_let_the_loop_go_on(memory: SharedMemory, turns: Turns) -> None:
    """25 MB in and out take some turns of it."""
    size = 3 * 2**23 + 4
    with SharedObject(2 * size) as large:
        memory.register("r", large.key, 0, 2 * size)
        large.bytes[:size].view(np.float32)[:] = 3
        place = {"y": Placement("r", size, size)}
        ended, device = _serve(memory, _request("r", size=size, outputs=place))
        assert turns.run() == 3

        device.ticket.resolve(None)
        assert turns.run() == 3

        assert ended.error is None
        assert {3.0} == set(np.unique(large.bytes[size:].view(np.float32)))


def test_strings_are_in_shared_memory_as_in_messages(
    memory: SharedMemory, shared: SharedObject
) -> None:
    """Each behind its length; the place may be larger than what is written."""
    written = b"\2\0\0\0ab\0\0\0\0"
    shared.bytes[: len(written)] = np.frombuffer(written, np.uint8)
    memory.register("r", shared.key, 0, 4096)
    place = {"y": Placement("r", 100, 64)}
    tensor = SharedTensor(BYTES, (2,), Placement("r", 0, len(written)))
    request = InferRequest("m", {}, outputs=("y",), shared=SharedTensors({"x": tensor}, place))

    async def echo(request: InferRequest) -> InferResponse:
        return InferResponse("m", {"y": request.inputs["x"]})

    ((response, error),) = Ended(memory.infer(request, _accept, echo)).outcomes

    assert error is None
    assert [b"ab", b""] == request.inputs["x"].tolist()
    assert written == shared.bytes[100 : 100 + len(written)].tobytes()
    told = SharedTensor(BYTES, (2,), Placement("r", 100, len(written)))
    assert {"y": told} == response.shared


def test_all_places_are_checked_before_any_region_is_held(
    memory: SharedMemory, shared: SharedObject
) -> None:
    """A request that fails leaves nothing behind."""
    memory.register("r", shared.key, 0, 64)

    missing, _ = _serve(memory, _request("r", "none"))
    outside, _ = _serve(memory, _request("r", outputs={"y": Placement("r", 60, 8)}))

    assert isinstance(missing.error, RegionNotRegistered)
    assert isinstance(outside.error, BadRequest)
    assert (0, 0) == (memory.status()[0].requests, memory.copied_bytes)


def test_check_sees_shapes_before_anything_is_copied(
    memory: SharedMemory, shared: SharedObject
) -> None:
    """Its refusal ends the request; its arrays take no memory."""
    memory.register("r", shared.key, 0, 64)
    seen: list[Tensors] = []

    def refuse(request: InferRequest, outlines: Tensors) -> None:
        seen.append(outlines)
        raise BadRequest("no")

    ended = Ended(memory.infer(_request("r"), refuse, Device().infer))

    assert isinstance(ended.error, BadRequest)
    ((outline,),) = [list(outlines.values()) for outlines in seen]
    assert ((4,), "float32", (0,)) == (outline.shape, outline.dtype.name, outline.strides)
    assert 0 == memory.status()[0].requests


def test_status_tells_age_and_owner(shared: SharedObject, turns: Turns, tmp_path: Path) -> None:
    """Regions in the order of registration."""
    clock = ManualClock()
    memory = SharedMemory(SharedMemoryConfig(enabled=True), clock, turns.soon)
    memory.register("b", shared.key, 0, 64)
    clock.advance(seconds=1.5)
    memory.register("a", "/" + shared.key, 64, 32)

    first, second = memory.status()
    memory.close()

    assert ("b", 1.5, shared.path.stat().st_uid) == (first.name, first.age_s, first.owner_uid)
    assert ("a", 0.0, 64, 32) == (second.name, second.age_s, second.offset, second.byte_size)
    assert [] == memory.status()
    assert 1 == mappings_of(shared.key)


def test_nothing_works_while_it_is_off(shared: SharedObject, turns: Turns) -> None:
    """And nothing is mapped."""
    memory = SharedMemory(SharedMemoryConfig(), ManualClock(), turns.soon)

    with pytest.raises(NotPossibleNow, match=r"shared_memory\.enabled"):
        memory.register("r", shared.key, 0, 64)
    with pytest.raises(NotPossibleNow):
        memory.status()
    ended, _ = _serve(memory, _request("r"))
    for error in (Ended(memory.unregister("")).error, ended.error):
        assert isinstance(error, HloserveError)
    assert not memory.is_same_namespace(shared.key)
    assert 1 == mappings_of(shared.key)
