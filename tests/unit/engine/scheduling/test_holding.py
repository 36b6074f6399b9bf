"""Batches that wait until they are full."""

import pytest
from support.engine_models import DispatchThread, build_model, dummy, wait_until_asleep

from hloserve.core.clock import Clock, ManualClock, SystemClock
from hloserve.core.requests import NEVER_NS
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.batching import DISPATCH_OVERHEAD_NS
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.model_queue import ModelPolicy
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler

_S = 1_000_000_000
_MS = 1_000_000
_COST_NS = 20 * _MS


class _Patient:
    """A scheduler where batches of "slow" wait for up to 100 ms, and those of "quick" do not."""

    def __init__(self, clock: Clock | None = None, delay_ns: int = 100 * _MS) -> None:
        self.manual = ManualClock(_S)
        policies = {"slow": ModelPolicy(max_delay_ns=delay_ns)}
        self.scheduler = Scheduler(clock or self.manual, Fifo(), 1024, policies)
        backend = FakeBackend()
        self.slow, self.quick = (
            build_model(backend, name=name, sizes=[1, 4]) for name in ("slow", "quick")
        )
        for model in (self.slow, self.quick):
            for size in (1, 4):
                model.statistics.learn_cost((), size, _COST_NS)
            self.scheduler.add(model)

    def submit(
        self, model: DeviceModel, *, deadline_ns: int = NEVER_NS, committed: bool = False
    ) -> QueuedRequest:
        """Queue one row."""
        request = dummy(model, 1, deadline_ns=deadline_ns)
        self.scheduler.submit([request], is_committed=committed)
        return request

    def taken(self) -> list[QueuedRequest] | None:
        """The requests of the batch that is given now, if one is; it ends at once."""
        dispatch = self.scheduler.poll_dispatch()
        if dispatch is None:
            return None
        self.scheduler.end(dispatch)
        return dispatch.requests

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.manual.advance(seconds=seconds)


def test_batch_that_is_not_full_waits_until_its_oldest_request_is_old_enough() -> None:
    """Not an instant longer, and what came meanwhile goes along."""
    at = _Patient()
    first = at.submit(at.slow)
    at.wait(0.06)
    second = at.submit(at.slow)
    at.wait(0.039)
    assert at.taken() is None

    at.wait(0.001)

    assert [first, second] == at.taken()


def test_full_batch_does_not_wait() -> None:
    """The fourth row fills the largest program."""
    at = _Patient()
    requests = [at.submit(at.slow) for _ in range(3)]
    assert at.taken() is None
    requests.append(at.submit(at.slow))

    assert requests == at.taken()


def test_other_models_are_served_meanwhile() -> None:
    """Although the one that waits was there first."""
    at = _Patient()
    at.submit(at.slow)
    quick = at.submit(at.quick)

    assert [quick] == at.taken()
    assert at.taken() is None
    assert at.scheduler.depth(at.slow) == 1


def test_batch_waits_for_half_of_what_a_deadline_in_it_leaves() -> None:
    """Beside what it takes to run, also when the deadline is not that of the front."""
    at = _Patient()
    first = at.submit(at.slow)
    urgent = at.submit(at.slow, deadline_ns=at.manual.now_ns() + 50 * _MS)
    at.wait(((50 * _MS - _COST_NS - DISPATCH_OVERHEAD_NS) // 2 - 1) / _S)
    assert at.taken() is None

    at.wait(1 / _S)

    assert [first, urgent] == at.taken()


def test_request_of_another_shape_behind_it_lets_a_batch_go() -> None:
    """It cannot be filled any more, since nobody passes."""
    at = _Patient()
    first = at.submit(at.slow)
    other = dummy(at.slow, 1, (7,))
    at.scheduler.submit([other])

    assert [first] == at.taken()


def test_committed_request_does_not_wait_and_takes_the_others_along() -> None:
    """What it is part of holds other things up."""
    at = _Patient()
    waiting = at.submit(at.slow)
    committed = at.submit(at.slow, committed=True)

    assert [committed, waiting] == at.taken()


def test_drain_lets_go_what_is_held_back() -> None:
    """Nobody comes any more."""
    at = _Patient()
    waiting = at.submit(at.slow)
    assert at.taken() is None
    at.scheduler.drain()

    assert [waiting] == at.taken()


def test_server_that_leaves_holds_nothing_back_and_takes_what_still_comes() -> None:
    """Requests of hooks that run, and of connections that are open, are answered as well."""
    at = _Patient()
    waiting = at.submit(at.slow)
    at.scheduler.hold_nothing()
    assert [waiting] == at.taken()

    later = at.submit(at.slow)

    assert [later] == at.taken()


def test_thread_that_sleeps_over_a_held_batch_wakes_when_nothing_is_held_any_more() -> None:
    """It would have slept for ten minutes."""
    at = _Patient(delay_ns=600 * _S)
    thread = DispatchThread(at.scheduler)
    thread.sleep()
    waiting = at.submit(at.slow)
    wait_until_asleep(at.scheduler)
    at.scheduler.hold_nothing()

    dispatch = thread.given()

    assert dispatch is not None
    assert [waiting] == dispatch.requests
    thread.end()


def test_model_whose_batch_is_held_back_can_be_upcoming() -> None:
    """Its weights may as well be fetched meanwhile; who may go now comes first."""
    at = _Patient()
    at.submit(at.slow)
    assert at.scheduler.upcoming() is at.slow
    at.submit(at.quick)
    assert at.scheduler.upcoming() is at.quick


def test_loop_does_not_run_what_is_held_back() -> None:
    """The dispatch thread is woken once, to see when it is due; then nobody needs more news."""
    at = _Patient(delay_ns=600 * _S)
    news: list[None] = []
    at.scheduler.announce_to(lambda: news.append(None))
    thread = DispatchThread(at.scheduler)
    thread.sleep()
    requests = [at.submit(at.slow)]
    assert at.scheduler.take_cheap(_COST_NS) is None
    wait_until_asleep(at.scheduler)
    requests += [at.submit(at.slow) for _ in range(2)]
    assert len(news) == 1

    quick = at.submit(at.quick)
    cheap = at.scheduler.take_cheap(_COST_NS)
    assert cheap is not None
    assert [quick] == cheap.requests
    at.scheduler.end_cheap(cheap)
    assert at.scheduler.take_cheap(_COST_NS) is None
    assert at.scheduler.is_thread_waiting

    requests.append(at.submit(at.slow))
    full = at.scheduler.take_cheap(_COST_NS)
    assert full is not None
    assert requests == full.requests
    at.scheduler.end_cheap(full)
    thread.end()


def test_more_urgent_request_is_news_to_a_sleeping_thread() -> None:
    """It wakes to see that the batch is due earlier."""
    at = _Patient(delay_ns=600 * _S)
    thread = DispatchThread(at.scheduler)
    thread.sleep()
    first = at.submit(at.slow)
    wait_until_asleep(at.scheduler)
    urgent = at.submit(at.slow, deadline_ns=at.manual.now_ns() + _COST_NS)

    dispatch = thread.given()

    assert dispatch is not None
    assert [first, urgent] == dispatch.requests
    thread.end()


@pytest.mark.parametrize("has_cheap_path", [True, False])
def test_sleeping_thread_wakes_by_itself_when_a_batch_is_due(has_cheap_path: bool) -> None:
    """On the real clock: nothing happens after the one request, and its batch is given."""
    at = _Patient(SystemClock(), delay_ns=5 * _MS)
    if has_cheap_path:
        at.scheduler.announce_to(lambda: None)
    thread = DispatchThread(at.scheduler)
    thread.sleep()
    request = at.submit(at.slow)
    if has_cheap_path:
        assert at.scheduler.take_cheap(0) is None

    dispatch = thread.given()

    assert dispatch is not None
    assert [request] == dispatch.requests
    assert dispatch.started_ns - request.enqueued_ns >= 5 * _MS
    thread.end()


def test_batch_that_is_due_while_the_loop_runs_another_waits_for_its_end() -> None:
    """Two threads never use the device at once."""
    at = _Patient(delay_ns=_MS)
    at.scheduler.announce_to(lambda: None)
    thread = DispatchThread(at.scheduler)
    thread.sleep()
    held = at.submit(at.slow)
    assert at.scheduler.take_cheap(_COST_NS) is None
    wait_until_asleep(at.scheduler)
    at.submit(at.quick)
    cheap = at.scheduler.take_cheap(_COST_NS)
    assert cheap is not None
    at.wait(1)
    assert at.scheduler.is_thread_waiting
    assert at.scheduler.depth(at.slow) == 1

    at.scheduler.end_cheap(cheap)
    due = at.scheduler.take_cheap(_COST_NS) or thread.given()  # whoever is quicker

    assert due is not None
    assert [held] == due.requests
    thread.end()
