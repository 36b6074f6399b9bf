"""Errands for the dispatch thread, and several batches in flight."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pytest
from support.engine_models import (
    DispatchThread,
    FakeLoop,
    build_model,
    dummy,
    manual_scheduler,
)

from hloserve.core.errors import ShuttingDown
from hloserve.core.tickets import Ticket
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.scheduler import Scheduler

T = TypeVar("T")


def _outcome(ticket: Ticket[T]) -> T:
    try:
        ticket.__await__().send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("the ticket is not settled")


class _Commanded:
    """A scheduler with a dispatch thread, a loop for its answers, and one model of size 1."""

    def __init__(self) -> None:
        self.scheduler, _ = manual_scheduler()
        self.loop = FakeLoop()
        self.scheduler.answer_by(self.loop.post)
        self.model = build_model(FakeBackend(), sizes=[1])
        self.scheduler.add(self.model)
        self.thread = DispatchThread(self.scheduler)

    def submit(self) -> None:
        """Queue one row."""
        self.scheduler.submit([dummy(self.model, 1)])


@pytest.fixture
def commanded() -> Iterator[_Commanded]:
    """The dispatch thread does nothing until it is asked to."""
    made = _Commanded()
    yield made
    made.thread.end()


def test_command_wakes_the_dispatch_thread_and_is_answered_on_the_loop(
    commanded: _Commanded,
) -> None:
    """It runs on that thread, which then sleeps again; the ticket is settled by the loop."""
    commanded.thread.sleep()
    ticket = commanded.scheduler.command(lambda: threading.current_thread().name)

    assert not ticket.is_settled
    commanded.loop.run_one()

    assert _outcome(ticket) == "dispatch-by-hand"
    commanded.submit()
    assert commanded.thread.given() is not None


def test_commands_go_before_batches_in_their_order(commanded: _Commanded) -> None:
    """All that came are run before the next batch is given."""
    seen: list[str] = []
    commanded.submit()
    for name in ("first", "second"):
        commanded.scheduler.command(partial(seen.append, name))

    commanded.thread.ask()

    assert commanded.thread.given() is not None
    assert seen == ["first", "second"]


def test_command_that_fails_tells_its_caller_only(commanded: _Commanded) -> None:
    """The next command runs, and so does the next batch."""
    bad = commanded.scheduler.command(lambda: 1 // 0)
    good = commanded.scheduler.command(lambda: 7)
    commanded.submit()
    commanded.thread.ask()
    assert commanded.thread.given() is not None
    for _ in range(2):
        commanded.loop.run_one()

    with pytest.raises(ZeroDivisionError):
        _outcome(bad)
    assert _outcome(good) == 7


def test_command_whose_caller_has_gone_is_not_run(commanded: _Commanded) -> None:
    """Nobody would learn of it."""
    seen: list[str] = []
    commanded.scheduler.command(lambda: seen.append("gone")).cancel()
    last = commanded.scheduler.command(lambda: seen.append("stayed"))
    commanded.submit()
    commanded.thread.ask()
    assert commanded.thread.given() is not None
    commanded.loop.run_one()

    assert (seen, last.is_settled) == (["stayed"], True)


def test_commands_after_the_end_fail_at_once(commanded: _Commanded) -> None:
    """Also those that waited when the scheduler stopped."""
    waiting = commanded.scheduler.command(lambda: None)
    commanded.scheduler.stop()
    late = commanded.scheduler.command(lambda: None)

    for ticket in (waiting, late):
        with pytest.raises(ShuttingDown):
            _outcome(ticket)


def test_commands_that_came_before_the_drain_are_run(commanded: _Commanded) -> None:
    """The thread does not end before; what comes later is refused."""
    early = commanded.scheduler.command(lambda: 1)
    commanded.scheduler.drain()
    commanded.thread.ask()
    assert commanded.thread.given() is None
    commanded.loop.run_one()

    assert _outcome(early) == 1
    with pytest.raises(ShuttingDown):
        _outcome(commanded.scheduler.command(lambda: 2))


def test_command_during_a_cheap_batch_waits_for_its_end() -> None:
    """It is the loop that asks, after the run; what waits then is the dispatch thread's."""
    made = _Commanded()
    made.scheduler.announce_to(lambda: None)
    made.model.statistics.learn_cost((), 1, 10)
    made.thread.sleep()
    for _ in range(2):
        made.submit()
    cheap = made.scheduler.take_cheap(10)
    assert cheap is not None
    ticket = made.scheduler.command(lambda: 3)
    assert made.thread.given() is not None
    made.scheduler.end_cheap(cheap)
    made.loop.run_one()

    assert _outcome(ticket) == 3
    made.thread.end()


def _with_two_waiting() -> Scheduler:
    scheduler, _ = manual_scheduler()
    for name in ("a", "b"):
        model = build_model(FakeBackend(), name=name, sizes=[1])
        scheduler.add(model)
        scheduler.submit([dummy(model, 1)])
    return scheduler


def test_second_batch_is_taken_while_the_first_is_in_flight() -> None:
    """Both count until each has ended."""
    scheduler = _with_two_waiting()

    first, second = scheduler.next_dispatch(), scheduler.poll_dispatch()

    assert first is not None
    assert second is not None
    assert (first.model.name, second.model.name, scheduler.in_flight) == ("a", "b", 2)
    scheduler.end(first)
    assert scheduler.in_flight == 1
    scheduler.end(second)
    assert (scheduler.in_flight, scheduler.poll_dispatch()) == (0, None)


def test_no_second_batch_while_a_command_waits_or_after_the_end() -> None:
    """So what is in flight drains."""
    scheduler = _with_two_waiting()
    assert scheduler.next_dispatch() is not None
    ticket = scheduler.command(lambda: None)

    assert scheduler.poll_dispatch() is None
    scheduler.stop()
    assert ticket.is_settled
    assert scheduler.poll_dispatch() is None


def test_upcoming_names_whose_batch_is_next_and_takes_nothing() -> None:
    """So that its weights can be fetched while another batch runs."""
    scheduler = _with_two_waiting()

    names = []
    while (model := scheduler.upcoming()) is not None:
        assert scheduler.upcoming() is model
        names.append(model.name)
        dispatch = scheduler.poll_dispatch()
        assert dispatch is not None
        assert dispatch.model is model

    assert names == ["a", "b"]


def test_batch_whose_weights_are_elsewhere_goes_to_the_dispatch_thread() -> None:
    """Loading them is not cheap, whatever the program costs."""
    made = _Commanded()
    made.scheduler.announce_to(lambda: None)
    made.model.statistics.learn_cost((), 1, 10)
    made.thread.sleep()
    made.submit()

    assert made.scheduler.take_cheap(10, is_resident=lambda model: False) is None

    assert made.thread.given() is not None
    made.thread.end()


def test_weight_follows_the_name_of_a_model() -> None:
    """A weight that was set at run time holds for the next generation too."""
    scheduler, _ = manual_scheduler()
    backend = FakeBackend()
    old, new, other = (build_model(backend, name=name) for name in ("a", "a", "b"))
    scheduler.add(old)
    scheduler.add(other)
    assert scheduler.weight(old) == 1

    scheduler.set_weight(old, 3)
    scheduler.add(new)

    assert [3, 3, 1] == [scheduler.weight(model) for model in (old, new, other)]


def test_weight_of_nothing_is_a_fault_of_ours() -> None:
    """Who offers it to clients checks it."""
    scheduler, _ = manual_scheduler()

    with pytest.raises(AssertionError, match="weight"):
        scheduler.set_weight(build_model(FakeBackend()), 0)
