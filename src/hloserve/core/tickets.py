"""Awaiting without tasks: the cheapest way to write a request path as one coroutine.

A `Ticket` is a result that comes later, once. A `Driver` runs a coroutine whose only awaits are
tickets; it costs no asyncio task, no future and no trip through the event loop's ready queue.

Rules.
1. Everything here runs on the event loop's thread. A worker thread hands its results over with one
   `loop.call_soon_threadsafe(...)`; the only thing it may read is `Ticket.is_cancelled`.
2. A ticket is settled once: resolved, failed or cancelled. Settling it again is ignored, because
   the other side may not know yet that the caller has gone.
3. Cancelling a call closes its coroutine: `finally` blocks run, nothing is delivered.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from typing_extensions import override

__all__ = ["Call", "Driver", "Ticket", "run_call"]

T = TypeVar("T")

_PENDING, _RESOLVED, _FAILED, _CANCELLED = range(4)


class Ticket(Generic[T]):
    """A result that comes later, on the loop thread, once."""

    __slots__ = ("_outcome", "_state", "_waiter")

    def __init__(self) -> None:
        self._state = _PENDING
        self._outcome: Any = None
        self._waiter: Driver[Any] | None = None

    @property
    def is_settled(self) -> bool:
        """True once resolved, failed or cancelled."""
        return self._state != _PENDING

    @property
    def is_cancelled(self) -> bool:
        """True when nobody waits any more. Any thread may read it."""
        return self._state == _CANCELLED

    def resolve(self, value: T) -> None:
        """Give the result, and go on with the call that waits for it."""
        if self._state == _PENDING:
            self._state, self._outcome = _RESOLVED, value
            if self._waiter is not None:
                self._waiter.step()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the call that waits."""
        if self._state == _PENDING:
            self._state, self._outcome = _FAILED, error
            if self._waiter is not None:
                self._waiter.step()

    def cancel(self) -> None:
        """Say that nobody waits any more. Subclasses may extend it to withdraw work."""
        if self._state == _PENDING:
            self._state = _CANCELLED

    def __await__(self) -> Generator["Ticket[T]", None, T]:
        if self._state == _PENDING:
            yield self
        if self._state == _RESOLVED:
            return self._outcome  # type: ignore[no-any-return]  # resolve() took a T
        if self._state == _FAILED:
            raise self._outcome
        raise AssertionError("a cancelled ticket was awaited")


class Driver(Generic[T]):
    """Drives one coroutine; subclasses say what becomes of its outcome.

    Args:
        coroutine: not started; None when it is set later.
    """

    __slots__ = ("_coroutine", "_waiting_for")

    def __init__(self, coroutine: Coroutine[Ticket[Any], None, T] | None) -> None:
        self._coroutine = coroutine
        self._waiting_for: Ticket[Any] | None = None

    def done(self, value: T | None, error: Exception | None) -> None:
        """Take the outcome: called once, unless the coroutine is cancelled."""
        raise NotImplementedError

    def step(self) -> None:
        """Run the coroutine to its next await or its end. Called once to start it."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        try:
            ticket = coroutine.send(None)
        except StopIteration as stop:
            self._coroutine = self._waiting_for = None
            self.done(stop.value, None)
        except Exception as error:  # noqa: BLE001  # the edge of a request: done maps and logs it
            self._coroutine = self._waiting_for = None
            self.done(None, error)
        else:
            self._waiting_for = ticket
            ticket._waiter = self

    def cancel(self) -> None:
        """Stop: cancel the awaited ticket, close the coroutine, deliver nothing. Idempotent."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return
        if self._waiting_for is not None:
            self._waiting_for.cancel()
            self._waiting_for = None
        coroutine.close()


class Call(Driver[T]):
    """A coroutine whose outcome goes to a function: `on_done(value, error)`."""

    __slots__ = ("_on_done",)

    def __init__(
        self,
        coroutine: Coroutine[Ticket[Any], None, T],
        on_done: Callable[[T | None, Exception | None], None],
    ) -> None:
        super().__init__(coroutine)
        self._on_done = on_done

    @override
    def done(self, value: T | None, error: Exception | None) -> None:
        self._on_done(value, error)


async def run_call(coroutine: Coroutine[Ticket[Any], None, T]) -> T:
    """Await such a coroutine from an asyncio task; cancelling the task cancels the call."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def on_done(value: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # no error means a T

    call = Call(coroutine, on_done)
    call.step()
    try:
        return await future
    finally:
        call.cancel()
