"""One request while it is in flight: its call, its deadline, its reply.

What lives here: who is told the outcome, and that it is told once: by the call's end, the deadline
or the caller's disappearance, whichever comes first. What does not: how a request is served
(`server.inference`). Loop thread only.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from typing_extensions import override

from hloserve.core.errors import Cancelled, DeadlineExceeded
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tickets import Driver, Ticket

__all__ = ["Host", "InFlight", "Reply"]


class Reply(Protocol):
    """Takes the outcome of one request, on the loop thread: a response or an error, not both."""

    def __call__(self, response: InferResponse | None, error: Exception | None, /) -> None:
        """Encode and send it."""
        ...


class Host(Protocol):
    """Who began a request, and wants to know of its end."""

    def now_ns(self) -> int:
        """The present instant."""
        ...

    def finished(self, in_flight: "InFlight", error: Exception | None) -> None:
        """A request has its outcome; called before the reply is made."""
        ...


class InFlight(Driver[InferResponse]):
    """One request from its arrival to its answer: its coroutine, its deadline and its reply.

    Attributes:
        model: the name in the request.
        started_ns: when it came.
    """

    __slots__ = ("_deadline_ns", "_host", "_reply", "_timer", "model", "started_ns")

    def __init__(self, host: Host, request: InferRequest, reply: Reply, now_ns: int) -> None:
        self._coroutine = self._waiting_for = None  # as Driver's constructor, without a call
        self.model = request.model
        self.started_ns = now_ns
        self._host = host
        self._reply: Reply | None = reply
        self._deadline_ns = request.deadline_ns
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, coroutine: Coroutine[Ticket[Any], None, InferResponse]) -> None:
        """Start the coroutine, and the timer if the request has a deadline."""
        self._coroutine = coroutine
        self.step()
        if self._deadline_ns != NEVER_NS and self._reply is not None:
            self._set_timer(self._deadline_ns - self.started_ns)

    @override
    def done(self, value: InferResponse | None, error: Exception | None) -> None:
        """Deliver the outcome, once."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._host.finished(self, error)
        reply(value, error)

    @override
    def cancel(self) -> None:
        """Drop the request: its queued work is withdrawn and nothing is delivered."""
        if self._reply is not None:
            super().cancel()
            self._reply = _no_reply
            self.done(None, Cancelled(self.model))

    def _set_timer(self, remaining_ns: int) -> None:
        delay_s = min(remaining_ns * 1e-9, _LONGEST_TIMER_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        """Answer at the deadline, whether or not the device is free by then."""
        late_ns = self._host.now_ns() - self._deadline_ns
        if late_ns < 0:
            self._set_timer(-late_ns)
        else:
            super().cancel()
            self.done(None, DeadlineExceeded(self.model, late_ns))


_LONGEST_TIMER_S = 86_400.0
"""Event loops refuse delays beyond some months; a far deadline is looked at once a day."""


def _no_reply(response: InferResponse | None, error: Exception | None, /) -> None:
    """Stands for a caller that has gone."""
