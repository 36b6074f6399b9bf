"""One request while it is in flight: its call, its deadline, its reply.

What lives here: who is told the outcome, and that it is told once: by the call's end, the deadline
or the caller's disappearance, whichever comes first. What does not: how a request is served
(`server.inference`). Loop thread only.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from hloserve.core.clock import Clock
from hloserve.core.errors import Cancelled, DeadlineExceeded
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tickets import Call, Ticket

__all__ = ["InFlight", "Reply"]


class Reply(Protocol):
    """Takes the outcome of one request, on the loop thread: a response or an error, not both."""

    def __call__(self, response: InferResponse | None, error: Exception | None, /) -> None:
        """Encode and send it."""
        ...


class InFlight:
    """One request from its arrival to its answer: its call, its deadline and its reply."""

    __slots__ = (
        "_call",
        "_clock",
        "_deadline_ns",
        "_on_finished",
        "_reply",
        "_timer",
        "model",
        "started_ns",
    )

    def __init__(
        self,
        request: InferRequest,
        reply: Reply,
        on_finished: Callable[["InFlight", Exception | None], None],
        clock: Clock,
    ) -> None:
        self.model = request.model
        self.started_ns = clock.now_ns()
        self._clock = clock
        self._reply: Reply | None = reply
        self._on_finished = on_finished
        self._deadline_ns = request.deadline_ns
        self._call: Call[InferResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, coroutine: Coroutine[Ticket[Any], None, InferResponse]) -> None:
        """Start the call, and the timer if the request has a deadline."""
        self._call = Call(coroutine, self.finish)
        self._call.step()
        if self._deadline_ns != NEVER_NS and self._reply is not None:
            self._set_timer(self._deadline_ns - self.started_ns)

    def finish(self, response: InferResponse | None, error: Exception | None) -> None:
        """Deliver the outcome, once."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._on_finished(self, error)
        reply(response, error)

    def cancel(self) -> None:
        """Drop the request: its queued work is withdrawn and nothing is delivered."""
        if self._reply is not None and self._call is not None:
            self._reply = _no_reply
            self._call.cancel()
            self.finish(None, Cancelled(self.model))

    def _set_timer(self, remaining_ns: int) -> None:
        delay_s = min(remaining_ns * 1e-9, _LONGEST_TIMER_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        """Answer at the deadline, whether or not the device is free by then."""
        late_ns = self._clock.now_ns() - self._deadline_ns
        if late_ns < 0:
            self._set_timer(-late_ns)
        elif self._call is not None:
            self._call.cancel()
            self.finish(None, DeadlineExceeded(self.model, late_ns))


_LONGEST_TIMER_S = 86_400.0
"""Event loops refuse delays beyond some months; a far deadline is looked at once a day."""


def _no_reply(response: InferResponse | None, error: Exception | None, /) -> None:
    """Stands for a caller that has gone."""
