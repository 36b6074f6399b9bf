"""Hooks run beside the loop; each result is one post."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from hloserve.core.errors import Overloaded
from hloserve.core.tickets import Call, Ticket
from hloserve.models.task_threads import TaskThreads

PATIENCE_S = 10.0


class Loop:
    """Stands for the event loop: what is posted runs when the test says so."""

    def __init__(self) -> None:
        self.posts: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def post(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.posts.put((function, arguments))

    def run_one(self) -> None:
        function, arguments = self.posts.get(timeout=PATIENCE_S)
        function(*arguments)


@pytest.fixture
def loop() -> Loop:
    """A loop that the test drives."""
    return Loop()


@pytest.fixture
def threads(loop: Loop) -> Iterator[TaskThreads]:
    """Two hook threads with room for two more jobs."""
    pool = TaskThreads(2, loop.post, max_waiting=2)
    yield pool
    pool.close()
    pool.join(PATIENCE_S)


def _outcome(ticket: Ticket[Any]) -> Any:
    """What a call that awaits the ticket gets."""
    got: list[Any] = []

    async def wait() -> Any:
        return await ticket

    Call(wait(), lambda value, error: got.append(value if error is None else error)).step()
    return got[0]


def test_result_is_delivered_by_one_post(loop: Loop, threads: TaskThreads) -> None:
    """The ticket settles on the loop thread only."""
    here = threading.get_ident()
    ticket = threads.run(lambda a, b: (a + b, threading.get_ident()), 2, 3)
    assert not ticket.is_settled
    loop.run_one()
    value, thread = _outcome(ticket)
    assert value == 5
    assert thread != here
    assert loop.posts.empty()


def test_exception_is_delivered(loop: Loop, threads: TaskThreads) -> None:
    """Even one that would end the thread; the next hook runs all the same."""

    def fail(error: BaseException) -> int:
        raise error

    for error in (ValueError("odd"), SystemExit(1), KeyboardInterrupt()):
        ticket = threads.run(fail, error)
        loop.run_one()
        got = _outcome(ticket)
        assert isinstance(got, Exception)
    ticket = threads.run(int, "7")
    loop.run_one()
    assert _outcome(ticket) == 7


def test_hooks_overlap(loop: Loop, threads: TaskThreads) -> None:
    """Two hooks are inside at the same time."""
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    tickets = [threads.run(meet.wait) for _ in range(2)]
    loop.run_one()
    loop.run_one()
    assert sorted(_outcome(ticket) for ticket in tickets) == [0, 1]


def test_too_many_waiting_hooks_are_refused(loop: Loop, threads: TaskThreads) -> None:
    """The queue is bounded; a refusal is retryable."""
    go, inside = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        inside.release()
        assert go.wait(PATIENCE_S)

    tickets = [threads.run(block) for _ in range(2)]
    for _ in range(2):
        assert inside.acquire(timeout=PATIENCE_S)
    tickets += [threads.run(block) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 hooks wait for 2 hook threads") as raised:
        threads.run(block)
    assert raised.value.retryable
    go.set()
    for _ in tickets:
        loop.run_one()


def test_cancelled_hook_is_skipped(loop: Loop, threads: TaskThreads) -> None:
    """A caller that goes away before the hook's turn costs nothing more."""
    go, inside = threading.Event(), threading.Semaphore(0)
    ran: list[str] = []

    def block() -> None:
        inside.release()
        assert go.wait(PATIENCE_S)

    busy = [threads.run(block) for _ in range(2)]
    for _ in range(2):
        assert inside.acquire(timeout=PATIENCE_S)
    gone = threads.run(ran.append, "gone")
    gone.cancel()
    last = threads.run(ran.append, "last")
    go.set()
    for _ in (*busy, last):
        loop.run_one()
    assert ran == ["last"]


def test_closed_loop_ends_nothing(threads: TaskThreads) -> None:
    """A result that comes after the loop has closed is dropped without a trace."""

    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    pool = TaskThreads(1, closed)
    pool.run(int, "1")
    pool.close()
    pool.join(PATIENCE_S)


def test_server_without_hooks_has_no_hook_threads(loop: Loop) -> None:
    """They start with the first hook."""
    before = threading.active_count()
    pool = TaskThreads(8, loop.post)
    assert threading.active_count() == before
    pool.close()
