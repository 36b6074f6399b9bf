"""Priorities within the queue of one model."""

import numpy as np
from support.engine_models import build_model, dummy, manual_scheduler, rows_of

from hloserve.core.clock import ManualClock
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.queued_request import (
    PRIORITY_STEP_NS,
    QueuedRequest,
    build_requests,
)
from hloserve.engine.scheduling.scheduler import Scheduler


def _one_by_one() -> tuple[DeviceModel, Scheduler, ManualClock]:
    scheduler, clock = manual_scheduler()
    model = build_model(FakeBackend(), sizes=[1])
    scheduler.add(model)
    return model, scheduler, clock


def _served(scheduler: Scheduler, count: int) -> list[QueuedRequest]:
    served: list[QueuedRequest] = []
    while len(served) < count:
        dispatch = scheduler.next_dispatch()
        assert dispatch is not None
        served += dispatch.requests
    return served


def test_smaller_priority_goes_first_and_equals_in_their_order() -> None:
    """The queue of a model serves urgent requests first, and then who came first."""
    model, scheduler, _ = _one_by_one()
    usual, urgent, patient, last = (dummy(model, 1, priority=level) for level in (10, 1, 100, 10))
    for caller in (usual, urgent, patient, last):
        scheduler.submit([caller])

    assert [urgent, usual, last, patient] == _served(scheduler, 4)


def test_who_has_waited_long_is_not_passed() -> None:
    """One level is worth two seconds of waiting, so nobody starves."""
    model, scheduler, clock = _one_by_one()
    old, new, newer = (dummy(model, 1, priority=level) for level in (10, 9, 8))
    scheduler.submit([old])
    clock.advance(seconds=2.5)
    scheduler.submit([new])
    scheduler.submit([newer])

    assert [newer, old, new] == _served(scheduler, 3)


def test_parts_of_an_urgent_request_stay_together() -> None:
    """They are put in as one, in their order."""
    model, scheduler, _ = _one_by_one()
    usual = dummy(model, 1)
    parts = [dummy(model, 1, priority=1) for _ in range(3)]
    scheduler.submit([usual])
    scheduler.submit(parts)

    assert [*parts, usual] == _served(scheduler, 4)


def test_urgent_requests_may_be_withdrawn() -> None:
    """Cancelling works as for any other."""
    model, scheduler, _ = _one_by_one()
    usual, urgent = dummy(model, 1), dummy(model, 1, priority=1)
    scheduler.submit([usual])
    scheduler.submit([urgent])
    urgent.cancel()

    assert [usual] == _served(scheduler, 1)


def test_every_part_of_a_split_request_has_its_priority() -> None:
    """Rows that no program holds are cut; the parts are as urgent as the whole."""
    model = build_model(FakeBackend(), sizes=[1, 4])

    parts = build_requests(model, [rows_of(*np.zeros(9))], priority=12)

    assert [2 * PRIORITY_STEP_NS] * 3 == [part.shift_ns for part in parts]
    assert 0 == build_requests(model, [rows_of(1)])[0].shift_ns
