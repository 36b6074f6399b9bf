"""Admission to the queues, and batches from them."""

import threading

import pytest
from support.engine_models import build_model, dummy, manual_scheduler, outcome_of, spec

from hloserve.core.clock import ManualClock
from hloserve.core.errors import ModelNotFound, QueueFull, ShuttingDown
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.queued_request import QueuedRequest
from hloserve.engine.scheduler import Dispatch, Scheduler


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
    assert scheduler.depth("m") == 0


def test_cancelled_request_leaves_its_queue_at_once() -> None:
    """The depth is right as soon as a caller has gone."""
    scheduler, _, (a, b) = _queued(build_model(FakeBackend()), 1, 1)

    a.cancel()

    assert scheduler.depth("m") == 1
    assert [b] == _next(scheduler).requests


def test_cancelling_a_request_that_runs_changes_no_queue() -> None:
    """A request that was taken is answered into the void; its batch mates stay."""
    scheduler, _, (a, b) = _queued(build_model(FakeBackend(), sizes=[1]), 1, 1)
    assert [a] == _next(scheduler).requests

    a.cancel()

    assert scheduler.depth("m") == 1
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

    assert scheduler.depth("m") == 1


def test_empty_queue_takes_more_parts_than_its_cap() -> None:
    """A request of many parts is not refused for ever."""
    model = build_model(FakeBackend())
    scheduler, _, _ = _queued(model, max_queue_depth=2)

    scheduler.submit([dummy(model, 8) for _ in range(3)])

    assert scheduler.depth("m") == 3


def test_unknown_model_is_not_found() -> None:
    """A model that was never added has no queue."""
    scheduler, _ = manual_scheduler()

    with pytest.raises(ModelNotFound):
        scheduler.submit([dummy(build_model(FakeBackend()), 1)])
    assert scheduler.depth("m") == 0


def test_removed_model_fails_who_waits_for_it() -> None:
    """Unloading a model tells its queue NOT_FOUND, and later requests too."""
    model = build_model(FakeBackend())
    scheduler, _, requests = _queued(model, 1, 1)

    assert requests == scheduler.remove("m")

    for request in requests:
        with pytest.raises(ModelNotFound):
            outcome_of(request)
    with pytest.raises(ModelNotFound):
        scheduler.submit([dummy(model, 1)])
    assert scheduler.remove("m") == []


def test_removed_model_can_be_added_again() -> None:
    """A name is free after its removal; adding it twice is a fault of ours."""
    model = build_model(FakeBackend())
    scheduler, _, _ = _queued(model, 1)
    scheduler.remove("m")

    scheduler.add(model)

    with pytest.raises(AssertionError, match="already scheduled"):
        scheduler.add(model)


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


def test_in_flight_counts_waiting_and_running_requests() -> None:
    """A request is in flight from its submission to the end of its dispatch."""
    scheduler, _, _ = _queued(build_model(FakeBackend()), 1, 1, 1)

    assert scheduler.in_flight == 3
    _next(scheduler)
    assert scheduler.in_flight == 3
    _next(scheduler)
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
