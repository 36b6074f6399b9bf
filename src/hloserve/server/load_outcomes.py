"""What an error of a load means, and to whom.

What lives here: pure decisions over errors, and telling who waits. What does not: loads
(`hloserve.server.repository`). Loop thread.
"""

import errno
from collections.abc import Coroutine
from typing import Any

from hloserve.core.errors import NotPossibleNow
from hloserve.core.tickets import Call, Ticket

__all__ = ["RETRY_S", "may_pass", "run_alone", "settle"]

RETRY_S = (5.0, 15.0, 60.0, 300.0)
"""Pauses between tries of a bundle for which there was no memory; the last one repeats."""

_PASSING = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOSPC}


def may_pass(error: BaseException | None) -> bool:
    """True for a fault of the machine that no change of the bundle mends: its retry may succeed."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__
    return False


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
