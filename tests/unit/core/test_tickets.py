"""Tickets and calls: awaiting without tasks."""

import asyncio

import pytest

from hloserve.core.tickets import Call, Ticket, run_call


async def double(ticket: Ticket[int]) -> int:
    """Await the ticket and double what it brings."""
    return 2 * await ticket


def test_call_ends_when_its_ticket_is_resolved() -> None:
    """A call goes on from where it waited, and reports its result once."""
    ticket: Ticket[int] = Ticket()
    done: list[object] = []
    call = Call(double(ticket), lambda value, error: done.append((value, error)))

    call.step()
    assert done == []
    ticket.resolve(21)

    assert [(42, None)] == done


def test_call_over_a_settled_ticket_ends_at_once() -> None:
    """A ticket that is settled before it is awaited does not suspend."""
    ticket: Ticket[int] = Ticket()
    ticket.resolve(1)
    done: list[object] = []

    Call(double(ticket), lambda value, error: done.append(value)).step()

    assert [2] == done


def test_error_of_a_ticket_is_raised_where_it_is_awaited() -> None:
    """A failed ticket raises in the coroutine, which may handle it."""
    ticket: Ticket[int] = Ticket()
    problem = ValueError("no")
    done: list[object] = []
    Call(double(ticket), lambda value, error: done.append(error)).step()

    ticket.fail(problem)

    assert [problem] == done


def test_cancelled_call_cleans_up_and_reports_nothing() -> None:
    """Cancelling runs `finally` blocks, marks the ticket and delivers nothing, now or later."""
    ticket: Ticket[int] = Ticket()
    cleaned, done = [], []

    async def guarded() -> int:
        try:
            return await ticket
        finally:
            cleaned.append(True)

    call = Call(guarded(), lambda value, error: done.append(value))
    call.step()

    call.cancel()
    call.cancel()
    ticket.resolve(1)

    assert ticket.is_cancelled
    assert [True] == cleaned
    assert [] == done


def test_settling_twice_keeps_the_first_outcome() -> None:
    """The second of two settlements is ignored, whichever kind it is."""
    ticket: Ticket[int] = Ticket()
    ticket.resolve(1)
    ticket.fail(ValueError())
    ticket.cancel()
    done: list[object] = []

    Call(double(ticket), lambda value, error: done.append((value, error))).step()

    assert [(2, None)] == done


def test_an_asyncio_task_can_run_a_call() -> None:
    """`run_call` awaits such a coroutine from asyncio, errors included."""

    async def scenario() -> int:
        good: Ticket[int] = Ticket()
        asyncio.get_running_loop().call_soon(good.resolve, 4)
        value = await run_call(double(good))
        bad: Ticket[int] = Ticket()
        asyncio.get_running_loop().call_soon(bad.fail, ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await run_call(double(bad))
        return value

    assert asyncio.run(scenario()) == 8


def test_cancelling_the_task_cancels_the_call() -> None:
    """When the asyncio task goes, so does the work behind the ticket."""

    async def scenario() -> bool:
        ticket: Ticket[int] = Ticket()
        task = asyncio.ensure_future(run_call(double(ticket)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return ticket.is_cancelled

    assert asyncio.run(scenario())
