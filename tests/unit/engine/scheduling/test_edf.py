"""The earliest-deadline-first discipline, and who is left out under it."""

from support.engine_models import build_model, dummy

from hloserve.core.clock import ManualClock
from hloserve.core.requests import NEVER_NS
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.dispatcher import CHEAP_NS
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.edf import PATIENCE_NS, Edf
from hloserve.engine.scheduling.model_queue import UNKNOWN_COST_NS
from hloserve.engine.scheduling.queued_request import QueuedRequest
from hloserve.engine.scheduling.scheduler import Scheduler

_S = 1_000_000_000
_MS = 1_000_000


class _Deadlines:
    """A scheduler under edf on a clock that stands at 1 s, and models that take 1 ms a row."""

    def __init__(self, *names: str, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> None:
        self.clock = ManualClock(_S)
        self.scheduler = Scheduler(self.clock, Edf(), 1024)
        self.models = {name: self._model(name, sizes) for name in names}

    def _model(self, name: str, sizes: tuple[int, ...]) -> DeviceModel:
        model = build_model(FakeBackend(), name=name, sizes=sizes)
        for size in sizes:
            model.statistics.learn_cost((), size, size * _MS)
        self.scheduler.add(model)
        return model

    def submit(
        self, name: str, within_ms: float | None = None, *, rows: int = 1, committed: bool = False
    ) -> QueuedRequest:
        """Queue a request that is due so many milliseconds from now; never when None."""
        due_ns = NEVER_NS if within_ms is None else self.clock.now_ns() + round(within_ms * _MS)
        request = dummy(self.models[name], rows, deadline_ns=due_ns)
        self.scheduler.submit([request], is_committed=committed)
        return request

    def take(self) -> Dispatch:
        """The next batch, which ends at once."""
        dispatch = self.scheduler.poll_dispatch()
        assert dispatch is not None
        self.scheduler.end(dispatch)
        return dispatch


def test_sooner_deadline_wins_over_earlier_arrival() -> None:
    """Also when it is not the deadline of the front request."""
    at = _Deadlines("a", "b")
    at.submit("a", 500)
    at.clock.advance(seconds=0.001)
    at.submit("b")
    at.submit("b", 100)

    assert [at.take().model.name for _ in range(2)] == ["b", "a"]


def test_equal_deadlines_go_to_the_older_request_then_to_the_smaller_name() -> None:
    """So the choice does not depend on the order of a dict."""
    at = _Deadlines("a", "b", "c")
    at.submit("b", 500)
    at.submit("c", 500)
    at.clock.advance(seconds=0.1)
    at.submit("a", 400)

    assert [at.take().model.name for _ in range(3)] == ["b", "c", "a"]


def test_no_deadline_is_the_last_even_if_it_came_first() -> None:
    """Whoever names one is in a hurry."""
    at = _Deadlines("a", "b")
    at.submit("a")
    at.clock.advance(seconds=1)
    at.submit("b", 3_600_000)

    assert [at.take().model.name for _ in range(2)] == ["b", "a"]


def test_model_that_was_not_served_for_long_gets_one_batch() -> None:
    """Then its patience starts anew, so deadlines are passed over once in a while only."""
    at = _Deadlines("patient", "urgent")
    for _ in range(20):
        at.submit("patient")
    served = []
    for _ in range(12):
        at.submit("urgent", 10)
        served.append(at.take().model.name)
        if served[-1] == "patient":
            at.take()
        at.clock.advance(seconds=PATIENCE_NS / 4e9)

    assert [n for n, name in enumerate(served) if name == "patient"] == [4, 8]


def test_request_that_cannot_end_in_time_is_not_run() -> None:
    """A batch of one row takes 1 ms, so who is due in exactly that is late already."""
    at = _Deadlines("a")
    late, in_time = at.submit("a", 1), at.submit("a", 1.001)

    dispatch = at.take()

    assert ([late], [in_time]) == (dispatch.expired, dispatch.requests)


def test_batch_is_no_larger_than_its_front_request_allows() -> None:
    """A front that is due in 3 ms goes in a batch of two, not of eight."""
    at = _Deadlines("a")
    requests = [at.submit("a", 3), *(at.submit("a", 100) for _ in range(7))]

    first, second = at.take(), at.take()

    assert (requests[:2], 2) == (first.requests, first.size)
    assert requests[2:6] == second.requests
    assert not first.expired


def test_batch_ends_before_a_request_that_it_would_make_late() -> None:
    """That one leads the next batch, where it may still make it."""
    at = _Deadlines("a")
    requests = [at.submit("a", 100), at.submit("a", 3), at.submit("a", 100), at.submit("a", 100)]

    first, second = at.take(), at.take()

    assert requests[:1] == first.requests
    assert requests[1:3] == second.requests


def test_large_front_request_does_not_take_an_urgent_one_along() -> None:
    """Five rows need the program of eight, which is too slow for the one behind."""
    at = _Deadlines("a")
    large, urgent = at.submit("a", 100, rows=5), at.submit("a", 7)

    first, second = at.take(), at.take()

    assert ([large], [urgent]) == (first.requests, second.requests)


def test_what_is_in_flight_is_reckoned_with() -> None:
    """Behind a batch of 8 ms, who is due in 8.5 ms cannot make it; alone it can."""
    at = _Deadlines("a")
    for _ in range(8):
        at.submit("a", 100)
    running = at.scheduler.poll_dispatch()
    assert running is not None
    late = at.submit("a", 8.5)

    assert [late] == at.take().expired
    at.scheduler.end(running)
    in_time = at.submit("a", 8.5)
    assert [in_time] == at.take().requests


def test_committed_request_runs_as_long_as_its_deadline_has_not_passed() -> None:
    """What it is part of runs already, so there is something to lose."""
    at = _Deadlines("a")
    tight, over = at.submit("a", 0.5, committed=True), at.submit("a", 0, committed=True)

    dispatch = at.take()

    assert ([tight], [over]) == (dispatch.requests, dispatch.expired)


def test_program_that_never_ran_is_taken_to_cost_something() -> None:
    """A guess of 10 ms is used, which the first run corrects."""
    at = _Deadlines("a", sizes=(1,))
    at.models["a"].statistics.costs_ns.clear()
    late = at.submit("a", UNKNOWN_COST_NS / _MS)
    in_time = at.submit("a", UNKNOWN_COST_NS / _MS + 1)

    dispatch = at.take()

    assert ([late], [in_time]) == (dispatch.expired, dispatch.requests)


def test_hopeless_requests_are_told_of_without_the_device() -> None:
    """Saying so is cheap, so the loop does it."""
    at = _Deadlines("a")
    late = at.submit("a", 0.5)

    dispatch = at.take()

    assert ([late], []) == (dispatch.expired, dispatch.requests)
    assert dispatch.cost_ns <= CHEAP_NS
