"""Models that leave the scheduler, and two generations of one."""

import pytest
from support.engine_models import build_model, dummy, manual_scheduler, outcome_of

from hloserve.core.errors import ModelNotFound
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler


def _next(scheduler: Scheduler) -> Dispatch:
    dispatch = scheduler.next_dispatch()
    assert dispatch is not None
    return dispatch


def _queued(model: DeviceModel, *rows: int) -> tuple[Scheduler, list[QueuedRequest]]:
    scheduler, _ = manual_scheduler()
    scheduler.add(model)
    requests = [dummy(model, count) for count in rows]
    for request in requests:
        scheduler.submit([request])
    return scheduler, requests


def test_removed_model_fails_who_waits_for_it() -> None:
    """Unloading a model tells its queue NOT_FOUND, and later requests too."""
    model = build_model(FakeBackend())
    scheduler, requests = _queued(model, 1, 1)

    assert requests == scheduler.remove(model)

    for request in requests:
        with pytest.raises(ModelNotFound):
            outcome_of(request)
    with pytest.raises(ModelNotFound):
        scheduler.submit([dummy(model, 1)])
    assert scheduler.remove(model) == []


def test_removed_model_can_be_added_again() -> None:
    """A name is free after its removal; adding it twice is a fault of ours."""
    model = build_model(FakeBackend())
    scheduler, _ = _queued(model, 1)
    scheduler.remove(model)

    scheduler.add(model)

    with pytest.raises(AssertionError, match="already scheduled"):
        scheduler.add(model)


def test_two_generations_of_one_name_have_queues_of_their_own() -> None:
    """What was queued for the old one is run by the old one, and the new one serves meanwhile."""
    backend = FakeBackend()
    old, new = build_model(backend, sizes=[1]), build_model(backend, sizes=[1])
    scheduler, (for_old,) = _queued(old, 1)
    scheduler.add(new)
    for_new = dummy(new, 1)
    scheduler.submit([for_new])

    first, second = _next(scheduler), _next(scheduler)

    assert {id(old): [for_old], id(new): [for_new]} == {
        id(first.model): first.requests,
        id(second.model): second.requests,
    }


def test_removed_model_is_idle_at_once_when_none_of_its_batches_runs() -> None:
    """Its memory may be freed; the batch of another model is no reason to wait."""
    backend = FakeBackend()
    busy, leaving = build_model(backend, sizes=[1]), build_model(backend, name="other")
    scheduler, _ = _queued(busy, 1)
    scheduler.add(leaving)
    _next(scheduler)
    told: list[str] = []

    scheduler.remove(leaving, on_idle=lambda: told.append("idle"))

    assert ["idle"] == told


def test_removed_model_is_idle_when_its_last_batch_has_run() -> None:
    """Not earlier, since the batch uses its memory; and it is told once."""
    model = build_model(FakeBackend(), sizes=[1])
    scheduler, (_, waiting) = _queued(model, 1, 1)
    running = _next(scheduler)
    told: list[str] = []

    assert [waiting] == scheduler.remove(model, on_idle=lambda: told.append("idle"))

    assert not told
    scheduler.end(running)
    assert ["idle"] == told


def test_removed_model_is_idle_when_all_of_its_batches_have_ended() -> None:
    """Two may be in flight; the first to end is not the last that uses the memory."""
    model = build_model(FakeBackend(), sizes=[1])
    scheduler, _ = _queued(model, 1, 1)
    first, second = _next(scheduler), scheduler.poll_dispatch()
    assert second is not None
    told: list[str] = []
    scheduler.remove(model, on_idle=lambda: told.append("idle"))

    scheduler.end(second)
    assert not told
    scheduler.end(first)

    assert ["idle"] == told
