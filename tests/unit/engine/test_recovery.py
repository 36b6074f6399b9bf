"""Dispatches that fail: memory that is full, and devices that are lost.

Requests that poison their batch are in `test_dispatcher.py`.
"""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from support.engine_models import (
    Engine,
    build_model,
    expect_device_lost,
    outcome_of,
    request,
    wait_until_asleep,
)
from typing_extensions import override

from hloserve.core.errors import BackendFailed, DeviceLost, DeviceMemoryFull
from hloserve.engine.backend import Buffer
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.leasing import EverythingResident
from hloserve.engine.scheduling.queued_request import QueuedRequest


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


def _first(caller: QueuedRequest) -> float:
    return float(outcome_of(caller)[0][0, 0])


class _Ballast(EverythingResident):
    """Weights of other models that may go, once."""

    def __init__(self, backend: FakeBackend, nbytes: int) -> None:
        self._backend = backend
        self._buffers: list[Buffer] = backend.to_device([np.zeros(nbytes, np.uint8)])
        self._nbytes = nbytes
        self.asked = 0

    @override
    def make_room(self) -> int:
        self.asked += 1
        self._backend.free(self._buffers)
        freed_bytes, self._nbytes = self._nbytes, 0
        return freed_bytes


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_batch_that_finds_the_memory_full_runs_again_when_room_was_made(
    *, runs_ahead: bool
) -> None:
    """Weights that may go make way for a batch."""
    backend = FakeBackend(runs_ahead=runs_ahead, limit_bytes=12 + 24 + 30)
    model = build_model(backend, sizes=[1, 2])
    residency = _Ballast(backend, 30)
    with Engine(backend, model, residency=residency) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    assert [_first(caller) for caller in callers] == [2, 4]
    assert (residency.asked, backend.in_use_bytes) == (1, 12)
    assert model.statistics.failed_count == 0


def test_scattered_memory_is_no_reason_to_refuse_a_batch() -> None:
    """What lies between free pieces goes, and they become one."""
    backend = FakeBackend(limit_bytes=12 + 36 + 12 + 36, is_contiguous=True)
    weights = build_model(backend, sizes=[4])
    hole = backend.to_device([np.zeros(36, np.uint8)])
    residency = _Ballast(backend, 12)
    backend.free(hole)
    with Engine(backend, weights, residency=residency) as engine:
        caller = request(weights, 1, 2, 3)
        backend.limit_bytes = 12 + 36 + 12 + 72
        engine.scheduler.submit([caller])
        engine.run(caller)

    assert (_first(caller), residency.asked) == (2, 1)


def test_caller_is_told_when_no_room_can_be_made() -> None:
    """It may try again, or elsewhere."""
    backend = FakeBackend(limit_bytes=12 + 20)
    model = build_model(backend, sizes=[1])
    residency = _Ballast(backend, 0)
    with Engine(backend, model, residency=residency) as engine:
        caller = request(model, 1)
        engine.scheduler.submit([caller])
        engine.run(caller)

    with pytest.raises(DeviceMemoryFull):
        outcome_of(caller)
    assert (residency.asked, backend.in_use_bytes) == (1, 12)
    assert (model.statistics.failed_count, engine.ends) == (1, [])


def test_batch_that_does_not_fit_beside_another_one_runs_after_it() -> None:
    """Two in flight need more memory than one, which is no reason to refuse."""
    backend = FakeBackend(runs_ahead=True, limit_bytes=12 + 12 + 12)
    backend.gate.close()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2, 3)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    assert [_first(caller) for caller in callers] == [2, 4, 6]
    assert model.statistics.failed_count == 0


@pytest.mark.parametrize("in_flight", [1, 2])
def test_lost_device_ends_the_thread_and_everybody_is_sent_elsewhere(in_flight: int) -> None:
    """Those in flight are told at once, those who wait with the end of the server."""
    backend = FakeBackend(runs_ahead=in_flight > 1)
    backend.gate.close()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=in_flight) as engine:
        callers = [request(model, value) for value in range(3)]
        engine.scheduler.submit(callers)
        backend.transfer_gate.wait_for_arrivals(1 + in_flight)
        backend.gate.wait_for_arrivals(1)
        backend.is_lost = True
        engine.run(*callers)
        while not engine.ends:
            engine.loop.run_one()
        assert engine.dispatcher.join(10)

    assert isinstance(engine.ends[0], DeviceLost)
    expect_device_lost(callers, in_flight)
    assert (model.statistics.failed_count, len(backend.executed)) == (in_flight, in_flight)


def test_device_that_is_lost_while_requests_run_alone_fails_the_others_at_once() -> None:
    """Nothing more is tried on it."""

    class Dying(FakeBackend):
        @override
        def execute(self, executable: object, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            self.is_lost = len(self.executed) == 2
            return super().execute(executable, arguments)  # type: ignore[arg-type]  # a program

    backend = Dying(fail_when=lambda arguments: len(arguments[0]) > 1)
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        callers = [request(model, value) for value in range(4)]
        engine.scheduler.submit(callers)
        engine.run(*callers)
        while not engine.ends:
            engine.loop.run_one()

    assert _first(callers[0]) == 0
    for caller in callers[1:]:
        with pytest.raises(DeviceLost):
            outcome_of(caller)
    assert (len(backend.executed), model.statistics.failed_count) == (2, 3)


def test_failing_program_is_not_a_lost_device() -> None:
    """A device that gives back what it is sent goes on serving other models."""
    backend = FakeBackend()
    broken = build_model(backend, name="broken", function="boom", sizes=[1])
    model = build_model(backend, sizes=[1])
    with Engine(backend, broken, model) as engine:
        for _ in range(3):
            victim, caller = request(broken, 1), request(model, 2)
            engine.scheduler.submit([victim])
            engine.scheduler.submit([caller])
            engine.run(victim, caller)
            with pytest.raises(BackendFailed, match="boom"):
                outcome_of(victim)
            assert _first(caller) == 4

    assert engine.ends == []


def test_device_that_is_lost_on_the_loop_thread_ends_the_other_one() -> None:
    """Whichever thread finds it out, the worker ends in the same way."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[1])
    model.statistics.learn_cost((), 1, 1)
    with Engine(backend, model, runs_cheap=True) as engine:
        wait_until_asleep(engine.scheduler)
        backend.is_lost = True
        caller = request(model, 1)
        engine.scheduler.submit([caller])
        engine.run(caller)
        while not engine.ends:
            engine.loop.run_one()

    with pytest.raises(DeviceLost):
        outcome_of(caller)
    assert isinstance(engine.ends[0], DeviceLost)


class _BreaksRoom(EverythingResident):
    @override
    def make_room(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize("in_flight", [1, 2])
def test_fault_of_ours_in_recovering_is_told_and_the_next_batch_runs(in_flight: int) -> None:
    """Nobody waits for ever, and the thread goes on."""
    backend = FakeBackend(runs_ahead=in_flight > 1, limit_bytes=12 + 36)
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model, in_flight=in_flight, residency=_BreaksRoom()) as engine:
        large, small = request(model, 1, 2, 3), request(model, 5)
        for caller in (large, small):
            engine.scheduler.submit([caller])
            engine.run(caller)

    with pytest.raises(BackendFailed):
        outcome_of(large)
    assert _first(small) == 10
