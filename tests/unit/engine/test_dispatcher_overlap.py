"""Several dispatches in flight on a device that runs ahead."""

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence

import pytest
from support.engine_models import Engine, build_model, outcome_of, request, wait_until_asleep
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.core.errors import BackendFailed, DeadlineExceeded
from hloserve.core.tensors import Array
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.leasing import EverythingResident
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.model_queue import ModelQueue
from hloserve.engine.scheduling.queued_request import QueuedRequest


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


def _ahead(**options: object) -> FakeBackend:
    backend = FakeBackend(runs_ahead=True, **options)  # type: ignore[arg-type]  # its options
    backend.gate.close()
    return backend


def _first(caller: QueuedRequest) -> list[float]:
    return [float(value) for value in outcome_of(caller)[0][:, 0]]


def _wait_for_transfers(backend: FakeBackend, count: int) -> None:
    """Beside the one of the model's weights."""
    backend.transfer_gate.wait_for_arrivals(1 + count)


def test_next_batch_is_assembled_and_transferred_while_one_executes() -> None:
    """The device does not wait for the host between two batches."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        backend.gate.wait_for_arrivals(1)

        assert (len(backend.executed), engine.loop.posts) == (1, 0)
        engine.run(*callers)

    assert [_first(caller) for caller in callers] == [[2], [4]]
    assert backend.most_in_flight == 2


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_no_more_dispatches_are_taken_than_may_be_in_flight(in_flight: int) -> None:
    """The others wait in the queue, where they may be withdrawn, and gather into larger batches."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=in_flight) as engine:
        callers = [request(model, value) for value in range(6)]
        engine.scheduler.submit(callers)
        for ended in range(4):
            _wait_for_transfers(backend, min(6, ended + in_flight))
            assert engine.scheduler.depth(model) == 6 - min(6, ended + in_flight)
            backend.gate.let_through()
            engine.loop.run_one()
        engine.run(*callers)

    assert [_first(caller) for caller in callers] == [[2 * value] for value in range(6)]
    assert (backend.most_in_flight, engine.loop.posts) == (in_flight, 6)


def test_each_batch_in_flight_has_staging_memory_of_its_own() -> None:
    """What waits behind the running batch does not change its rows, and areas are used again."""
    backend = _ahead()
    model = build_model(backend, sizes=[4])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value, value) for value in range(8)]
        engine.scheduler.submit(callers)
        for ended in range(4):
            _wait_for_transfers(backend, min(4, ended + 2))
            backend.gate.let_through()
            engine.loop.run_one()
        assert len(backend.pinned) == 2

    assert [_first(caller) for caller in callers] == [[2 * v, 2 * v] for v in range(8)]
    assert backend.pinned == []


def _run_two_batches(*values: int) -> tuple[FakeBackend, list[QueuedRequest]]:
    """Let two batches of two be in flight on a device where 13 fails, and answer all."""
    backend = _ahead(fail_when=lambda arguments: bool((arguments[0] == 13).any()))
    model = build_model(backend, sizes=[1, 2])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in values]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        engine.run(*callers)
    assert backend.in_use_bytes == model_bytes(model)
    return backend, callers


def model_bytes(model: DeviceModel) -> int:
    """Of the weights: three floats."""
    return 12 * len(model.weights)


def test_poisoned_batch_harms_neither_its_neighbours_nor_the_batch_behind_it() -> None:
    """The one behind ends first; then the requests of the failed one run alone."""
    backend, callers = _run_two_batches(1, 13, 2, 3)

    assert [_first(callers[place]) for place in (0, 2, 3)] == [[2], [4], [6]]
    with pytest.raises(BackendFailed, match="told to fail"):
        outcome_of(callers[1])
    assert backend.executed == [(2, 3), (2, 3), (1, 3), (1, 3)]
    assert backend.most_in_flight == 2


def test_both_batches_in_flight_may_fail() -> None:
    """Each of their callers has an answer of its own."""
    _, callers = _run_two_batches(1, 13, 13, 3)

    assert [_first(callers[place]) for place in (0, 3)] == [[2], [6]]
    for place in (1, 2):
        with pytest.raises(BackendFailed, match="told to fail"):
            outcome_of(callers[place])


def test_late_request_is_told_while_another_model_runs() -> None:
    """What expired in the queue is not held up by the device."""
    clock = ManualClock(1_000_000_000)
    backend = _ahead()
    models = [build_model(backend, name=name, sizes=[1]) for name in ("a", "b")]
    with Engine(backend, *models, clock=clock, in_flight=2) as engine:
        blocker = engine.hold_device(models[0])
        caller = request(models[0], 1)
        late = request(models[1], 2, deadline_ns=clock.now_ns())
        engine.scheduler.submit([caller])
        engine.scheduler.submit([late])
        backend.gate.let_through()
        engine.loop.run_until_settled(blocker, late)
        assert not caller.is_settled
        engine.run(caller)

    with pytest.raises(DeadlineExceeded):
        outcome_of(late)


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_batches_in_flight_are_answered_when_the_scheduler_closes(end: str) -> None:
    """Closing waits for what the device was given."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        getattr(engine.scheduler, end)()
        engine.run(*callers)
        engine.loop.run_one()

    assert [_first(caller) for caller in callers] == [[2], [4]]
    assert engine.ends == [None]


def test_removed_model_is_idle_when_its_last_batch_in_flight_has_ended() -> None:
    """Its weights may be freed then, and not before."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    idle = threading.Event()
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        engine.scheduler.remove(model, idle.set)
        backend.gate.let_through()
        engine.loop.run_until_settled(callers[0])
        assert not idle.is_set()
        engine.run(*callers)

        assert idle.wait(10)


def test_command_runs_when_nothing_is_in_flight() -> None:
    """Work on weights finds a device that is at rest."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2, 3)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        command = engine.scheduler.command(lambda: (len(backend.executed), backend.in_use_bytes))
        engine.run(*callers)

    assert command.is_settled
    with pytest.raises(StopIteration) as result:
        command.__await__().send(None)
    assert result.value.value == (2, model_bytes(model))


class _TickingDevice(FakeBackend):
    """Each execution takes a second of a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000_000)
        super().__init__({"tick": self._tick}, runs_ahead=True)

    def _tick(self, arguments: Sequence[Array]) -> Sequence[Array]:
        self.clock.advance(seconds=1)
        return [arguments[0]]


def test_computing_time_of_a_batch_does_not_include_that_of_the_one_before() -> None:
    """Times of batches in flight add up to the time that passed, and to no more."""
    backend = _TickingDevice()
    backend.gate.close()
    model = build_model(backend, function="tick", sizes=[1])
    with Engine(backend, model, clock=backend.clock, in_flight=2) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        for caller in callers:
            backend.gate.let_through()
            engine.loop.run_until_settled(caller)

    statistics = model.statistics
    assert statistics.compute_ns == 2_000_000_000
    assert statistics.costs_ns == {(): {1: 1_000_000_000}}
    figures = statistics.batches[1]
    assert (figures.input_ns, figures.infer_ns, figures.output_ns) == (0, 2_000_000_000, 0)


class _Naps:
    """Instead of sleeping: notes how long, and lets something happen."""

    def __init__(self) -> None:
        self.naps_s: list[float] = []
        self.began, self.ends = threading.Event(), threading.Event()

    def __call__(self, seconds: float) -> None:
        self.naps_s.append(seconds)
        self.began.set()
        assert self.ends.wait(10)


def test_batch_that_is_not_full_is_taken_when_half_of_the_running_one_has_passed() -> None:
    """Who comes meanwhile goes along, instead of one execution later."""
    backend = _ahead()
    clock, naps = ManualClock(1_000_000_000), _Naps()
    model = build_model(backend, sizes=[1, 2, 4])
    model.statistics.learn_cost((), 1, 8_000_000)
    with Engine(backend, model, clock=clock, in_flight=2, sleep=naps) as engine:
        running, *others = [request(model, value) for value in (1, 2, 3)]
        engine.scheduler.submit([running])
        assert naps.began.wait(10)
        engine.scheduler.submit(others)
        naps.ends.set()
        engine.run(running, *others)

    assert naps.naps_s == [0.004]
    assert backend.executed == [(1, 3), (2, 3)]
    assert [_first(caller) for caller in others] == [[4], [6]]


def test_full_batch_is_taken_at_once() -> None:
    """Waiting would not make it larger."""
    backend = _ahead()
    naps = _Naps()
    model = build_model(backend, sizes=[1])
    model.statistics.learn_cost((), 1, 8_000_000)
    with Engine(backend, model, clock=ManualClock(1), in_flight=2, sleep=naps) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        _wait_for_transfers(backend, 2)
        assert naps.naps_s == []
        naps.ends.set()
        engine.run(*callers)


class _Prefetching(EverythingResident):
    """Has the weights of one model, and notes what is asked for."""

    def __init__(self, backend: FakeBackend, resident: DeviceModel) -> None:
        self._backend, self._resident = backend, resident
        self.asked: list[tuple[str, int]] = []

    @override
    def is_resident(self, model: DeviceModel) -> bool:
        return model is self._resident

    @override
    def prefetch(self, model: DeviceModel) -> None:
        self.asked.append((model.name, len(self._backend.executed)))


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_weights_of_the_next_model_are_asked_for_before_a_batch_executes(
    *, runs_ahead: bool
) -> None:
    """They come while it runs, also on a device that does not run ahead."""
    backend = FakeBackend(runs_ahead=runs_ahead)
    models = [build_model(backend, name=name, sizes=[1]) for name in ("a", "b")]
    residency = _Prefetching(backend, resident=models[0])
    clock = ManualClock(1_000_000_000)
    with Engine(backend, *models, clock=clock, residency=residency) as engine:
        blocker = engine.hold_device(models[0])
        callers = [request(model, 1) for model in models]
        for caller in callers:
            engine.scheduler.submit([caller])
            clock.advance(seconds=1)
        engine.run(blocker, *callers)

    assert residency.asked == [("b", 1)]


class _Narrow(EverythingResident):
    """Has room for the weights of one model at a time."""

    def __init__(self) -> None:
        self.leased: list[DeviceModel] = []

    @override
    def fits(self, model: DeviceModel) -> bool:
        return all(other is model for other in self.leased)

    @override
    def lease(self, model: DeviceModel) -> Sequence[object]:
        assert self.fits(model), "two models at a time"
        self.leased.append(model)
        return model.weights

    @override
    def release(self, model: DeviceModel) -> None:
        self.leased.remove(model)


def test_batch_whose_weights_do_not_fit_beside_those_that_run_waits_for_their_end() -> None:
    """It stays in the queue; batches of the same model overlap."""
    backend = FakeBackend(runs_ahead=True)
    models = [build_model(backend, name=name, sizes=[1]) for name in ("a", "b")]
    clock = ManualClock(1_000_000_000)
    residency = _Narrow()
    with Engine(backend, *models, clock=clock, in_flight=2, residency=residency) as engine:
        blocker = engine.hold_device(models[0])
        callers = [request(models[place], place) for place in (0, 0, 1, 1, 0)]
        for caller in callers:
            engine.scheduler.submit([caller])
            clock.advance(seconds=1)
        engine.run(blocker, *callers)

    assert [_first(caller) for caller in callers] == [[0], [0], [2], [2], [0]]
    assert (residency.leased, backend.most_in_flight) == ([], 2)


class _BreaksLater(Fifo):
    """Picks once."""

    def __init__(self) -> None:
        super().__init__()
        self._picks = 0

    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        self._picks += 1
        if self._picks > 1:
            raise ZeroDivisionError
        return next(iter(waiting))


def test_death_of_the_thread_is_told_to_those_in_flight() -> None:
    """A fault of ours leaves nobody waiting."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=2, discipline=_BreaksLater()) as engine:
        callers = [request(model, value) for value in (1, 2)]
        engine.scheduler.submit(callers)
        engine.loop.run_until_settled(*callers)
        while not engine.ends:
            engine.loop.run_one()

    assert isinstance(engine.ends[0], ZeroDivisionError)
    with pytest.raises(BackendFailed):
        outcome_of(callers[0])


@pytest.mark.parametrize("in_flight", [1, 2])
def test_nothing_of_a_request_is_kept_while_the_thread_waits(in_flight: int) -> None:
    """Large inputs go when they have been answered, not when the next request comes."""
    backend = _ahead()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, in_flight=in_flight) as engine:
        caller = request(model, 1)
        is_kept = weakref.ref(caller.inputs[0])
        engine.scheduler.submit([caller])
        engine.run(caller)
        del caller
        wait_until_asleep(engine.scheduler)

        assert is_kept() is None
