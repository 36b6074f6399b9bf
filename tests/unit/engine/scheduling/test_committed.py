"""Sub-calls of requests that already run: they go first."""

import pytest
from support.engine_models import build_model, dummy, manual_scheduler

from hloserve.core.errors import ModelNotFound, QueueFull
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler


def _scheduler(
    *names: str, max_queue_depth: int = 1024, sizes: tuple[int, ...] = (1,)
) -> tuple[Scheduler, list[DeviceModel]]:
    scheduler, _ = manual_scheduler(max_queue_depth)
    backend = FakeBackend()
    models = [build_model(backend, name=name, sizes=sizes) for name in names]
    for model in models:
        scheduler.add(model)
    return scheduler, models


def _submit(
    scheduler: Scheduler, model: DeviceModel, *, is_committed: bool = False, priority: int = 10
) -> QueuedRequest:
    request = dummy(model, 1, priority=priority)
    scheduler.submit([request], is_committed=is_committed)
    return request


def _served(scheduler: Scheduler) -> list[QueuedRequest]:
    scheduler.drain()
    served: list[QueuedRequest] = []
    while (dispatch := scheduler.next_dispatch()) is not None:
        served += dispatch.requests
    return served


def test_committed_requests_go_before_all_others_in_the_order_of_their_arrival() -> None:
    """Whichever model they are for, and whoever was there before."""
    scheduler, (a, b) = _scheduler("a", "b")
    old_a, old_b = _submit(scheduler, a), _submit(scheduler, b)
    committed = [_submit(scheduler, model, is_committed=True) for model in (b, a, b)]

    assert [*committed, old_a, old_b] == _served(scheduler)


def test_urgent_request_does_not_pass_a_committed_one() -> None:
    """Priorities order those who wait for their turn; a committed one has had it."""
    scheduler, (a,) = _scheduler("a")
    usual = _submit(scheduler, a)
    committed = _submit(scheduler, a, is_committed=True)
    urgent = _submit(scheduler, a, priority=1)

    assert [committed, urgent, usual] == _served(scheduler)


def test_committed_request_leads_its_batch() -> None:
    """What else waits for the model goes along."""
    scheduler, (a,) = _scheduler("a", sizes=(2, 4))
    others = [_submit(scheduler, a) for _ in range(2)]
    committed = [_submit(scheduler, a, is_committed=True) for _ in range(2)]

    dispatch = scheduler.next_dispatch()

    assert dispatch is not None
    assert [*committed, *others] == dispatch.requests


def test_cancelled_committed_request_gives_its_turn_back() -> None:
    """Withdrawn or passed over, its model has no claim left."""
    scheduler, (a, b) = _scheduler("a", "b")
    for_a = _submit(scheduler, a)
    gone, passed_over = (_submit(scheduler, b, is_committed=True) for _ in range(2))
    for_b = _submit(scheduler, b)
    gone.cancel()
    passed_over.withdraw = None
    passed_over.cancel()

    assert [for_a, for_b] == _served(scheduler)


def test_removed_model_has_no_committed_requests_left() -> None:
    """They fail with the others of its queue, and the next batch is somebody else's."""
    scheduler, (a, b) = _scheduler("a", "b")
    committed, for_b = _submit(scheduler, a, is_committed=True), _submit(scheduler, b)

    assert [committed] == scheduler.remove(a)

    with pytest.raises(ModelNotFound):
        _submit(scheduler, a, is_committed=True)
    assert [for_b] == _served(scheduler)


def test_stop_fails_committed_requests_too() -> None:
    """Nothing is left that could be taken."""
    scheduler, (a,) = _scheduler("a")
    committed = _submit(scheduler, a, is_committed=True)

    assert [committed] == scheduler.stop()

    assert scheduler.next_dispatch() is None


def test_committed_requests_respect_the_depth_of_the_queue() -> None:
    """A meta model is told that its part is overloaded, as anybody is."""
    scheduler, (a,) = _scheduler("a", max_queue_depth=1)
    _submit(scheduler, a)

    with pytest.raises(QueueFull):
        _submit(scheduler, a, is_committed=True)
