"""The dispatch thread, from a queue to replies."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from support.engine_models import (
    Engine,
    FakeLoop,
    build_model,
    dummy,
    manual_scheduler,
    outcome_of,
    request,
    rows_of,
    spec,
)
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.core.errors import (
    BackendFailed,
    BadRequest,
    DeadlineExceeded,
    DeviceMemoryFull,
    ShuttingDown,
)
from hloserve.engine.assembly import join_outputs
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.model_queue import ModelQueue
from hloserve.engine.scheduling.queued_request import QueuedRequest, build_requests
from hloserve.engine.scheduling.scheduler import Scheduler


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="hloserve")


def _poison(value: float) -> FakeBackend:
    return FakeBackend(fail_when=lambda arguments: bool((arguments[0] == value).any()))


def _first(request: QueuedRequest) -> list[float]:
    return [float(value) for value in outcome_of(request)[0][:, 0]]


def test_four_single_rows_run_as_one_batch_and_each_caller_gets_its_own() -> None:
    """Requests that wait while the device is busy share a dispatch; slices are not mixed up."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        blocker = engine.hold_device(model)
        callers = [request(model, value) for value in (1, 2, 3, 4)]
        for caller in callers:
            engine.scheduler.submit([caller])
        engine.run(blocker, *callers)

    assert [_first(caller) for caller in callers] == [[2], [4], [6], [8]]
    assert model.statistics.batch_sizes == {1: 1, 4: 1}
    assert (model.statistics.requests_served, model.statistics.rows_served) == (5, 5)


def test_all_replies_of_a_dispatch_cross_by_one_post() -> None:
    """Four answers are one callback on the loop."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        blocker = engine.hold_device(model)
        callers = [request(model, value) for value in (1, 2, 3, 4)]
        engine.scheduler.submit(callers)
        engine.run(blocker, *callers)

    assert engine.loop.posts == 2


def test_time_of_a_dispatch_is_kept_by_its_parts() -> None:
    """Inputs, execution and outputs each took some, and assembly counts with the inputs."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[4])
    with Engine(backend, model) as engine:
        caller = request(model, 3)
        engine.scheduler.submit([caller])
        engine.run(caller)

    figures = model.statistics.batches[4]
    assert min(figures.input_ns, figures.infer_ns, figures.output_ns) > 0
    assert figures.infer_ns + figures.output_ns <= model.statistics.compute_ns
    assert model.statistics.queued_count == 1


def test_padding_does_not_show() -> None:
    """One row in a program of four comes back as one row."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[4])
    with Engine(backend, model) as engine:
        caller = request(model, 3)
        engine.scheduler.submit([caller])
        engine.run(caller)

    np.testing.assert_array_equal(rows_of(6), outcome_of(caller)[0])
    assert (model.statistics.rows_served, model.statistics.padded_rows) == (1, 4)


def test_answers_survive_the_dispatches_after_them() -> None:
    """Outputs are not overwritten when the staging memory is used again."""
    backend = FakeBackend()
    model = build_model(backend, function="identity", sizes=[4])
    with Engine(backend, model) as engine:
        callers = [request(model, value, value, value, value) for value in range(5)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    assert [[value] * 4 for value in range(5)] == [_first(caller) for caller in callers]


def test_batch_axes_in_different_places_are_joined_and_cut_along_their_own() -> None:
    """Inputs and outputs may have the batch anywhere."""
    backend = FakeBackend(functions={"swap": lambda a: [a[1], a[0].T]})
    model = build_model(
        backend,
        function="swap",
        inputs=[spec("x", "nc", c=3), spec("y", "wn", w=2)],
        outputs=[spec("y", "wn", w=2), spec("x", "cn", c=3)],
        sizes=[1, 4],
    )
    first = [rows_of(1, 2), np.array([[1, 2], [3, 4]], np.float32)]
    second = [rows_of(5, 6), np.array([[5, 6], [7, 8]], np.float32)]
    with Engine(backend, model) as engine:
        callers = [QueuedRequest(model, inputs, 2) for inputs in (first, second)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    for caller, (x, y) in zip(callers, (first, second), strict=True):
        got_y, got_x = outcome_of(caller)
        np.testing.assert_array_equal(y, got_y)
        np.testing.assert_array_equal(x.T, got_x)


def test_parts_of_an_oversize_request_join_to_the_whole_answer() -> None:
    """A request larger than every program is served over several dispatches."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        parts = build_requests(model, [rows_of(*range(9))])
        engine.scheduler.submit(parts)
        engine.run(*parts)

    (joined,) = join_outputs(model.outputs, [outcome_of(part) for part in parts])
    np.testing.assert_array_equal(2 * rows_of(*range(9)), joined)
    assert model.statistics.batch_sizes == {4: 2, 1: 1}


def test_unbatched_model_is_run_as_it_is() -> None:
    """A model without a batch axis gets its inputs and gives its outputs whole."""
    backend = FakeBackend()
    model = build_model(
        backend, inputs=[spec("x", "c", c=3)], outputs=[spec("y", "c", c=3)], sizes=[0]
    )
    with Engine(backend, model) as engine:
        caller = QueuedRequest(model, [np.array([1, 2, 3], np.float32)], 1)
        engine.scheduler.submit([caller])
        engine.run(caller)

    assert outcome_of(caller)[0].tolist() == [2, 4, 6]
    assert model.statistics.batch_sizes == {0: 1}


def test_program_of_any_size_is_not_padded() -> None:
    """Under size 0 a request runs with the rows it has."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[0])
    with Engine(backend, model) as engine:
        caller = request(model, 1, 2, 3)
        engine.scheduler.submit([caller])
        engine.run(caller)

    assert _first(caller) == [2, 4, 6]


def test_answer_over_the_whole_batch_is_never_padded() -> None:
    """Where padding would change the answer, a row count without a program fails instead."""
    backend = FakeBackend()
    model = build_model(backend, function="total", outputs=[spec("s", "")], sizes=[4])
    with Engine(backend, model) as engine:
        fits, unchecked = request(model, 1, 2, 3, 4), QueuedRequest(model, [rows_of(1)], 1)
        engine.scheduler.submit([fits, unchecked])
        engine.run(fits, unchecked)

    assert outcome_of(fits)[0] == 30
    with pytest.raises(BackendFailed):
        outcome_of(unchecked)


def test_poisoned_request_fails_alone() -> None:
    """A batch that fails is run again request by request, and only the guilty one fails."""
    backend = _poison(13)
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        blocker = engine.hold_device(model)
        callers = [request(model, value) for value in (1, 13, 3, 4)]
        engine.scheduler.submit(callers)
        engine.run(blocker, *callers)

    assert [_first(callers[i]) for i in (0, 2, 3)] == [[2], [6], [8]]
    with pytest.raises(BackendFailed, match="told to fail"):
        outcome_of(callers[1])
    assert backend.executed == [(1, 3), (4, 3), (1, 3), (1, 3), (1, 3), (1, 3)]
    assert (model.statistics.requests_served, model.statistics.failed_count) == (4, 1)


def test_lone_request_that_fails_is_not_run_again() -> None:
    """There is nobody to separate it from."""
    backend = _poison(13)
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model) as engine:
        caller = request(model, 13)
        engine.scheduler.submit([caller])
        engine.run(caller)

    assert len(backend.executed) == 1
    with pytest.raises(BackendFailed):
        outcome_of(caller)


def test_retry_passes_over_who_has_gone_and_who_is_late() -> None:
    """A request is run again only for a caller who still wants the answer."""
    clock = ManualClock(1_000_000_000)
    backend = _poison(13)
    model = build_model(backend, sizes=[1, 4])
    with Engine(backend, model, clock=clock) as engine:
        engine.backend.gate.close()
        callers = [request(model, value, deadline_ns=2_000_000_000 + value) for value in range(3)]
        callers.append(request(model, 13))
        engine.scheduler.submit(callers)
        engine.backend.gate.wait_for_arrivals(1)
        callers[2].cancel()
        clock.advance(seconds=1)
        engine.run(*callers)

    with pytest.raises(DeadlineExceeded):
        outcome_of(callers[0])
    assert _first(callers[1]) == [2]
    assert callers[2].is_cancelled
    assert backend.executed == [(4, 3), (1, 3), (1, 3)]


def test_error_of_our_own_keeps_its_type() -> None:
    """A full device is told as such, since the caller may try again."""
    backend = FakeBackend(limit_bytes=100)
    model = build_model(backend, sizes=[8])
    with Engine(backend, model) as engine:
        caller = request(model, *range(8))
        engine.scheduler.submit([caller])
        engine.run(caller)

    with pytest.raises(DeviceMemoryFull):
        outcome_of(caller)


def test_foreign_error_becomes_ours_and_keeps_its_cause() -> None:
    """What a backend should not have raised is told as a failed execution."""

    class RudeBackend(FakeBackend):
        @override
        def execute(self, executable: object, arguments: Sequence[object]) -> Sequence[object]:
            raise MemoryError("rude")

    backend = RudeBackend()
    model = build_model(backend)
    with Engine(backend, model) as engine:
        caller = request(model, 1)
        engine.scheduler.submit([caller])
        engine.run(caller)

    with pytest.raises(BackendFailed, match="rude") as caught:
        outcome_of(caller)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_unknown_variant_fails_its_own_request_with_a_clear_error() -> None:
    """A request that slipped through for a shape without programs is refused by name."""
    backend = FakeBackend()
    model = build_model(backend)
    with Engine(backend, model) as engine:
        stranger, caller = QueuedRequest(model, [rows_of(1)], 1, (9,)), request(model, 1)
        engine.scheduler.submit([stranger, caller])
        engine.run(stranger, caller)

    with pytest.raises(BadRequest, match="no program"):
        outcome_of(stranger)
    assert _first(caller) == [2]


def test_results_of_the_wrong_shape_are_not_delivered() -> None:
    """A program that returns too few rows fails its callers instead of mixing them up."""
    backend = FakeBackend(functions={"lose": lambda a: [a[0][1:]]})
    model = build_model(backend, function="lose", sizes=[2])
    with Engine(backend, model) as engine:
        callers = [request(model, 1), request(model, 2)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    for caller in callers:
        with pytest.raises(BackendFailed, match="came with shape"):
            outcome_of(caller)
    assert model.statistics.dispatch_count == 0


def test_late_request_is_answered_without_running() -> None:
    """A request whose deadline passed in the queue costs the device nothing."""
    clock = ManualClock(1_000_000_000)
    backend = FakeBackend()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, clock=clock) as engine:
        blocker = engine.hold_device(model)
        late = request(model, 1, deadline_ns=clock.now_ns() + 5)
        engine.scheduler.submit([late])
        clock.advance(seconds=1)
        engine.run(blocker, late)

    with pytest.raises(DeadlineExceeded) as caught:
        outcome_of(late)
    assert caught.value.late_ns == 999_999_995
    assert len(backend.executed) == 1
    assert model.statistics.shed_count == 1


def test_late_request_is_answered_with_the_batch_it_was_found_beside() -> None:
    """Shed and served requests of one dispatch cross together."""
    clock = ManualClock(1_000_000_000)
    backend = FakeBackend()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, clock=clock) as engine:
        late, caller = request(model, 1, deadline_ns=clock.now_ns()), request(model, 2)
        engine.scheduler.submit([late, caller])
        engine.run(late, caller)

    assert engine.loop.posts == 1
    assert _first(caller) == [4]
    with pytest.raises(DeadlineExceeded):
        outcome_of(late)


def test_caller_that_leaves_while_its_batch_runs_disturbs_nobody() -> None:
    """A cancelled request of a running batch is passed over on delivery."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[2])
    with Engine(backend, model) as engine:
        backend.gate.close()
        gone, stays = request(model, 1), request(model, 2)
        engine.scheduler.submit([gone, stays])
        backend.gate.wait_for_arrivals(1)
        gone.cancel()
        engine.run(stays)

    assert _first(stays) == [4]
    assert gone.is_cancelled


def test_wait_is_measured_to_the_start_of_the_dispatch() -> None:
    """The time of the execution is not in the queue wait."""
    clock = ManualClock(1_000_000_000)
    backend = FakeBackend()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model, clock=clock) as engine:
        blocker = engine.hold_device(model)
        caller = request(model, 1)
        engine.scheduler.submit([caller])
        clock.advance(seconds=3)
        engine.run(blocker, caller)

    assert model.statistics.waits_ns() == [0, 3_000_000_000]
    assert model.statistics.compute_ns == 3_000_000_000


def test_buffers_are_freed_after_a_dispatch_that_works_and_after_one_that_fails() -> None:
    """Only the weights stay on the device."""
    backend = _poison(13)
    model = build_model(backend, sizes=[1])
    weights_bytes = backend.in_use_bytes
    with Engine(backend, model) as engine:
        callers = [request(model, 1), request(model, 13)]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    assert weights_bytes == backend.in_use_bytes


def test_both_variants_use_the_same_weights() -> None:
    """Variants differ in their programs only."""
    backend = FakeBackend()
    model = build_model(
        backend,
        function="affine",
        inputs=[spec("x", "nw", w=-1)],
        outputs=[spec("y", "nw", w=-1)],
        shapes=[{"w": 2}, {"w": 3}],
        weights=[np.array(2, np.float32), np.array(1, np.float32)],
    )
    with Engine(backend, model) as engine:
        callers = [
            build_requests(model, [np.full((1, width), width, np.float32)])[0] for width in (2, 3)
        ]
        engine.scheduler.submit(callers)
        engine.run(*callers)

    assert [outcome_of(caller)[0].tolist() for caller in callers] == [[[5, 5]], [[7, 7, 7]]]


def test_queued_requests_are_told_when_the_scheduler_stops() -> None:
    """Stopping answers the running batch and fails those that wait."""
    backend = FakeBackend()
    model = build_model(backend)
    with Engine(backend, model) as engine:
        running = engine.hold_device(model)
        waiting = request(model, 1)
        engine.scheduler.submit([waiting])
        engine.scheduler.stop()
        engine.run(running)

    assert _first(running) == [0]
    with pytest.raises(ShuttingDown):
        outcome_of(waiting)


def test_end_is_posted_after_the_last_reply() -> None:
    """Who drains is told when every queued request has its answer."""
    backend = FakeBackend()
    model = build_model(backend, sizes=[1])
    with Engine(backend, model) as engine:
        running = engine.hold_device(model)
        waiting = request(model, 1)
        engine.scheduler.submit([waiting])
        engine.scheduler.drain()
        engine.run(running, waiting)
        assert engine.ends == []
        engine.loop.run_one()

    assert engine.ends == [None]


class _BrokenDiscipline(Discipline):
    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        raise ZeroDivisionError


def test_death_of_the_thread_leaves_nobody_waiting() -> None:
    """If a fault of ours ends the thread, queued requests fail and the owner is told."""
    backend, loop, clock = FakeBackend(), FakeLoop(), ManualClock()
    model = build_model(backend)
    scheduler = Scheduler(clock, _BrokenDiscipline(), 10)
    ends: list[Exception | None] = []
    scheduler.add(model)
    waiting = dummy(model, 1)
    scheduler.submit([waiting])
    dispatcher = Dispatcher(backend, scheduler, clock, loop.post, ends.append)

    dispatcher.start()
    while not ends:
        loop.run_one()

    assert dispatcher.join(10)
    assert isinstance(ends[0], ZeroDivisionError)
    with pytest.raises(ShuttingDown):
        outcome_of(waiting)


def test_closed_loop_ends_the_thread_quietly() -> None:
    """When the loop is gone there is nobody left to answer."""

    def refuse(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    backend = FakeBackend()
    model = build_model(backend)
    scheduler, clock = manual_scheduler()
    scheduler.add(model)
    scheduler.submit([request(model, 1)])
    dispatcher = Dispatcher(backend, scheduler, clock, refuse)

    dispatcher.start()

    assert dispatcher.join(10)


def test_join_says_when_the_thread_is_still_busy() -> None:
    """Waiting for the end is bounded."""
    backend = FakeBackend()
    model: DeviceModel = build_model(backend)
    with Engine(backend, model) as engine:
        engine.hold_device(model)

        assert not engine.dispatcher.join(0.0)
