"""A loop that tests of hook processes drive by hand."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from hloserve.core.tensors import Array
from hloserve.core.tickets import Call, Ticket

__all__ = ["PATIENCE_S", "Loop"]

PATIENCE_S = 60.0


class Loop:
    """Stands for the event loop: what is posted runs while the test waits."""

    def __init__(self) -> None:
        self.posts: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def post(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.posts.put((function, arguments))

    def outcome(self, ticket: Ticket[list[Array]]) -> Any:
        """What a call that awaits the ticket gets: arrays, or the error."""
        got: list[Any] = []

        async def wait() -> Any:
            return await ticket

        Call(wait(), lambda value, error: got.append(value if error is None else error)).step()
        while not got:
            try:
                function, arguments = self.posts.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError("the hook processes did not answer") from None
            function(*arguments)
        return got[0]
