"""Threads that run what the loop and the device must not wait for: hooks, and loads of bundles.

What lives here: a fixed number of threads behind one queue. What does not: what is run
(`hloserve.models.hook_results`, `hloserve.models.loader`). `run` and `close` are called on the
loop thread; each finished task is one post to it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from hloserve.core.errors import Overloaded
from hloserve.core.tickets import Ticket
from hloserve.engine.dispatcher import Post

__all__ = ["TaskThreads"]

T = TypeVar("T")

_Job: TypeAlias = tuple[Ticket[Any], Callable[..., Any], tuple[Any, ...]]


class TaskThreads:
    """Runs functions on a fixed number of daemon threads, oldest first.

    The threads start with the first call, so a server without hooks has none for them.

    Args:
        workers: most tasks that run at once.
        post: hands a result over to the loop thread.
        name: what one task is called, in messages and names of threads.
        max_waiting: most tasks that wait for a thread; more are refused.
    """

    def __init__(
        self, workers: int, post: Post, *, name: str = "hook", max_waiting: int = 4096
    ) -> None:
        self._workers = workers
        self._name = name
        self._post = post
        self._max_waiting = max_waiting
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, function: Callable[..., T], *arguments: Any) -> Ticket[T]:
        """Run a function on one of the threads.

        Returns:
            Resolved, or failed with what the function raised, on the loop thread. A ticket that is
            cancelled before its turn is skipped.

        Raises:
            Overloaded: too many wait already. Retryable.

        Threading: loop thread.
        """
        waiting = self._jobs.qsize()
        if waiting >= self._max_waiting:
            raise Overloaded(
                f"{waiting} {self._name}s wait for {self._workers} {self._name} threads; try again"
                " later"
            )
        if not self._threads:
            self._start()
        ticket: Ticket[T] = Ticket()
        self._jobs.put((ticket, function, arguments))
        return ticket

    def close(self) -> None:
        """Let the threads end after the tasks that run or wait. Does not wait for them."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the threads to end; `timeout_s` bounds the wait for each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _start(self) -> None:
        for number in range(self._workers):
            # Daemons: a task that never returns must not keep the process from ending.
            name = f"{self._name}-{number}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run_job(*job)
            del job  # or its arrays live on until the next one comes

    def _run_job(
        self, ticket: Ticket[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        if ticket.is_cancelled:
            return
        try:
            value = function(*arguments)
        except Exception as error:  # noqa: BLE001  # handed over to the call that waits
            self._deliver(ticket.fail, error)
        except BaseException as error:  # noqa: BLE001  # would end the thread, and the call hang
            self._deliver(ticket.fail, RuntimeError(repr(error)))
        else:
            self._deliver(ticket.resolve, value)

    def _deliver(self, settle: Callable[[Any], None], outcome: Any) -> None:
        try:
            self._post(settle, outcome)
        except RuntimeError:
            # The loop has closed: nobody waits for this any more.
            return
