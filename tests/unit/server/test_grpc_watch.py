"""The sweep's verdict on one connection."""

import pytest
from support.grpc_frames import (
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    hpack,
    request,
    request_fields,
)

from hloserve.server.grpc_watch import GrpcTimeouts, Verdict, Watch
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_S = 10**9
_TIMEOUTS = GrpcTimeouts(handshake_s=10, receive_s=60, send_s=50, idle_s=3600, keepalive_s=120)


class Watched:
    """A connection with its watch; time is an argument."""

    def __init__(self) -> None:
        self.http2: GrpcServerConnection[str] = GrpcServerConnection(
            {b"/test.Service/Echo": "echo", b"/test.Service/Talk": "talk"},
            GrpcLimits(),
            streaming={b"/test.Service/Talk"},
        )
        self.watch = Watch(0)

    def receive(self, data: bytes) -> None:
        """Bytes come in."""
        self.http2.receive(data)
        self.watch.has_read = True

    def judge(self, at_s: float, *, is_paused: bool = False) -> Verdict:
        """The sweep comes by."""
        return self.watch.judge(round(at_s * _S), _TIMEOUTS, self.http2, is_paused=is_paused)


@pytest.fixture
def watched() -> Watched:
    """A connection whose peer has greeted at the start."""
    watched = Watched()
    watched.receive(PREFACE + frame(SETTINGS))
    assert watched.judge(0) is Verdict.NONE
    return watched


def test_a_peer_that_does_not_greet_is_cut_off() -> None:
    """The preface has to come in time."""
    watched = Watched()

    assert watched.judge(10) is Verdict.NONE
    assert watched.judge(10.1) is Verdict.ABORT


def test_a_silent_peer_is_asked_for_a_sign_of_life(watched: Watched) -> None:
    """One PING, then patience, then the end."""
    assert watched.judge(120) is Verdict.NONE
    assert watched.judge(121) is Verdict.PING
    assert watched.judge(139) is Verdict.NONE
    assert watched.judge(141) is Verdict.ABORT


def test_an_answered_ping_keeps_the_connection(watched: Watched) -> None:
    """Any byte counts as a sign of life."""
    assert watched.judge(121) is Verdict.PING
    watched.receive(frame(6, 1, 0, bytes(8)))

    assert watched.judge(141) is Verdict.NONE
    assert watched.judge(262) is Verdict.PING


def test_a_request_that_stops_half_way_closes_the_connection(watched: Watched) -> None:
    """A half-received request must go on."""
    watched.receive(request(1, None))

    assert watched.judge(1) is Verdict.NONE
    assert watched.judge(61) is Verdict.NONE
    assert watched.judge(61.1) is Verdict.CLOSE


def test_a_call_that_takes_long_is_no_reason(watched: Watched) -> None:
    """The server's own time with a request does not count against the peer."""
    watched.receive(request(1, b"x"))

    assert watched.judge(1) is Verdict.NONE
    assert watched.judge(100) is Verdict.NONE


def test_an_idle_connection_is_drained(watched: Watched) -> None:
    """Idle means no calls; PINGs do not count, calls between two sweeps do."""
    watched.receive(request(1, b"x"))
    watched.http2.respond(1, b"")
    watched.http2.take_output()
    assert watched.judge(100) is Verdict.NONE
    for at_s in range(200, 3700, 100):
        watched.receive(frame(6, 0, 0, bytes(8)))
        assert watched.judge(at_s) is Verdict.NONE
    watched.receive(frame(6, 0, 0, bytes(8)))

    assert watched.judge(3701) is Verdict.DRAIN
    watched.http2.drain()
    assert watched.judge(3702) is Verdict.NONE


def test_a_peer_that_takes_nothing_is_cut_off(watched: Watched) -> None:
    """While writing is paused only the progress of writing counts."""
    watched.watch.last_write_ns = 1000 * _S

    assert watched.judge(1050, is_paused=True) is Verdict.NONE
    assert watched.judge(1051, is_paused=True) is Verdict.ABORT


_TALK = hpack(request_fields(b"/test.Service/Talk"))


def test_pings_do_not_excuse_a_request_that_stops_half_way(watched: Watched) -> None:
    """Nor do other calls: what has come of it is held all the time."""
    watched.receive(request(1, None) + frame(DATA, 0, 1, b"\0\0\0\1\0" + bytes(100)))
    stream = 3
    for at_s in range(60):
        watched.receive(frame(PING, 0, 0, bytes(8)) + request(stream, b"x"))
        stream += 2
        assert watched.judge(at_s) is Verdict.NONE

    assert watched.judge(61) is Verdict.CLOSE


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_goes_on_may_take_its_time(watched: Watched, is_stream: bool) -> None:
    """Also a long one over a slow line, and a message of a stream."""
    head = frame(HEADERS, END_HEADERS, 1, _TALK) if is_stream else request(1, None)
    watched.receive(head + frame(DATA, 0, 1, b"\0\0\0\1\0"))
    for at_s in range(0, 300, 50):
        watched.receive(frame(DATA, 0, 1, b"x"))
        assert watched.judge(at_s) is Verdict.NONE


def _without_credit(watched: Watched, path: bytes = b"/test.Service/Echo") -> None:
    watched.receive(frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)))
    watched.receive(request(1, b"x", path))
    watched.http2.take_output()


def test_replies_that_the_peer_gives_no_credit_for_close_the_connection(watched: Watched) -> None:
    """They wait here, not in the socket, and PINGs do not excuse it."""
    _without_credit(watched)
    watched.http2.respond(1, bytes(100_000))
    for at_s in range(1, 52, 10):
        watched.receive(frame(PING, 0, 0, bytes(8)))
        watched.http2.take_output()
        assert watched.judge(at_s) is Verdict.NONE

    assert watched.judge(51.1) is Verdict.CLOSE


@pytest.mark.parametrize("credit", [1, 50_000])
def test_a_peer_that_takes_its_replies_slowly_is_served(watched: Watched, credit: int) -> None:
    """As long as it takes any."""
    _without_credit(watched)
    watched.http2.respond(1, bytes(1_000_000))
    for at_s in range(1, 500, 40):
        watched.receive(frame(WINDOW_UPDATE, 0, 1, credit.to_bytes(4, "big")))
        watched.http2.take_output()
        assert watched.judge(at_s) is Verdict.NONE


def test_a_stream_may_wait_for_its_reader(watched: Watched) -> None:
    """A client that looks at results one by one is not cut off; what waits is bounded."""
    _without_credit(watched, b"/test.Service/Talk")
    watched.http2.send(1, bytes(100_000))

    assert [watched.judge(at_s) for at_s in (1, 100)] == [Verdict.NONE] * 2
