"""Admission to the queues, and batches from them."""

import threading
from collections.abc import Iterator

import pytest
from support.engine_models import (
    DispatchThread,
    build_model,
    dummy,
    manual_scheduler,
    outcome_of,
    spec,
)

from hloserve.core.clock import ManualClock
from hloserve.core.errors import ModelNotFound, QueueFull, ShuttingDown
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler


def _next(scheduler: Scheduler) -> Dispatch:
    dispatch = scheduler.next_dispatch()
    assert dispatch is not None
    return dispatch


def _queued(
    model: DeviceModel, *rows: int, max_queue_depth: int = 1024
) -> tuple[Scheduler, ManualClock, list[QueuedRequest]]:
    scheduler, clock = manual_scheduler(max_queue_depth)
    scheduler.add(model)
    requests = [dummy(model, count) for count in rows]
    for request in requests:
        scheduler.submit([request])
    return scheduler, clock, requests


def test_waiting_requests_are_coalesced() -> None:
    """Three requests of two rows fill a program of four, and one stays for the next dispatch."""
    scheduler, _, (a, b, c) = _queued(build_model(FakeBackend()), 2, 2, 2)

    first, second = _next(scheduler), _next(scheduler)

    assert ([a, b], 4, 4) == (first.requests, first.rows, first.size)
    assert ([c], 2, 4) == (second.requests, second.rows, second.size)


def test_cap_limits_what_is_coalesced() -> None:
    """With a cap of two, three single rows go as two and one."""
    model = build_model(FakeBackend(), sizes=[4, 8], max_batch_size=2)
    scheduler, _, (a, b, c) = _queued(model, 1, 1, 1)

    first, second = _next(scheduler), _next(scheduler)

    assert ([a, b], 4) == (first.requests, first.size)
    assert ([c], 4) == (second.requests, second.size)


def test_older_request_of_another_model_goes_first() -> None:
    """Models take turns by the age of their front request."""
    backend = FakeBackend()
    a, b = build_model(backend, name="a"), build_model(backend, name="b")
    scheduler, clock = manual_scheduler()
    scheduler.add(a)
    scheduler.add(b)
    for model in (b, a, b):
        scheduler.submit([dummy(model, 1)])
        clock.advance(seconds=1)

    assert [_next(scheduler).model.name for _ in range(3)] == ["b", "a", "b"]


def test_only_the_leading_run_of_one_variant_is_coalesced() -> None:
    """Of a queue A, A, B the two A go together, then B alone."""
    model = build_model(
        FakeBackend(),
        function="first",
        inputs=[spec("x", "nw", w=-1)],
        outputs=[spec("y", "nw", w=-1)],
        shapes=[{"w": 4}, {"w": 8}],
        sizes=[1, 2, 4],
    )
    scheduler, _ = manual_scheduler()
    scheduler.add(model)
    requests = [dummy(model, 1, variant) for variant in ((4,), (4,), (8,), (4,))]
    scheduler.submit(requests)

    dispatches = [_next(scheduler) for _ in range(3)]

    assert [requests[:2], requests[2:3], requests[3:]] == [d.requests for d in dispatches]
    assert [d.variant for d in dispatches] == [(4,), (8,), (4,)]


def test_model_with_an_unbatched_output_is_never_coalesced() -> None:
    """Each request goes alone, in the smallest program that holds it."""
    model = build_model(FakeBackend(), function="total", outputs=[spec("s", "")], sizes=[1, 4])
    scheduler, _, (a, b) = _queued(model, 4, 1)

    first, second = _next(scheduler), _next(scheduler)

    assert ([a], 4) == (first.requests, first.size)
    assert ([b], 1) == (second.requests, second.size)


def test_program_of_any_size_serves_one_request_at_a_time() -> None:
    """A program without a batch size runs under size 0."""
    scheduler, _, (a, _b) = _queued(build_model(FakeBackend(), sizes=[0]), 3, 3)

    dispatch = _next(scheduler)

    assert ([a], 3, 0) == (dispatch.requests, dispatch.rows, dispatch.size)


def test_variant_without_programs_goes_alone() -> None:
    """A request that no program fits fails its own dispatch only."""
    model = build_model(FakeBackend())
    scheduler, _ = manual_scheduler()
    scheduler.add(model)
    stranger, known = dummy(model, 2, (9,)), dummy(model, 2)
    scheduler.submit([stranger, known])

    dispatch = _next(scheduler)

    assert ([stranger], 2) == (dispatch.requests, dispatch.size)


def test_request_expires_exactly_at_its_deadline() -> None:
    """A request runs until its deadline and is shed from that instant on."""
    model = build_model(FakeBackend())
    scheduler, clock, _ = _queued(model)
    now_ns = clock.now_ns()
    late, in_time = dummy(model, 1, deadline_ns=now_ns), dummy(model, 1, deadline_ns=now_ns + 1)
    scheduler.submit([late, in_time])

    dispatch = _next(scheduler)

    assert [late] == dispatch.expired
    assert [in_time] == dispatch.requests


def test_size_is_planned_without_those_that_expired() -> None:
    """Late requests do not make a batch larger."""
    model = build_model(FakeBackend())
    scheduler, clock, _ = _queued(model)
    late = [dummy(model, 1, deadline_ns=clock.now_ns()) for _ in range(3)]
    scheduler.submit([*late, dummy(model, 1)])

    dispatch = _next(scheduler)

    assert (1, 1, late) == (dispatch.rows, dispatch.size, dispatch.expired)


def test_dispatch_of_nothing_but_late_requests_has_no_batch() -> None:
    """When all are late there is something to answer and nothing to run."""
    model = build_model(FakeBackend())
    scheduler, clock, _ = _queued(model)
    late = dummy(model, 1, deadline_ns=clock.now_ns())
    scheduler.submit([late])

    dispatch = _next(scheduler)

    assert ([], [late]) == (dispatch.requests, dispatch.expired)
    assert scheduler.depth(model) == 0


def test_cancelled_request_leaves_its_queue_at_once() -> None:
    """The depth is right as soon as a caller has gone."""
    model = build_model(FakeBackend())
    scheduler, _, (a, b) = _queued(model, 1, 1)

    a.cancel()

    assert scheduler.depth(model) == 1
    assert [b] == _next(scheduler).requests


def test_cancelling_a_request_that_runs_changes_no_queue() -> None:
    """A request that was taken is answered into the void; its batch mates stay."""
    model = build_model(FakeBackend(), sizes=[1])
    scheduler, _, (a, b) = _queued(model, 1, 1)
    assert [a] == _next(scheduler).requests

    a.cancel()

    assert scheduler.depth(model) == 1
    assert [b] == _next(scheduler).requests
    b.cancel()


def test_request_that_is_cancelled_but_not_yet_withdrawn_is_passed_over() -> None:
    """Between cancelling and withdrawing the dispatch thread may look, and sees it."""
    scheduler, _, (a, b) = _queued(build_model(FakeBackend()), 1, 1)
    a.withdraw = None
    a.cancel()

    assert [b] == _next(scheduler).requests


def test_last_request_cancelled_leaves_nothing_to_do() -> None:
    """An emptied queue is not served; the scheduler goes on with the next submission."""
    scheduler, _, (a,) = _queued(build_model(FakeBackend()), 1)
    a.cancel()
    scheduler.drain()

    assert scheduler.next_dispatch() is None


def test_queue_is_full_at_its_cap_and_other_models_are_not() -> None:
    """The third request at depth two is refused; another model still takes some."""
    backend = FakeBackend()
    model, other = build_model(backend), build_model(backend, name="other")
    scheduler, _, _ = _queued(model, 1, 1, max_queue_depth=2)
    scheduler.add(other)

    with pytest.raises(QueueFull) as caught:
        scheduler.submit([dummy(model, 1)])
    scheduler.submit([dummy(other, 1)])

    assert (caught.value.model, caught.value.depth) == ("m", 2)


def test_parts_are_queued_all_or_none() -> None:
    """If not all parts of a request fit, none is queued."""
    model = build_model(FakeBackend())
    scheduler, _, _ = _queued(model, 1, max_queue_depth=2)

    with pytest.raises(QueueFull):
        scheduler.submit([dummy(model, 8), dummy(model, 8)])

    assert scheduler.depth(model) == 1


def test_empty_queue_takes_more_parts_than_its_cap() -> None:
    """A request of many parts is not refused for ever."""
    model = build_model(FakeBackend())
    scheduler, _, _ = _queued(model, max_queue_depth=2)

    scheduler.submit([dummy(model, 8) for _ in range(3)])

    assert scheduler.depth(model) == 3


def test_unknown_model_is_not_found() -> None:
    """A model that was never added has no queue."""
    model = build_model(FakeBackend())
    scheduler, _ = manual_scheduler()

    with pytest.raises(ModelNotFound):
        scheduler.submit([dummy(model, 1)])
    assert scheduler.depth(model) == 0


def test_stop_fails_who_waits_and_refuses_who_comes() -> None:
    """After stop every queued and every later request is told that the server shuts down."""
    model = build_model(FakeBackend())
    scheduler, _, requests = _queued(model, 1, 1)

    assert requests == scheduler.stop()

    for request in requests:
        with pytest.raises(ShuttingDown):
            outcome_of(request)
    with pytest.raises(ShuttingDown):
        scheduler.submit([dummy(model, 1)])
    assert scheduler.next_dispatch() is None
    assert scheduler.stop() == []


def test_drain_finishes_what_is_queued_and_takes_nothing_new() -> None:
    """While draining the queue empties; then there is no next dispatch."""
    model = build_model(FakeBackend())
    scheduler, _, requests = _queued(model, 1)
    scheduler.drain()

    with pytest.raises(ShuttingDown):
        scheduler.submit([dummy(model, 1)])
    assert requests == _next(scheduler).requests
    assert scheduler.next_dispatch() is None


def test_drain_after_stop_does_not_reopen() -> None:
    """A stopped scheduler stays stopped."""
    scheduler, _, _ = _queued(build_model(FakeBackend()), 1)
    scheduler.stop()

    scheduler.drain()

    assert scheduler.next_dispatch() is None


def test_running_batches_are_those_taken_and_not_ended() -> None:
    """The oldest first, whichever ends first."""
    scheduler, _, _ = _queued(build_model(FakeBackend(), sizes=[1]), 1, 1, 1)
    first, second = _next(scheduler), _next(scheduler)
    assert [first, second] == list(scheduler.running)

    scheduler.end(first)

    assert [second] == list(scheduler.running)


def test_in_flight_counts_waiting_and_running_requests() -> None:
    """A request is in flight from its submission to the end of its dispatch."""
    scheduler, _, _ = _queued(build_model(FakeBackend()), 1, 1, 1)

    assert scheduler.in_flight == 3
    first = _next(scheduler)
    assert scheduler.in_flight == 3
    scheduler.end(first)
    assert scheduler.in_flight == 2


def test_waiting_thread_is_woken_by_work() -> None:
    """A dispatch thread that found nothing is woken by the next submission."""
    model = build_model(FakeBackend())
    scheduler, _, _ = _queued(model)
    taken: list[Dispatch | None] = []
    thread = threading.Thread(target=lambda: taken.append(scheduler.next_dispatch()))
    thread.start()
    request = dummy(model, 1)

    scheduler.submit([request])

    thread.join(10)
    assert [[request]] == [dispatch.requests for dispatch in taken if dispatch is not None]


@pytest.mark.parametrize("close", ["stop", "drain"])
def test_waiting_thread_is_woken_by_the_end(close: str) -> None:
    """A dispatch thread that waits is let go when the scheduler closes."""
    scheduler, _, _ = _queued(build_model(FakeBackend()))
    taken: list[Dispatch | None] = []
    thread = threading.Thread(target=lambda: taken.append(scheduler.next_dispatch()))
    thread.start()

    getattr(scheduler, close)()

    thread.join(10)
    assert taken == [None]


def test_second_dispatch_thread_is_a_fault() -> None:
    """One thread takes batches; another one is refused before it does harm."""
    scheduler, _, _ = _queued(build_model(FakeBackend()), 1)
    thread = threading.Thread(target=scheduler.next_dispatch)
    thread.start()
    thread.join(10)

    with pytest.raises(AssertionError, match="two threads"):
        scheduler.next_dispatch()


class _Cheap:
    """A scheduler that tells of work, its dispatch thread, and models of size 1."""

    def __init__(self, *names: str) -> None:
        self.scheduler, self.clock = manual_scheduler()
        self.news = 0
        self.scheduler.announce_to(self._hear)
        self.thread = DispatchThread(self.scheduler)
        backend = FakeBackend()
        self.models = {name: build_model(backend, name=name, sizes=[1]) for name in names}
        for model in self.models.values():
            self.scheduler.add(model)

    def _hear(self) -> None:
        self.news += 1

    def costs(self, name: str, cost_ns: int) -> None:
        """Say what a batch of the model costs."""
        self.models[name].statistics.learn_cost((), 1, cost_ns)

    def submit(self, name: str, deadline_ns: int = 2**63 - 1) -> QueuedRequest:
        """Queue one row, later than what is queued already."""
        self.clock.advance(seconds=1)
        request = dummy(self.models[name], 1, deadline_ns=deadline_ns)
        self.scheduler.submit([request])
        return request


@pytest.fixture
def cheap() -> Iterator[_Cheap]:
    """Two models: "cheap" is known to cost 10 ns, "dear" 1,000; the dispatch thread sleeps."""
    made = _Cheap("cheap", "dear")
    made.costs("cheap", 10)
    made.costs("dear", 1000)
    made.thread.sleep()
    yield made
    made.thread.end()


def test_work_is_told_of_once_while_the_thread_sleeps(cheap: _Cheap) -> None:
    """More submissions are no news until somebody came for the first."""
    for _ in range(3):
        cheap.submit("cheap")

    assert cheap.news == 1
    assert cheap.scheduler.is_thread_waiting


def test_nobody_is_told_while_the_thread_is_awake(cheap: _Cheap) -> None:
    """A thread that runs a batch takes the next one without being told."""
    dear = cheap.submit("dear")
    assert cheap.scheduler.take_cheap(100) is None
    assert [dear] == _given(cheap).requests
    later = cheap.submit("cheap")

    assert (cheap.news, cheap.scheduler.take_cheap(100)) == (1, None)
    cheap.thread.ask()
    assert [later] == _given(cheap).requests


def test_cheap_batches_are_given_one_by_one_and_what_is_left_is_told_of(cheap: _Cheap) -> None:
    """Who runs cheap batches comes back to its other work between them."""
    requests = [cheap.submit("cheap") for _ in range(2)]
    for number, request in enumerate(requests):
        dispatch = cheap.scheduler.take_cheap(10)
        assert dispatch is not None
        assert [request] == dispatch.requests
        assert cheap.scheduler.in_flight == 2 - number
        cheap.scheduler.end_cheap(dispatch)

    assert (cheap.news, cheap.scheduler.in_flight) == (2, 0)
    assert cheap.scheduler.take_cheap(10) is None


@pytest.mark.parametrize("budget_ns", [0, 9])
def test_batch_over_the_budget_goes_to_the_thread(cheap: _Cheap, budget_ns: int) -> None:
    """Whoever asks for less than a batch costs gets nothing, and the thread gets the batch."""
    request = cheap.submit("cheap")

    assert cheap.scheduler.take_cheap(budget_ns) is None
    assert [request] == _given(cheap).requests


def test_batch_of_unknown_cost_goes_to_the_thread() -> None:
    """Nobody lets the loop wait for a program that was never timed."""
    made = _Cheap("new")
    made.thread.sleep()
    request = made.submit("new")

    assert made.scheduler.take_cheap(10**12) is None
    assert [request] == _given(made).requests
    made.thread.end()


def test_what_was_handed_over_is_not_overtaken(cheap: _Cheap) -> None:
    """However much cheap work comes, none runs before the thread has taken and run its batch."""
    first, dear = cheap.submit("cheap"), cheap.submit("dear")
    later = [cheap.submit("cheap") for _ in range(2)]
    taken = cheap.scheduler.take_cheap(100)
    assert taken is not None
    assert [first] == taken.requests
    cheap.scheduler.end_cheap(taken)

    for _ in range(3):
        assert cheap.scheduler.take_cheap(100) is None

    assert [dear] == _given(cheap).requests
    for request in later:
        cheap.thread.ask()
        assert [request] == _given(cheap).requests


def test_expired_requests_cost_nothing(cheap: _Cheap) -> None:
    """A dispatch that only says "too late" is cheap whatever its model costs."""
    late = cheap.submit("dear", deadline_ns=0)

    dispatch = cheap.scheduler.take_cheap(0)

    assert dispatch is not None
    assert ([], [late], 0) == (dispatch.requests, dispatch.expired, dispatch.cost_ns)


def test_work_that_is_cancelled_after_it_was_told_of_is_not_missed(cheap: _Cheap) -> None:
    """Coming for nothing is harmless, and the next request is told of again."""
    cheap.submit("cheap").cancel()

    assert cheap.scheduler.take_cheap(100) is None
    cheap.submit("cheap")
    assert cheap.news == 2


def test_cancelled_requests_that_are_still_queued_are_passed_over(cheap: _Cheap) -> None:
    """A batch of nobody is not given."""
    gone, stays = cheap.submit("cheap"), cheap.submit("dear")
    gone.withdraw = None
    gone.cancel()

    dispatch = cheap.scheduler.take_cheap(1000)

    assert dispatch is not None
    assert [stays] == dispatch.requests


def test_drain_leaves_work_that_was_told_of_to_the_thread(cheap: _Cheap) -> None:
    """What waits while the server drains is served by the thread, before it ends."""
    request = cheap.submit("cheap")
    cheap.scheduler.drain()

    assert [request] == _given(cheap).requests
    assert cheap.scheduler.take_cheap(100) is None
    cheap.thread.ask()
    assert cheap.thread.given() is None


def test_stop_fails_work_that_was_told_of(cheap: _Cheap) -> None:
    """Who comes for it then finds nothing."""
    request = cheap.submit("cheap")

    assert [request] == cheap.scheduler.stop()

    assert cheap.scheduler.take_cheap(100) is None
    assert cheap.thread.given() is None
    with pytest.raises(ShuttingDown):
        outcome_of(request)


@pytest.mark.parametrize("attempt", range(10))
def test_stop_while_a_batch_is_handed_over_loses_nobody(cheap: _Cheap, attempt: int) -> None:
    """Either the thread was quicker and runs it, or everybody in it is told; never both."""
    request, late = cheap.submit("dear"), cheap.submit("dear", deadline_ns=0)
    assert cheap.scheduler.take_cheap(100) is None

    failed = cheap.scheduler.stop()
    dispatch = cheap.thread.given()

    if dispatch is None:
        assert {request, late} == set(failed)
        assert cheap.scheduler.in_flight == 0
    else:
        assert ([request], [late]) == (dispatch.requests, failed)


def test_removing_a_model_leaves_the_batch_that_was_handed_over(cheap: _Cheap) -> None:
    """It counts as running; those behind it are told."""
    running, waiting = cheap.submit("dear"), cheap.submit("dear")
    assert cheap.scheduler.take_cheap(100) is None

    assert [waiting] == cheap.scheduler.remove(cheap.models["dear"])

    assert [running] == _given(cheap).requests


def test_closing_while_a_cheap_batch_is_answered_gives_the_device_to_the_thread(
    cheap: _Cheap,
) -> None:
    """What the thread runs is counted as running, although the cheap batch ends later."""
    cheap.submit("cheap")
    waiting = cheap.submit("cheap")
    dispatch = cheap.scheduler.take_cheap(100)
    assert dispatch is not None
    cheap.scheduler.drain()
    assert [waiting] == _given(cheap).requests

    cheap.scheduler.end_cheap(dispatch)

    assert cheap.scheduler.in_flight == 1


def test_stopping_while_a_cheap_batch_is_answered_is_the_end(cheap: _Cheap) -> None:
    """Nothing is told of any more."""
    cheap.submit("cheap")
    dispatch = cheap.scheduler.take_cheap(100)
    assert dispatch is not None
    cheap.scheduler.stop()

    cheap.scheduler.end_cheap(dispatch)

    assert (cheap.news, cheap.thread.given(), cheap.scheduler.in_flight) == (1, None, 0)


def test_woken_thread_takes_cheap_work_too(cheap: _Cheap) -> None:
    """`wake` is for somebody who was told of work and cannot come."""
    request = cheap.submit("cheap")

    cheap.scheduler.wake()

    assert [request] == _given(cheap).requests


def _given(cheap: _Cheap) -> Dispatch:
    dispatch = cheap.thread.given()
    assert dispatch is not None
    return dispatch
