"""Whom the end of a load concerns.

What lives here: telling who waits for it, and running what nobody waits for. What does not: loads
(`hloserve.server.repository`) and what their errors mean (`hloserve.server.load_failures`). Loop
thread.
"""

from collections.abc import Coroutine
from typing import Any

from hloserve.core.errors import NotPossibleNow
from hloserve.core.tickets import Call, Ticket

__all__ = ["run_alone", "settle"]


def settle(ticket: Ticket[None], name: str, error: Exception | None) -> None:
    """Tell who asked for a load what became of it."""
    if error is None:
        ticket.resolve(None)
    else:
        ticket.fail(NotPossibleNow(f"model {name!r} cannot be loaded: {error}"))


def run_alone(coroutine: Coroutine[Ticket[Any], None, None]) -> None:
    """Run a coroutine that nobody waits for; it must not fail: an error is our own fault."""
    Call(coroutine, _reraise).step()


def _reraise(_: None, error: Exception | None) -> None:
    if error is not None:
        raise error  # the loop logs it
