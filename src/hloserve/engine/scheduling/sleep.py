"""The sleep of the dispatch thread.

What lives here: which thread it is, falling asleep, waking up, and the instant at which it wakes by
itself.
What does not: what there is to do (`hloserve.engine.scheduling.scheduler`, whose lock guards this).
"""

import threading
from collections.abc import Callable

from hloserve.core.clock import Clock
from hloserve.core.requests import NEVER_NS

__all__ = ["Sleep"]


class Sleep:
    """One thread sleeps; others wake it.

    Args:
        lock: held by whoever calls a method, unless it says otherwise.
        clock: of the instants.

    Attributes:
        is_on: the thread sleeps.
        until_ns: when it wakes up by itself; `NEVER_NS` when it does not.
    """

    __slots__ = ("_clock", "_thread", "_work", "is_on", "until_ns")

    def __init__(self, lock: threading.Lock, clock: Clock) -> None:
        self._clock = clock
        self._thread = 0
        self._work = threading.Condition(lock)
        self.is_on = False
        self.until_ns = NEVER_NS

    def check_thread(self) -> None:
        """Check that this is the thread: the first one that asks. Without the lock."""
        thread = threading.get_ident()
        assert self._thread in (0, thread), "batches are taken by two threads"
        self._thread = thread

    def end(self) -> None:
        """Wake the thread, if it sleeps."""
        self.is_on = False
        self._work.notify()

    def begin(self, until_ns: Callable[[], int]) -> None:
        """Sleep until `end`, or until an instant has come.

        Args:
            until_ns: tells it, `NEVER_NS` for none. Asked again after waking up: if the instant is
                a later one by then, the thread sleeps on.
        """
        self.is_on = True
        while self.is_on:
            self.until_ns = until_ns()
            if self.until_ns == NEVER_NS:
                self._work.wait()
                continue
            left_ns = self.until_ns - self._clock.now_ns()
            if left_ns <= 0:
                self.is_on = False
            else:
                self._work.wait(left_ns * 1e-9)
