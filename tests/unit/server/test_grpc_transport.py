"""The gRPC transport against a transport that records: batching, slow readers, sweeps."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from support.grpc_frames import (
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    request,
    split_frames,
)
from support.grpc_server import Service
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.core.errors import Code
from hloserve.server.grpc_transport import Connection, GrpcServer, GrpcTimeouts
from hloserve.wire.grpc_limits import GrpcLimits


class RecordingTransport(asyncio.Transport):
    """Keeps what is written; the test says when the peer is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_reading_paused = False
        self.has_closed = False
        self.has_aborted = False
        self.has_ended = False
        self.is_plain = False
        """Whether it can be half-closed, as TCP can and TLS cannot."""
        self.protocol: Connection | None = None
        self.pause_after = 1 << 60
        """Bytes after which the protocol is told to pause writing."""

    @property
    def written(self) -> bytes:
        """All bytes so far."""
        return b"".join(self.writes)

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        if len(self.written) > self.pause_after and self.protocol is not None:
            self.pause_after = 1 << 60
            self.protocol.pause_writing()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def pause_reading(self) -> None:
        self.is_reading_paused = True

    @override
    def resume_reading(self) -> None:
        self.is_reading_paused = False

    @override
    def can_write_eof(self) -> bool:
        return self.is_plain

    @override
    def write_eof(self) -> None:
        self.has_ended = True

    @override
    def is_closing(self) -> bool:
        return self.has_closed

    @override
    def close(self) -> None:
        self.has_closed = True

    @override
    def abort(self) -> None:
        self.has_closed = self.has_aborted = True


class Wired:
    """A server whose connections are driven by hand."""

    def __init__(self, limits: GrpcLimits | None = None) -> None:
        self.clock = ManualClock()
        self.service = Service()
        timeouts = GrpcTimeouts(keepalive_s=100, send_s=50, idle_s=1000)
        self.act: Callable[[], None] = _break
        methods = {**self.service.methods, "/test.Service/Act": lambda _: self.act()}
        self.server = GrpcServer(methods, limits or GrpcLimits(), self.clock, timeouts)

    def connect(self, *, greet: bool = True) -> tuple[Connection, RecordingTransport]:
        """A new connection, and its transport."""
        connection, transport = Connection(self.server), RecordingTransport()
        transport.protocol = connection
        connection.connection_made(transport)
        if greet:
            credit = frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big"))
            settings = frame(SETTINGS, 0, 0, b"\0\4" + (1 << 30).to_bytes(4, "big"))
            self.receive(connection, PREFACE + settings + credit)
            transport.writes.clear()
        return connection, transport

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes come in, as a loop delivers them."""
        buffer = connection.get_buffer(-1)
        buffer[: len(data)] = data
        connection.buffer_updated(len(data))


@pytest.fixture
def wired() -> Wired:
    """A server that listens nowhere."""
    return Wired()


def _break() -> None:
    raise LookupError


def _kinds(data: bytes) -> list[tuple[int, int]]:
    return [(kind, stream) for kind, _, stream, _ in split_frames(data)]


def test_answers_made_while_reading_leave_in_one_write(wired: Wired) -> None:
    """Ten calls in one read are ten answers in one write."""
    connection, transport = wired.connect()

    wired.receive(connection, b"".join(request(i, b"x") for i in range(1, 21, 2)))

    assert len(transport.writes) == 1
    assert len(_kinds(transport.written)) == 30


def test_answers_of_a_batch_leave_in_one_write_per_connection(wired: Wired) -> None:
    """`run_batch` flushes once, when all answers are made, also when one of them fails."""
    connections = [wired.connect() for _ in range(2)]
    for connection, _ in connections:
        wired.receive(connection, b"".join(request(i, b"x", b"/test.Service/Hold") for i in (1, 3)))

    def answer_then_break() -> None:
        for rpc in wired.service.held:
            rpc.reply(b"y")
        raise LookupError

    with pytest.raises(LookupError):
        wired.server.run_batch(answer_then_break)

    assert [1, 1] == [len(transport.writes) for _, transport in connections]


def test_answers_outside_of_a_batch_wait_for_a_flush(wired: Wired) -> None:
    """A lone answer is written by the next flush, once."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", b"/test.Service/Hold"))
    wired.service.held[0].reply(b"y")

    assert transport.writes == []
    wired.server.flush()
    wired.server.flush()
    assert len(transport.writes) == 1


def test_a_slow_reader_is_not_read_from(wired: Wired) -> None:
    """While the peer takes nothing, no more output is made and nothing is read."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", b"/test.Service/Hold"))
    transport.pause_after = 300_000

    wired.service.held[0].reply(bytes(2_000_000))
    wired.server.flush()

    assert (transport.is_reading_paused, len(transport.written) < 600_000) == (True, True)
    connection.resume_writing()
    assert [transport.is_reading_paused] == [False]
    assert len(transport.written) > 2_000_000


def test_a_peer_that_takes_nothing_is_cut_off_in_time(wired: Wired) -> None:
    """The sweep aborts a connection whose output has not moved."""
    connection, transport = wired.connect()
    wired.clock.advance(seconds=500)
    connection.pause_writing()

    wired.clock.advance(seconds=50)
    wired.server.sweep()
    assert not transport.has_aborted
    wired.clock.advance(seconds=1)
    wired.server.sweep()

    assert transport.has_aborted


def test_a_lost_connection_cancels_its_calls(wired: Wired) -> None:
    """Each call is told once, and its answer is ignored."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", b"/test.Service/Hold"))
    [rpc] = wired.service.held

    connection.connection_lost(ConnectionResetError())
    connection.pause_writing()
    connection.resume_writing()
    rpc.reply(b"y")
    rpc.fail(ZeroDivisionError())
    rpc.cancelled()
    wired.server.flush()

    assert [rpc] == wired.service.cancelled
    assert rpc.is_over
    assert transport.writes == []
    assert wired.server.connections == 0


def test_a_cancelled_call_without_callback_is_fine(wired: Wired) -> None:
    """`on_cancel` is optional, and one that raises harms nobody."""
    connection, _ = wired.connect()
    wired.receive(connection, b"".join(request(i, b"x", b"/test.Service/Hold") for i in (1, 3, 5)))
    wired.service.held[0].on_cancel = None
    wired.service.held[1].on_cancel = _break

    for stream in (1, 3, 5):
        wired.receive(connection, frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")))

    assert [wired.service.held[2]] == wired.service.cancelled


def test_a_call_may_fail_with_a_text_of_its_own(wired: Wired) -> None:
    """`fail_with` takes code and text; a second answer is ignored."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", b"/test.Service/Hold"))
    [rpc] = wired.service.held

    rpc.fail_with(Code.UNAVAILABLE, "later")
    rpc.reply(b"y")
    wired.server.flush()

    assert [(HEADERS, 1)] == _kinds(transport.written)
    assert rpc.headers[0] == (b":method", b"POST")


def test_a_violation_is_answered_and_the_connection_closed(wired: Wired) -> None:
    """GOAWAY leaves, then the connection is closed and its calls are cancelled."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", b"/test.Service/Hold"))

    wired.receive(connection, frame(0, 0, 2, b"no such stream"))

    assert [(GOAWAY, 0)] == _kinds(transport.written)
    assert transport.has_closed
    assert len(wired.service.cancelled) == 1


def test_http1_is_answered_in_its_own_words(wired: Wired) -> None:
    """Nothing but the HTTP/1 answer is written."""
    connection, transport = wired.connect(greet=False)

    wired.receive(connection, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")

    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.has_closed


def test_the_sweep_pings_a_silent_peer_and_then_gives_up(wired: Wired) -> None:
    """The timeouts are those of the server."""
    connection, transport = wired.connect()
    wired.server.sweep()
    wired.clock.advance(seconds=101)
    wired.server.sweep()
    assert [(PING, 0)] == _kinds(transport.written)

    wired.clock.advance(seconds=20)
    wired.server.sweep()

    assert transport.has_aborted
    connection.connection_lost(None)
    connection.abort()


def test_the_sweep_closes_a_request_that_stops_half_way(wired: Wired) -> None:
    """The peer is told by GOAWAY."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, None))
    wired.server.sweep()
    wired.clock.advance(seconds=61)
    wired.server.sweep()

    assert [(GOAWAY, 0)] == _kinds(transport.written)
    assert transport.has_closed
    assert not transport.has_aborted


def test_the_sweep_drains_an_idle_connection(wired: Wired) -> None:
    """Idle connections get the shutdown notice, and close when the PING has been round."""
    connection, transport = wired.connect()
    for _ in range(11):
        wired.receive(connection, frame(PING, 0, 0, bytes(8)))
        wired.server.sweep()
        wired.clock.advance(seconds=99)
    transport.writes.clear()
    wired.receive(connection, frame(PING, 0, 0, bytes(8)))
    wired.server.sweep()
    frames = split_frames(transport.written)
    ping = next(payload for kind, flags, _, payload in frames if kind == PING and not flags)

    wired.receive(connection, frame(PING, 1, 0, ping))

    assert GOAWAY in [kind for kind, _ in _kinds(transport.written)]
    assert transport.has_closed


def test_a_drain_does_not_wait_for_a_peer_that_says_nothing(wired: Wired) -> None:
    """A connection without a preface has nothing to finish."""
    connection, transport = wired.connect(greet=False)

    connection.drain()

    assert transport.has_aborted


def test_the_last_words_can_be_read(wired: Wired) -> None:
    """After a violation the socket is half-closed; what still comes is dropped, for a while."""
    connection, transport = wired.connect()
    transport.is_plain = True

    wired.receive(connection, frame(0, 0, 2, b"no such stream"))
    wired.receive(connection, request(1, b"x") * 10)
    connection.drain()
    connection.close("again")

    assert [(GOAWAY, 0)] == _kinds(transport.written)
    assert (transport.has_ended, transport.has_closed) == (True, False)
    wired.clock.advance(seconds=3)
    wired.server.sweep()
    assert [transport.has_aborted] == [True]


def test_closing_the_server_waits_for_nobody(wired: Wired) -> None:
    """`close` says goodbye and closes."""
    _, transport = wired.connect()
    transport.is_plain = True

    wired.server.close()

    assert [(GOAWAY, 0)] == _kinds(transport.written)
    assert transport.has_closed


def test_a_drain_does_not_wait_for_a_client_that_does_not_read(wired: Wired) -> None:
    """An idle client that answers no PING is closed after a moment."""
    connection, transport = wired.connect()
    connection.drain()
    wired.server.sweep()
    assert not transport.has_closed

    wired.clock.advance(seconds=1.1)
    wired.server.sweep()

    assert [transport.has_closed] == [True]


_HOLD = b"/test.Service/Hold"


def _answer_held(wired: Wired) -> None:
    for rpc in wired.service.held:
        rpc.reply(b"y")


def _while_reading(wired: Wired, connection: Connection, act: Callable[[], None]) -> None:
    """Receive one call whose handler does something."""
    wired.act = act
    wired.receive(connection, request(101, b"x", b"/test.Service/Act"))


async def _end(wired: Wired, *connections: Connection) -> None:
    """Close a server that has started, and the connections that were made by hand."""
    wired.server.close()
    for connection in connections:
        connection.connection_lost(None)
    await wired.server.wait_closed()


def test_what_is_put_off_runs_when_the_only_connection_has_been_read(wired: Wired) -> None:
    """Its answers leave in the write of that read."""
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", _HOLD))

    _while_reading(wired, connection, lambda: wired.server.soon(_answer_held, wired))

    assert len(transport.writes) == 1
    assert (HEADERS, 1) in _kinds(transport.written)


def test_what_is_put_off_by_what_was_put_off_waits_for_the_loop(wired: Wired) -> None:
    """A read runs one round, however much that leaves to do; then other things have a turn."""
    rounds: list[int] = []

    def work() -> None:
        rounds.append(len(transport.writes))
        if len(rounds) < 3:
            wired.server.soon(work)

    async def main() -> None:
        await wired.server.start("127.0.0.1", 0)
        _while_reading(wired, connection, lambda: wired.server.soon(work))
        assert len(rounds) == 1
        for count in (2, 3, 3):
            await asyncio.sleep(0)
            assert len(rounds) == count
        await _end(wired, connection)

    connection, transport = wired.connect()
    asyncio.run(main())


def test_with_other_connections_what_is_put_off_waits_for_their_reads(wired: Wired) -> None:
    """What they have sent in the same turn may share the batch; all answers leave at once."""
    (first, transport), (second, other) = wired.connect(), wired.connect()

    async def main() -> None:
        await wired.server.start("127.0.0.1", 0)
        wired.receive(first, request(1, b"x", _HOLD))
        _while_reading(wired, first, lambda: wired.server.soon(_answer_held, wired))
        wired.receive(second, request(1, b"x", _HOLD))
        assert transport.writes == other.writes == []
        await asyncio.sleep(0)
        await _end(wired, first, second)

    asyncio.run(main())

    assert (HEADERS, 1) in _kinds(transport.writes[0])
    assert (HEADERS, 1) in _kinds(other.writes[0])


def test_a_fault_in_what_was_put_off_is_not_the_connections(
    wired: Wired, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; what else was put off runs, and the connection goes on."""
    caplog.set_level(logging.CRITICAL, logger="hloserve")
    connection, transport = wired.connect()
    wired.receive(connection, request(1, b"x", _HOLD))

    def act() -> None:
        wired.server.soon(_break)
        wired.server.soon(_answer_held, wired)

    _while_reading(wired, connection, act)
    wired.receive(connection, request(103, b"x"))

    assert {(HEADERS, 1), (HEADERS, 103)} <= set(_kinds(transport.written))


class _Interrupt(BaseException):
    """Nothing that a handler's caller takes."""


def test_a_read_that_is_interrupted_leaves_nothing_put_off(wired: Wired) -> None:
    """Else work of other transports would wait for the next read, which may never come."""
    connection, _ = wired.connect()
    done: list[str] = []

    def act() -> None:
        wired.server.soon(done.append, "put off")
        raise _Interrupt

    with pytest.raises(_Interrupt):
        _while_reading(wired, connection, act)

    assert (done, wired.server.is_alone_reading) == (["put off"], False)


def test_nothing_can_be_put_off_before_the_server_has_started(wired: Wired) -> None:
    """It would be lost without a word."""
    with pytest.raises(AssertionError, match="not started"):
        wired.server.soon(_break)
