"""Errands for the dispatch thread, between two dispatches.

What lives here: a callable with the ticket that its result settles. What does not: when commands
run (`hloserve.engine.scheduling.scheduler`). Made and awaited on the loop thread, run on the
dispatch thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hloserve.core.tickets import Ticket

__all__ = ["Command", "run_commands"]

T = TypeVar("T")


class Command(Ticket[T]):
    """Something to do while nothing runs on the device; resolves to what it returns.

    A command whose caller has gone before its turn is not run.

    Attributes:
        run: what to do; what it raises is raised to the caller.
    """

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], T]) -> None:
        super().__init__()
        self.run = run


def run_commands(commands: Sequence[Command[Any]], post: Callable[..., object]) -> None:
    """Run commands one after the other, and bring each result to the loop at once.

    Args:
        commands: in the order in which they came.
        post: runs a callable with arguments on the loop thread.

    Threading: dispatch thread.
    """
    for command in commands:
        if command.is_cancelled:
            continue
        try:
            value = command.run()
        except Exception as error:  # noqa: BLE001  # the edge of a command: its caller gets it
            post(command.fail, error)
        else:
            post(command.resolve, value)
