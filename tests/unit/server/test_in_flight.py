"""One request from its arrival to its answer: told once, whatever comes first."""

import asyncio

import pytest

from hloserve.core.clock import ManualClock
from hloserve.core.errors import Cancelled, DeadlineExceeded
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tickets import Ticket
from hloserve.server.in_flight import InFlight

_RESPONSE = InferResponse("m", {})


class _Host:
    """Keeps what it is told, and whom it was told of."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.errors: list[Exception | None] = []
        self.replies: list[tuple[InferResponse | None, Exception | None]] = []
        self.ticket: Ticket[InferResponse] = Ticket()
        self.was_asked = asyncio.Event()
        self.has_finished = asyncio.Event()

    def now_ns(self) -> int:
        """The present instant."""
        self.was_asked.set()
        return self.clock.now_ns()

    def finished(self, in_flight: InFlight, error: Exception | None) -> None:
        """A request has its outcome."""
        assert len(self.errors) == len(self.replies), "the host is told before the caller"
        self.errors.append(error)
        self.has_finished.set()

    def reply(self, response: InferResponse | None, error: Exception | None) -> None:
        """The caller has its outcome."""
        self.replies.append((response, error))

    def begin(self, deadline_ns: int = NEVER_NS) -> InFlight:
        """A request that waits for `ticket`."""

        async def serve() -> InferResponse:
            return await self.ticket

        request = InferRequest("m", {}, deadline_ns=deadline_ns)
        in_flight = InFlight(self, request, self.reply, self.now_ns())
        in_flight.begin(serve())
        return in_flight


def test_result_is_told_to_host_and_caller_once() -> None:
    """Who cancels or ends it afterwards changes nothing."""
    host = _Host()
    in_flight = host.begin()

    host.ticket.resolve(_RESPONSE)
    in_flight.cancel()
    in_flight.done(None, ZeroDivisionError())

    assert (host.errors, host.replies) == ([None], [(_RESPONSE, None)])


def test_caller_that_goes_away_gets_nothing_and_is_counted() -> None:
    """The work it waited for is cancelled; a late result is dropped."""
    host = _Host()
    in_flight = host.begin()

    in_flight.cancel()
    host.ticket.resolve(_RESPONSE)
    in_flight.cancel()

    assert host.ticket.is_cancelled
    assert [Cancelled] == [type(error) for error in host.errors]
    assert host.replies == []


def test_request_is_answered_at_its_deadline() -> None:
    """A timer that fires early by the server's clock waits for the rest."""
    host = _Host()

    async def main() -> None:
        host.begin(deadline_ns=host.now_ns() + 1)
        host.was_asked.clear()
        await host.was_asked.wait()  # the timer fires, and the clock has not moved
        assert host.replies == []
        host.clock.advance(seconds=1e-9)
        await host.has_finished.wait()

    asyncio.run(main())

    assert [DeadlineExceeded] == [type(error) for error in host.errors]
    assert host.ticket.is_cancelled


@pytest.mark.parametrize("deadline_s", [60, 10**9])
def test_answer_before_the_deadline_stops_the_timer(deadline_s: int) -> None:
    """However far it is: loops refuse delays of years."""
    host = _Host()

    async def main() -> None:
        host.begin(deadline_ns=deadline_s * 10**9)
        host.ticket.resolve(_RESPONSE)

    asyncio.run(main())

    assert host.replies == [(_RESPONSE, None)]
