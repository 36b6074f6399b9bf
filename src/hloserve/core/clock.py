"""The clock and the timer that are handed in wherever time matters.

Instants are integers: nanoseconds of the process's monotonic clock. Any thread.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Clock", "Later", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Tells the monotonic time."""

    def now_ns(self) -> int:
        """The present instant in nanoseconds, monotonic."""
        ...


class Later(Protocol):
    """Runs a callable on the loop thread after a while: `loop.call_later`."""

    def __call__(self, delay_s: float, callback: Callable[..., object], /, *args: Any) -> object:
        """Call `callback(*args)` in `delay_s` seconds."""
        ...


class SystemClock:
    """The real monotonic clock."""

    now_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that only moves when it is told to, for tests and simulations."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The instant it was last moved to."""
        return self._now_ns

    def advance(self, *, seconds: float) -> None:
        """Move the clock forward."""
        self._now_ns += round(seconds * 1e9)
