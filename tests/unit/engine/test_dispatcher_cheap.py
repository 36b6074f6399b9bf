"""Batches that the loop thread runs itself while the dispatch thread sleeps."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

import pytest
from support.engine_models import Engine, build_model, outcome_of, request, wait_until_asleep
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.core.errors import BackendFailed, DeadlineExceeded, ShuttingDown
from hloserve.core.tensors import Array
from hloserve.core.tickets import Call
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.dispatcher import CHEAP_NS
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.model_queue import ModelQueue
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.statistics import ModelStatistics

_LOOP = threading.main_thread().name  # the test plays the loop


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


class _Device(FakeBackend):
    """A device on a clock that stands still, unless a program lets it run.

    Attributes:
        clock: of the engine.
        threads: names of the threads that executed.
    """

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000_000)
        self.threads: list[str] = []
        super().__init__(
            {"twice": self._twice, "dear": self._dear},
            fail_when=lambda arguments: bool((arguments[0] == 13).any()),
        )

    def _twice(self, arguments: Sequence[Array]) -> Sequence[Array]:
        self.threads.append(threading.current_thread().name)
        return [2 * arguments[0]]

    def _dear(self, arguments: Sequence[Array]) -> Sequence[Array]:
        self.clock.advance(seconds=1)
        return self._twice(arguments)


def _cheap_model(device: _Device, name: str = "cheap", sizes: Sequence[int] = (1,)) -> DeviceModel:
    model = build_model(device, name=name, function="twice", sizes=sizes)
    for size in sizes:
        model.statistics.learn_cost((), size, CHEAP_NS)
    return model


def _engine(device: _Device, *models: DeviceModel, discipline: Discipline | None = None) -> Engine:
    return Engine(device, *models, clock=device.clock, discipline=discipline, runs_cheap=True)


def _first(caller: QueuedRequest) -> float:
    return float(outcome_of(caller)[0][0, 0])


def test_cheap_batch_runs_on_the_loop_thread() -> None:
    """No thread is woken for what takes less time than waking one."""
    device = _Device()
    model = _cheap_model(device)
    with _engine(device, model) as engine:
        caller = request(model, 3)
        engine.scheduler.submit([caller])
        assert not caller.is_settled
        engine.loop.run_one()
        assert engine.scheduler.is_thread_waiting

    assert (_first(caller), device.threads) == (6, [_LOOP])
    assert model.statistics.requests_served == 1


def test_batch_of_unknown_cost_runs_on_the_dispatch_thread_and_the_next_one_does_not() -> None:
    """One run on the other thread tells what a program costs."""
    device = _Device()
    model = build_model(device, function="twice", sizes=[1])
    with _engine(device, model) as engine:
        for value in (1, 2):
            caller = request(model, value)
            engine.scheduler.submit([caller])
            engine.run(caller)
            wait_until_asleep(engine.scheduler)

    assert device.threads == ["dispatch", _LOOP]


def test_dear_batch_does_not_hold_the_loop() -> None:
    """The loop goes on while a batch above the budget runs; what comes meanwhile waits its turn."""
    device = _Device()
    dear = build_model(device, name="dear", function="dear", sizes=[1])
    dear.statistics.learn_cost((), 1, CHEAP_NS + 1)
    cheap = _cheap_model(device)
    with _engine(device, dear, cheap) as engine:
        device.gate.close()
        slow, quick = request(dear, 1), request(cheap, 2)
        engine.scheduler.submit([slow])
        engine.loop.run_one()
        device.gate.wait_for_arrivals(1)
        engine.scheduler.submit([quick])
        assert not quick.is_settled
        engine.run(slow, quick)

    assert ([_first(slow), _first(quick)], device.threads) == ([2, 4], ["dispatch", "dispatch"])


def test_dear_model_gets_its_turn_among_cheap_batches() -> None:
    """The oldest goes first, whichever thread runs it."""
    device = _Device()
    dear = build_model(device, name="dear", function="dear", sizes=[1])
    cheap = _cheap_model(device)
    models = [cheap, dear, cheap, cheap]
    with _engine(device, dear, cheap) as engine:
        callers = [request(model, 1) for model in models]
        for caller in callers:
            engine.scheduler.submit([caller])
            device.clock.advance(seconds=1)
        engine.run(*callers)

    assert device.threads[:2] == [_LOOP, "dispatch"]
    assert len(device.threads) == 4


def test_loop_has_its_turn_between_two_cheap_batches() -> None:
    """Each callback runs one batch, and puts the next one behind what came meanwhile."""
    device = _Device()
    model = _cheap_model(device)
    with _engine(device, model) as engine:
        callers = [request(model, value) for value in range(3)]
        engine.scheduler.submit(callers)
        seen: list[int] = []
        for _ in range(3):
            engine.loop.post(lambda: seen.append(sum(c.is_settled for c in callers)))
            engine.loop.run_one()
            engine.loop.run_one()

    assert seen == [1, 2, 3]


def test_poisoned_request_fails_alone_on_the_loop_thread_too() -> None:
    """A cheap batch that fails is run again request by request, and the loop goes on."""
    device = _Device()
    model = _cheap_model(device, sizes=[1, 4])
    with _engine(device, model) as engine:
        callers = [request(model, value) for value in (1, 13, 2, 3)]
        engine.scheduler.submit(callers)
        engine.loop.run_one()
        later = request(model, 5)
        engine.scheduler.submit([later])
        engine.loop.run_one()

    assert [_first(callers[i]) for i in (0, 2, 3)] == [2, 4, 6]
    with pytest.raises(BackendFailed, match="told to fail"):
        outcome_of(callers[1])
    assert (_first(later), set(device.threads)) == (10, {_LOOP})
    assert device.in_use_bytes == 0


def test_late_requests_are_told_by_the_loop_thread() -> None:
    """Saying so needs no device, so nobody is woken, however dear the model is."""
    device = _Device()
    model = build_model(device, function="dear", sizes=[1])
    with _engine(device, model) as engine:
        late = request(model, 1, deadline_ns=device.clock.now_ns())
        engine.scheduler.submit([late])
        engine.loop.run_one()
        assert engine.scheduler.is_thread_waiting

    with pytest.raises(DeadlineExceeded):
        outcome_of(late)
    assert (device.executed, model.statistics.shed_count) == ([], 1)


class _BrokenStatistics(ModelStatistics):
    @override
    def record_waits(self, waits_ns: Iterable[int]) -> None:
        raise ZeroDivisionError


def test_fault_of_ours_in_a_cheap_run_is_told_and_the_next_batch_runs() -> None:
    """Nobody waits for ever, nothing is raised into the loop, and the scheduler is not stuck."""
    device = _Device()
    model = _cheap_model(device)
    broken = _cheap_model(device, "broken")
    broken.statistics = _BrokenStatistics()
    broken.statistics.learn_cost((), 1, 1)
    with _engine(device, broken, model) as engine:
        victim = request(broken, 1)
        engine.scheduler.submit([victim])
        device.clock.advance(seconds=1)
        caller = request(model, 2)
        engine.scheduler.submit([caller])
        engine.loop.run_one()
        engine.loop.run_one()
        assert engine.scheduler.in_flight == 0

    with pytest.raises(BackendFailed) as caught:
        outcome_of(victim)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert _first(caller) == 4


class _BrokenDiscipline(Discipline):
    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        raise ZeroDivisionError


def test_fault_of_ours_in_taking_a_batch_leaves_nobody_waiting() -> None:
    """It ends the dispatch thread, as when that one had met it first; the owner is told once."""
    device = _Device()
    model = _cheap_model(device)
    with _engine(device, model, discipline=_BrokenDiscipline()) as engine:
        waiting = request(model, 1)
        engine.scheduler.submit([waiting])
        engine.loop.run_one()
        while not engine.ends:
            engine.loop.run_one()

    assert [ZeroDivisionError] == [type(end) for end in engine.ends]
    with pytest.raises(ShuttingDown):
        outcome_of(waiting)


def test_caller_that_asks_again_is_served_by_the_next_callback() -> None:
    """Answers resume callers, and what these submit does not run inside of the same batch."""
    device = _Device()
    model = _cheap_model(device)
    results: list[float] = []
    with _engine(device, model) as engine:

        async def ask_twice() -> None:
            for value in (1, 2):
                caller = request(model, value)
                engine.scheduler.submit([caller])
                results.append(float((await caller)[0][0, 0]))

        Call(ask_twice(), lambda value, error: None).step()
        engine.loop.run_one()
        assert results == [2]
        engine.loop.run_one()

    assert results == [2, 4]


def test_caller_that_drains_the_server_when_it_is_answered() -> None:
    """Those behind it are served by the dispatch thread, then it ends."""
    device = _Device()
    model = _cheap_model(device)
    with _engine(device, model) as engine:

        async def ask_then_drain(caller: QueuedRequest) -> None:
            await caller
            engine.scheduler.drain()

        first, second = request(model, 1), request(model, 2)
        engine.scheduler.submit([first, second])
        Call(ask_then_drain(first), lambda value, error: None).step()
        engine.run(first, second)
        while not engine.ends:
            engine.loop.run_one()

    assert (device.threads, engine.ends) == ([_LOOP, "dispatch"], [None])
    assert _first(second) == 4


def test_caller_that_takes_a_batch_mate_with_it() -> None:
    """Cancelled by another's answer, a request of the same batch is passed over."""
    device = _Device()
    model = _cheap_model(device, sizes=[2])
    with _engine(device, model) as engine:

        async def cancel_when_answered(caller: QueuedRequest, other: QueuedRequest) -> None:
            await caller
            other.cancel()

        first, second = request(model, 1), request(model, 2)
        engine.scheduler.submit([first, second])
        Call(cancel_when_answered(first, second), lambda value, error: None).step()
        engine.loop.run_one()

    assert (first.is_settled, second.is_cancelled) == (True, True)
    assert engine.scheduler.in_flight == 0


def test_stop_before_the_loop_came_for_a_batch() -> None:
    """The callback that is still on the loop finds nothing to run."""
    device = _Device()
    model = _cheap_model(device)
    with _engine(device, model) as engine:
        caller = request(model, 1)
        engine.scheduler.submit([caller])
        engine.scheduler.stop()
        engine.loop.run_one()

    assert device.threads == []
    with pytest.raises(ShuttingDown):
        outcome_of(caller)
