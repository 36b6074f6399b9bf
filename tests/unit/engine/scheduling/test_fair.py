"""The fair discipline: formulas, shares, and models that come and go."""

import pytest
from support.engine_models import build_model, dummy
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.fair import (
    Fair,
    FairFormula,
    FairSettings,
    corrected_priority,
    decayed,
    priority,
)
from hloserve.engine.scheduling.model_queue import ModelPolicy, ModelQueue
from hloserve.engine.scheduling.scheduler import Scheduler

_S = 1_000_000_000
_MS = 1_000_000


def _queue(
    fair: Fair, name: str, *, cost_ns: int = 10 * _MS, weight: float = 1.0, waiting: int = 1
) -> ModelQueue:
    model = build_model(FakeBackend(), name=name, sizes=[1])
    model.statistics.learn_cost((), 1, cost_ns)
    queue = ModelQueue(model, ModelPolicy(weight))
    queue.requests.extend(dummy(model, 1) for _ in range(waiting))
    fair.joined(queue)
    return queue


def _waiting(*queues: ModelQueue) -> dict[DeviceModel, ModelQueue]:
    return {queue.model: queue for queue in queues}


def _fair(formula: FairFormula = "corrected") -> Fair:
    return Fair(FairSettings(formula=formula))


def test_priorities_of_the_worked_example() -> None:
    """A third each, usage 0.7, 0.2 and 0.1, costs 10, 30 and 100 less a tenth: B before C, A."""
    found = [
        priority(1 / 3, used, cost * 0.9, cap=0.25)
        for used, cost in ((0.7, 10.0), (0.2, 30.0), (0.1, 100.0))
    ]

    assert [round(value, 5) for value in found] == [-0.02778, 0.00494, 0.00259]


@pytest.mark.parametrize(("used", "expected"), [(0.0, 0.25), (1.0, -0.25), (0.5, 0.0)])
def test_difference_from_the_share_is_capped(used: float, expected: float) -> None:
    """With a cost of 1 the priority is the capped difference."""
    assert expected == priority(0.5, used, 1.0, cap=0.25)
    assert expected == corrected_priority(0.5, used, 1.0, cap=0.25)


def test_corrected_formula_does_not_prefer_dear_batches_of_greedy_models() -> None:
    """Of two models ahead of their share by as much, the original prefers the dear one."""
    cheap, dear = (0.2, 0.4, 1.0, 0.25), (0.2, 0.4, 100.0, 0.25)

    assert priority(*dear) > priority(*cheap)
    assert corrected_priority(*dear) < corrected_priority(*cheap)


@pytest.mark.parametrize(("elapsed_s", "left"), [(0, 1.0), (30, 0.5), (60, 0.25)])
def test_usage_halves_after_the_halflife(elapsed_s: float, left: float) -> None:
    """The formula, and what the discipline keeps."""
    fair = _fair()
    queue = _queue(fair, "a")
    fair.charge(queue, _S, 10 * _S)

    assert left == decayed(1.0, elapsed_s, halflife_s=30)
    assert left == pytest.approx(fair.used_s(queue, 10 * _S + round(elapsed_s * _S)))


@pytest.mark.parametrize("formula", ["corrected", "original"])
def test_choice_of_the_worked_example(formula: FairFormula) -> None:
    """With that usage and those costs B is picked, whatever the time, and nothing is taken."""
    fair = _fair(formula)
    queues = [_queue(fair, name, cost_ns=c * _MS) for name, c in (("A", 10), ("B", 30), ("C", 100))]
    for queue, used_ms in zip(queues, (700, 200, 100), strict=True):
        fair.charge(queue, used_ms * _MS, _S)

    for now_ns in (_S, 100 * _S):
        assert fair.pick(_waiting(*queues), now_ns).name == "B"
    assert [len(queue.requests) for queue in queues] == [1, 1, 1]


def test_unused_device_goes_to_the_cheapest_batch() -> None:
    """Nobody has used anything, so all are as far behind, and the cheap batch delays least."""
    fair = _fair()
    dear, cheap = _queue(fair, "dear", cost_ns=50 * _MS), _queue(fair, "cheap", cost_ns=_MS)

    assert fair.pick(_waiting(dear, cheap), 0).name == "cheap"


def test_ties_go_to_the_older_front_request_then_to_the_smaller_name() -> None:
    """So the choice does not depend on the order of a dict."""
    fair = _fair()
    a, b, c = (_queue(fair, name) for name in "abc")
    a.requests[0].enqueued_ns = 5

    assert fair.pick(_waiting(c, b, a), 10).name == "b"


def test_heavier_model_is_served_at_the_same_usage() -> None:
    """Its share is larger, so it is further behind."""
    fair = _fair()
    light, heavy = _queue(fair, "a"), _queue(fair, "b", weight=3)
    for queue in (light, heavy):
        fair.charge(queue, _S, _S)

    assert fair.pick(_waiting(light, heavy), 2 * _S).name == "b"


def test_idle_models_take_nothing_from_the_others() -> None:
    """With 2:1 already used beside ten idle models, the next batch is of who has its share open.

    The original formula counts the idle ones: both are far ahead of a twelfth, and the dear one is
    preferred for it.
    """
    chosen = {}
    for formula in ("corrected", "original"):
        fair = Fair(FairSettings(formula=formula))
        for number in range(10):
            _queue(fair, f"idle{number}")
        dear, cheap = _queue(fair, "dear", cost_ns=90 * _MS), _queue(fair, "cheap", cost_ns=_MS)
        fair.charge(dear, 2 * _S, _S)
        fair.charge(cheap, _S, _S)
        chosen[formula] = fair.pick(_waiting(dear, cheap), _S).name

    assert chosen == {"corrected": "cheap", "original": "dear"}


def _steps_until_served(formula: FairFormula) -> int:
    """How many batches a model gets in a row that comes back after another has worked for 20 s."""
    fair = _fair(formula)
    busy, back = _queue(fair, "busy"), _queue(fair, "back")
    now_ns = 0
    for _ in range(2000):
        assert fair.pick(_waiting(busy), now_ns) is busy.model
        now_ns += 10 * _MS
        fair.charge(busy, 10 * _MS, now_ns)
    steps = 0
    while fair.pick(_waiting(busy, back), now_ns) is back.model:
        now_ns += 10 * _MS
        fair.charge(back, 10 * _MS, now_ns)
        steps += 1
    return steps


def test_model_that_comes_back_goes_first_once_and_does_not_catch_up() -> None:
    """The others do not stand still for what it could have used: with the original, for 13 s."""
    assert 1 <= _steps_until_served("corrected") <= 3
    assert _steps_until_served("original") > 1000


def test_batches_of_several_requests_count_as_cheaper() -> None:
    """The corrected formula discounts what serves several at once, and nothing else."""
    fair = Fair(FairSettings(coalescing_discount=0.5))
    alone, shared = _queue(fair, "a", cost_ns=8 * _MS), _queue(fair, "b", cost_ns=10 * _MS)
    model = build_model(FakeBackend(), name="c", sizes=[1, 2])
    model.statistics.learn_cost((), 2, 10 * _MS)
    coalesced = ModelQueue(model)
    coalesced.requests.extend(dummy(model, 1) for _ in range(2))
    fair.joined(coalesced)

    assert fair.pick(_waiting(alone, shared), 0).name == "a"
    assert fair.pick(_waiting(alone, shared, coalesced), 0).name == "c"


def test_cost_is_that_of_the_variant_in_front() -> None:
    """Two shapes of one model may differ a hundredfold."""
    fair = _fair()
    other = _queue(fair, "a", cost_ns=10 * _MS)
    model = build_model(FakeBackend(), name="b", sizes=[1])
    model.statistics.learn_cost((8,), 1, _MS)
    model.statistics.learn_cost((800,), 1, 100 * _MS)
    queue = ModelQueue(model)
    fair.joined(queue)

    for width, expected in ((8, "b"), (800, "a")):
        queue.requests.clear()
        queue.requests.append(dummy(model, 1, (width,)))
        assert fair.pick(_waiting(other, queue), 0).name == expected


@pytest.mark.parametrize("formula", ["corrected", "original"])
def test_years_without_work_do_not_overflow(formula: FairFormula) -> None:
    """Usage is brought to a new epoch, and what is older than that is nothing."""
    fair = Fair(FairSettings(halflife_s=0.001, formula=formula))
    a, b = _queue(fair, "a"), _queue(fair, "b")
    for year in range(3):
        now_ns = year * 365 * 86400 * _S
        fair.charge(a, _S, now_ns)
        assert fair.used_s(a, now_ns) == pytest.approx(1)
        assert fair.used_s(b, now_ns) == 0
        assert fair.pick(_waiting(a, b), now_ns).name == "b"


def test_original_formula_forgets_models_that_left() -> None:
    """Neither their weight nor what they used counts for the others."""
    fair = _fair("original")
    a, b, gone = _queue(fair, "a"), _queue(fair, "b"), _queue(fair, "gone", weight=100)
    fair.charge(gone, 100 * _S, _S)
    fair.charge(a, 2 * _S, _S)
    fair.charge(b, _S, _S)
    fair.left(gone)

    assert fair.pick(_waiting(a, b), _S).name == "b"
    b.policy = ModelPolicy(0.1)
    fair.joined(b)
    assert fair.pick(_waiting(a, b), _S).name == "a"


class _Charged(Fifo):
    """Notes what it is told."""

    is_charged = True

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    @override
    def charge(self, queue: ModelQueue, compute_ns: int, now_ns: int) -> None:
        self.told.append((queue.model.name, compute_ns, now_ns))


def test_batch_is_charged_once_it_has_ended() -> None:
    """With what the model's statistics have grown by, so runs that were repeated count as well.

    What an older generation of the model used is not charged to it, nor is a batch that did not
    run, nor one of a model that has left.
    """
    discipline = _Charged()
    scheduler = Scheduler(ManualClock(_S), discipline, 10)
    model = build_model(FakeBackend(), name="a", sizes=[1])
    model.statistics.compute_ns = 77
    scheduler.add(model)
    for runs in (2, 0, 1):
        scheduler.submit([dummy(model, 1)])
        dispatch = scheduler.poll_dispatch()
        assert dispatch is not None
        for _ in range(runs):
            model.statistics.record_dispatch(1, 1, 1, _MS)
        scheduler.end(dispatch)
    scheduler.submit([dummy(model, 1)])
    last = scheduler.poll_dispatch()
    assert last is not None
    model.statistics.record_dispatch(1, 1, 1, _MS)
    scheduler.remove(model)
    scheduler.end(last)

    assert discipline.told == [("a", 2 * _MS, _S + 2 * _MS), ("a", _MS, _S + _MS)]


def _in_turns(*, tells_upcoming: bool) -> tuple[str, list[str]]:
    """Two equal models with work, two batches in flight; who was served, and who was foretold."""
    clock = ManualClock(_S)
    scheduler = Scheduler(clock, _fair(), 100)
    for name in "ab":
        model = build_model(FakeBackend(), name=name, sizes=[1])
        model.statistics.learn_cost((), 1, 10 * _MS)
        scheduler.add(model)
        for _ in range(10):
            scheduler.submit([dummy(model, 1)])
    foretold: list[str] = []
    served = ""
    running = scheduler.poll_dispatch()
    assert running is not None
    for _ in range(10):
        if tells_upcoming:
            upcoming = scheduler.upcoming()
            assert upcoming is not None
            foretold.append(upcoming.name)
        behind = scheduler.poll_dispatch()
        assert behind is not None
        clock.advance(seconds=0.01)
        running.model.statistics.record_dispatch(1, 1, 1, 10 * _MS)
        scheduler.end(running)
        served += running.model.name
        running = behind
    return served, foretold


def test_what_is_in_flight_counts_in_the_next_choice() -> None:
    """So models take turns although no batch has ended when the next one is chosen."""
    served, foretold = _in_turns(tells_upcoming=True)

    assert served == "ababababab"
    assert "".join(foretold) == "bababababa"
    assert _in_turns(tells_upcoming=False)[0] == served


def test_what_was_charged_ahead_is_corrected_when_the_batch_ends() -> None:
    """Too much is taken back, and what was never told comes on top."""
    discipline = _Charged()
    scheduler = Scheduler(ManualClock(_S), discipline, 10)
    known, unknown = (build_model(FakeBackend(), name=name, sizes=[1]) for name in ("a", "b"))
    known.statistics.learn_cost((), 1, 5 * _MS)
    for model in (known, unknown):
        scheduler.add(model)
        scheduler.submit([dummy(model, 1)])
    running = [scheduler.poll_dispatch() for _ in range(2)]
    scheduler.submit([dummy(known, 1)])
    scheduler.upcoming()
    for dispatch, used_ns in zip(running, (3 * _MS, 4 * _MS), strict=True):
        assert dispatch is not None
        dispatch.model.statistics.record_dispatch(1, 1, 1, used_ns)
        scheduler.end(dispatch)

    told = [(name, compute_ns) for name, compute_ns, _ in discipline.told]
    assert told == [("a", 5 * _MS), ("a", -2 * _MS), ("b", 4 * _MS)]


def test_usage_is_never_less_than_nothing() -> None:
    """Taking back later than charging would otherwise take back more."""
    fair = _fair()
    queue = _queue(fair, "a")
    fair.charge(queue, _S, _S)
    fair.charge(queue, -_S, 31 * _S)

    assert fair.used_s(queue, 31 * _S) == 0
