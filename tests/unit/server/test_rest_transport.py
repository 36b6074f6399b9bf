"""Flow control, timeouts and endings of HTTP connections, on a fake transport."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from support.rest_server import FakePeer, FakeTransport
from support.rest_wire import post, request, responses

from hloserve.server.rest_transport import Exchange, HttpTimeouts
from hloserve.wire.http1_messages import HttpLimits

TIMEOUTS = HttpTimeouts(
    header_timeout_s=10.0, body_timeout_s=60.0, idle_timeout_s=75.0, linger_s=2.0
)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def echo(exchange: Exchange) -> None:
    """Answer at once with the request's body."""
    exchange.reply(200, bytes(exchange.body), "text/plain")


class Held:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.departures: list[int] = []

    def __call__(self, exchange: Exchange) -> None:
        number = len(self.exchanges)
        exchange.on_disconnect = lambda: self.departures.append(number)
        self.exchanges.append(exchange)


class ClosingTransport(FakeTransport):
    """Tells when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    def close(self) -> None:
        """Close and tell."""
        super().close()
        self.closed.set()


@in_loop
async def test_replies_of_one_read_leave_in_one_write() -> None:
    """Pipelined requests that are answered at once cost one write."""
    peer = FakePeer(echo)

    peer.send(post(b"1") + post(b"2") + post(b"3"))

    assert len(peer.transport.writes) == 1
    assert [r.body for r in responses(peer.sent)] == [b"1", b"2", b"3"]


@in_loop
async def test_replies_of_one_callback_leave_in_one_write_per_connection() -> None:
    """Answers that a dispatch gives together cost one write per connection."""
    held = Held()
    peer = FakePeer(held)
    peer.send(request() * 4)
    for exchange in reversed(held.exchanges):
        exchange.reply(200, b"{}")
    assert peer.transport.writes == []

    await asyncio.sleep(0)

    assert len(peer.transport.writes) == 1
    assert len(responses(peer.sent)) == 4


@in_loop
async def test_large_body_is_sent_as_it_is() -> None:
    """A large answer follows its head uncopied."""
    body = bytes(200_000)
    peer = FakePeer(lambda exchange: exchange.reply(200, body))

    peer.send(request())

    assert responses(peer.sent)[0].body == body


@in_loop
async def test_reading_stops_while_the_peer_does_not_read() -> None:
    """A peer that takes no answers is not read from, and goes on where it stopped."""
    peer = FakePeer(echo)
    peer.protocol.pause_writing()
    assert not peer.transport.is_reading_now

    peer.protocol.resume_writing()

    assert peer.transport.is_reading_now


@in_loop
async def test_reading_stops_while_too_many_requests_wait() -> None:
    """Beyond `max_pipelined` the connection is not read until an answer makes room."""
    held = Held()
    peer = FakePeer(held, limits=HttpLimits(max_pipelined=2))
    peer.send(request() * 2)
    assert not peer.transport.is_reading_now

    held.exchanges[0].reply(200)
    await asyncio.sleep(0)

    assert peer.transport.is_reading_now


@in_loop
async def test_requests_that_waited_unparsed_are_taken_up() -> None:
    """Thousands of pipelined requests in one read are all served, a slice at a time."""
    peer = FakePeer(echo, limits=HttpLimits(max_pipelined=2))

    peer.send(request() * 2000)

    assert len(responses(peer.sent)) == 2000
    assert peer.transport.is_reading_now


@in_loop
async def test_requests_that_waited_are_taken_up_after_late_answers() -> None:
    """The same when the answers come later."""
    held = Held()
    peer = FakePeer(held, limits=HttpLimits(max_pipelined=2))
    peer.send(request() * 1000)
    answered = 0
    while answered < 1000:
        for exchange in held.exchanges[answered:]:
            exchange.reply(200)
            answered += 1
        await asyncio.sleep(0)

    assert len(responses(peer.sent)) == 1000


@pytest.mark.parametrize(
    ("data", "patience_s", "text"),
    [
        (b"POST /p HT", 10, "headers did not arrive within 10 s"),
        (request("POST", "/p", "Content-Length: 9") + b"abc", 60, "body did not arrive within 60"),
        (request("POST", "/p", "Transfer-Encoding: chunked") + b"5\r\nab", 60, "body did not"),
    ],
)
@in_loop
async def test_slow_requests_are_refused(data: bytes, patience_s: float, text: str) -> None:
    """A request that stops half-way is answered 408 and the connection ends."""
    peer = FakePeer(echo, timeouts=TIMEOUTS)
    peer.send(data)

    peer.wait(patience_s)
    assert peer.sent == b""
    peer.wait(0.5)

    [response] = responses(peer.sent)
    assert response.status == 408
    assert text in bytes(response.body).decode()
    assert peer.transport.is_ended


@in_loop
async def test_dripping_headers_do_not_extend_their_time() -> None:
    """One byte now and then does not keep a half head alive; a body it does."""
    peer = FakePeer(echo, timeouts=TIMEOUTS)
    for byte in b"GET /long":
        peer.send(bytes([byte]))
        peer.wait(1.2)
    assert responses(peer.sent)[0].status == 408

    peer = FakePeer(echo, timeouts=TIMEOUTS)
    peer.send(request("POST", "/p", "Content-Length: 9"))
    for byte in b"123456789":
        peer.wait(50)
        peer.send(bytes([byte]))
    assert responses(peer.sent)[0].status == 200


@in_loop
async def test_idle_connection_is_closed_in_silence() -> None:
    """A connection without a request is closed, no error is sent."""
    peer = FakePeer(echo, timeouts=TIMEOUTS)
    peer.send(request())
    served = peer.sent

    peer.wait(75)
    assert not peer.transport.is_closing()
    peer.wait(1)

    assert peer.transport.is_closing()
    assert not peer.transport.was_aborted
    assert peer.sent == served


@in_loop
async def test_waiting_for_us_is_not_idling() -> None:
    """A client whose answer takes long is not cut off, nor right after it."""
    held = Held()
    peer = FakePeer(held, timeouts=TIMEOUTS)
    peer.send(request())
    for _ in range(10):
        peer.wait(70)
    held.exchanges[0].reply(200)
    await asyncio.sleep(0)

    peer.wait(70)

    assert not peer.transport.is_closing()


@in_loop
async def test_peer_that_reads_nothing_is_cut_off() -> None:
    """A stuck answer ends the connection; one that moves does not."""
    peer = FakePeer(echo, timeouts=TIMEOUTS)
    peer.send(post(b"x"))
    peer.protocol.pause_writing()
    peer.transport.unread_bytes = 1000
    for _ in range(5):
        peer.transport.unread_bytes -= 1
        peer.wait(50)
    assert not peer.transport.was_aborted

    peer.wait(61)

    assert peer.transport.was_aborted


@in_loop
async def test_refused_peer_may_read_its_answer_before_the_end() -> None:
    """After an error our side ends at once; input is thrown away for a while, then cut."""
    peer = FakePeer(echo, timeouts=TIMEOUTS)
    peer.send(b"BAD\r\n\r\n")
    assert peer.transport.is_ended
    assert not peer.transport.is_closing()
    peer.send(b"more" * 1000)
    peer.wait(2)
    assert not peer.transport.is_closing()

    peer.wait(1)

    assert peer.transport.was_aborted
    assert len(responses(peer.sent)) == 1


@in_loop
async def test_refused_peer_that_goes_on_sending_is_cut_off() -> None:
    """However much of its body it sends: nobody reads it any more."""
    peer = FakePeer(echo, limits=HttpLimits(max_header_bytes=1000), timeouts=TIMEOUTS)
    peer.send(request("POST", "/", "Transfer-Encoding: chunked") + b"1;" + b"a" * 30_000)
    assert peer.transport.is_ended
    for _ in range(4):
        peer.send(b"a" * 1000)
        peer.wait(1)

    assert peer.transport.was_aborted
    assert [answer.status for answer in responses(peer.sent)] == [431]


@in_loop
async def test_connection_that_cannot_half_close_is_closed() -> None:
    """Over TLS there is no half close; the connection closes after the answer."""
    peer = FakePeer(echo)
    peer.transport._can_end = False

    peer.send(b"BAD\r\n\r\n")

    assert peer.transport.is_closing()


@in_loop
async def test_disconnect_is_told_once_per_unanswered_request() -> None:
    """Only requests without an answer hear that their caller left, once."""
    held = Held()
    peer = FakePeer(held)
    peer.send(request() * 3)
    held.exchanges[1].reply(200)

    peer.protocol.connection_lost(None)

    assert held.departures == [0, 2]
    assert held.exchanges[0].is_answered is False
    held.exchanges[0].reply(200)  # too late, and ignored
    held.exchanges[2].fail(ValueError())
    await asyncio.sleep(0)
    assert peer.transport.writes == []
    assert peer.server.connection_count == 0


@in_loop
async def test_handler_that_raises_answers_with_an_error() -> None:
    """An exception of the handler is the request's error, not the connection's."""

    def broken(exchange: Exchange) -> None:
        raise ValueError("secret")

    peer = FakePeer(broken)
    peer.send(request() + request())

    got = responses(peer.sent)
    assert [r.status for r in got] == [500, 500]
    assert b"internal error, request id" in got[0].body
    assert b"secret" not in peer.sent


@in_loop
async def test_drain_ends_idle_connections_soon_and_busy_ones_after_their_answer() -> None:
    """Draining waits for the requests in flight, and a moment for those on their way."""
    held = Held()
    peer = FakePeer(held, timeouts=HttpTimeouts(leave_s=0.0))
    idle = peer.server.new_connection()
    idle_transport = ClosingTransport()
    idle.connection_made(idle_transport)
    peer.send(request())

    draining = asyncio.ensure_future(peer.server.drain(5.0))
    await idle_transport.closed.wait()
    assert not peer.transport.is_closing()
    idle.connection_lost(None)
    held.exchanges[0].reply(200, b"done")
    await asyncio.sleep(0)
    assert peer.transport.is_ended
    assert b"Connection: close" in peer.sent
    peer.protocol.connection_lost(None)

    await draining


@in_loop
async def test_request_that_was_on_its_way_when_the_server_left_is_answered() -> None:
    """It comes on a connection that looked idle; its answer says that it is the last."""
    peer = FakePeer(echo, timeouts=HttpTimeouts(leave_s=60.0))
    draining = asyncio.ensure_future(peer.server.drain(60.0))
    await asyncio.sleep(0)
    assert not peer.transport.is_closing()

    peer.send(post(b"just in time"))

    assert [b"just in time"] == [answer.body for answer in responses(peer.sent)]
    assert b"Connection: close" in peer.sent
    assert peer.transport.is_ended
    peer.protocol.connection_lost(None)
    await draining


@in_loop
async def test_half_closed_peer_gets_its_answers_and_then_the_end() -> None:
    """Interim responses in between show whether it is still there."""
    held = Held()
    peer = FakePeer(held)
    peer.send(request() * 2)

    assert peer.protocol.eof_received()
    assert peer.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    held.exchanges[0].reply(200, b"first")
    held.exchanges[1].reply(200, b"second")
    await asyncio.sleep(0)

    assert [] == held.departures
    assert peer.sent.endswith(b"second")
    assert peer.transport.is_closing()


@in_loop
async def test_peer_that_ends_in_the_middle_of_a_request_has_gone() -> None:
    """What it began cannot be answered."""
    held = Held()
    peer = FakePeer(held)
    peer.send(request() + post(b"whole")[:-2])

    assert not peer.protocol.eof_received()

    assert [0] == held.departures


@in_loop
async def test_drain_cuts_off_what_exceeds_its_grace() -> None:
    """When the grace is over, what is left is cut off."""
    held = Held()
    peer = FakePeer(held)
    peer.send(request())

    await peer.server.drain(0.0)

    assert peer.transport.was_aborted


@in_loop
async def test_connection_accepted_while_draining_is_closed() -> None:
    """A connection that slipped in while draining ends at once."""
    peer = FakePeer(echo)
    peer.protocol.connection_lost(None)
    await peer.server.drain(1.0)

    late = type(peer.transport)()
    peer.server.new_connection().connection_made(late)

    assert late.is_closing()
