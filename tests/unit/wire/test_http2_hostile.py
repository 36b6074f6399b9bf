"""Peers that want to hurt: each is bounded, and told why."""

import tracemalloc

import pytest
from support.grpc_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    goaway_code,
    hpack,
    request,
    request_fields,
    split_frames,
)
from support.grpc_pair import METHODS

from hloserve.wire.grpc_events import RpcCancelled, RpcReceived
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_MIB = 1 << 20
_CANCEL = (8).to_bytes(4, "big")


def _greeted(limits: GrpcLimits | None = None) -> GrpcServerConnection[str]:
    connection: GrpcServerConnection[str] = GrpcServerConnection(METHODS, limits or GrpcLimits())
    connection.receive(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK))
    connection.take_output()
    return connection


def _frames_until_closed(connection: GrpcServerConnection[str], unit: bytes, most: int) -> int:
    """Send `unit` until the connection is closed; gives how often."""
    for count in range(most):
        connection.receive(unit)
        output = connection.take_output()
        if connection.is_closed:
            assert goaway_code(output) == ENHANCE_YOUR_CALM
            return count
    raise AssertionError("the connection bore it all")


@pytest.mark.parametrize(
    "unit",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS),
        frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
    ],
    ids=["PING", "SETTINGS", "WINDOW_UPDATE"],
)
def test_a_flood_of_frames_without_work_closes_the_connection(unit: bytes) -> None:
    """PING, SETTINGS and WINDOW_UPDATE floods end with ENHANCE_YOUR_CALM."""
    connection = _greeted(GrpcLimits(frame_allowance=500))

    assert 400 < _frames_until_closed(connection, unit, 1000) < 600


def test_a_flood_in_one_read_closes_the_connection() -> None:
    """A read full of PINGs cannot make the server queue as many answers."""
    connection = _greeted()

    connection.receive(frame(PING, 0, 0, bytes(8)) * 15_000)

    assert connection.is_closed
    assert goaway_code(connection.take_output()) == ENHANCE_YOUR_CALM


def test_patient_pings_are_answered_for_ever() -> None:
    """The allowance is per period: a hundred PINGs a second never run dry."""
    connection = _greeted(GrpcLimits(frame_allowance=500))

    for _ in range(50):
        for _ in range(100):
            connection.receive(frame(PING, 0, 0, b"12345678"))
            assert split_frames(connection.take_output()) == [(PING, ACK, 0, b"12345678")]
        connection.replenish()

    assert not connection.is_closed


def test_requests_pay_for_their_frames() -> None:
    """A busy client's PINGs and WINDOW_UPDATEs do not use the allowance up."""
    connection = _greeted(GrpcLimits(frame_allowance=100))
    credit = frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big"))

    for stream in range(1, 4001, 2):
        connection.receive(request(stream, b"x") + credit * 4)
        connection.respond(stream, b"y")
        connection.take_output()

    assert not connection.is_closed


def test_a_rapid_reset_closes_the_connection() -> None:
    """Opening and cancelling at full speed ends with ENHANCE_YOUR_CALM; each call is cancelled."""
    connection = _greeted(GrpcLimits(frame_allowance=300))
    begun, cancelled, output = 0, 0, b""

    for stream in range(1, 100_000, 2):
        events = connection.receive(request(stream, b"x") + frame(RST_STREAM, 0, stream, _CANCEL))
        begun += sum(isinstance(event, RpcReceived) for event in events)
        cancelled += sum(isinstance(event, RpcCancelled) for event in events)
        output = connection.take_output()
        if connection.is_closed:
            break

    assert connection.is_closed
    assert goaway_code(output) == ENHANCE_YOUR_CALM
    assert 30 < begun == cancelled < 100


def test_a_burst_of_cancellations_is_borne() -> None:
    """A client whose thousand calls expire at once keeps its connection."""
    connection = _greeted()

    for stream in range(1, 2001, 2):
        connection.receive(request(stream, b"x"))
    for stream in range(1, 2001, 2):
        connection.receive(frame(RST_STREAM, 0, stream, _CANCEL))
        connection.take_output()

    assert not connection.is_closed
    assert connection.open_rpcs == 0


@pytest.mark.parametrize("fields", [300, 20_000])
def test_a_header_bomb_closes_the_connection(fields: int) -> None:
    """Headers over the limit end the connection, also when they come in many CONTINUATIONs."""
    connection = _greeted()
    block = hpack([*request_fields(), *((b"x-%d" % i, b"y" * 50) for i in range(fields))])
    parts = [block[i : i + 16_000] for i in range(0, len(block), 16_000)]

    tracemalloc.start()
    for i, part in enumerate(parts):
        kind = CONTINUATION if i else HEADERS
        connection.receive(frame(kind, END_HEADERS if i == len(parts) - 1 else 0, 1, part))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert connection.is_closed
    assert goaway_code(connection.take_output()) == ENHANCE_YOUR_CALM
    assert peak < 4 * _MIB


def test_an_endless_run_of_empty_continuations_closes_the_connection() -> None:
    """CONTINUATIONs without content are counted too."""
    connection = _greeted()

    connection.receive(frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 100)

    assert connection.is_closed
    assert goaway_code(connection.take_output()) == ENHANCE_YOUR_CALM


def test_a_huge_length_prefix_costs_nothing() -> None:
    """A prefix within the cap allocates only what has come; one over it is refused at once."""
    connection = _greeted()
    tracemalloc.start()

    for stream in range(1, 1001, 2):
        connection.receive(request(stream, None))
        announced = (512 * _MIB).to_bytes(4, "big")
        connection.receive(frame(DATA, 0, stream, b"\0" + announced + b"x" * 100))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * _MIB
    assert connection.open_rpcs == 500
    over = (512 * _MIB + 1).to_bytes(4, "big")
    connection.receive(request(2001, None) + frame(DATA, 0, 2001, b"\0" + over))
    kinds = [(kind, stream) for kind, _, stream, _ in split_frames(connection.take_output())]
    assert (HEADERS, 2001) in kinds
    assert kinds.index((HEADERS, 2001)) < kinds.index((RST_STREAM, 2001))


def test_a_flood_of_empty_data_closes_the_connection() -> None:
    """DATA frames without data are counted as frames without work."""
    connection = _greeted(GrpcLimits(frame_allowance=500))
    connection.receive(request(1, None))

    assert 400 < _frames_until_closed(connection, frame(DATA, 0, 1), 1000) < 600


def test_unfinished_requests_are_bounded_together() -> None:
    """What a connection holds of requests that do not end is bounded; the call over it fails."""
    connection = _greeted(GrpcLimits(max_partial_bytes=100_000))

    for stream in range(1, 41, 2):
        announced = (_MIB).to_bytes(4, "big")
        connection.receive(request(stream, None))
        connection.receive(frame(DATA, 0, stream, b"\0" + announced + b"x" * 10_000))

    frames = split_frames(connection.take_output())
    assert connection.open_rpcs == 10
    assert len({stream for kind, _, stream, _ in frames if kind == HEADERS}) == 10


def test_streams_over_the_limit_are_refused() -> None:
    """A peer that has not yet seen the stream limit gets REFUSED_STREAM for what is over it."""
    connection: GrpcServerConnection[str] = GrpcServerConnection(
        METHODS, GrpcLimits(max_concurrent_streams=4)
    )
    connection.receive(PREFACE + frame(SETTINGS))

    events = [connection.receive(request(stream, b"x")) for stream in range(1, 21, 2)]

    assert sum(len(found) for found in events) == 4
    resets = [item for item in split_frames(connection.take_output()) if item[0] == RST_STREAM]
    assert [int.from_bytes(payload, "big") for *_, payload in resets] == [7] * 6


def test_ignoring_the_stream_limit_closes_the_connection() -> None:
    """A peer that has acknowledged the limit and goes over it breaks HTTP/2."""
    connection = _greeted(GrpcLimits(max_concurrent_streams=4))

    events = [connection.receive(request(stream, b"x")) for stream in range(1, 21, 2)]

    assert sum(len(found) for found in events) == 4
    assert goaway_code(connection.take_output()) == PROTOCOL_ERROR
    assert connection.is_closed
    assert len(connection.lose()) == 4


def test_credit_that_lets_output_leave_is_no_flood() -> None:
    """A client with small windows may read a large response; crumbs of credit are counted."""
    connection = _greeted(GrpcLimits(frame_allowance=500))
    connection.receive(request(1, b"x"))
    connection.respond(1, bytes(40 * _MIB))
    credit = (32_768).to_bytes(4, "big")
    update = frame(WINDOW_UPDATE, 0, 0, credit) + frame(WINDOW_UPDATE, 0, 1, credit)

    for _ in range(1000):
        connection.receive(update)
        assert len(connection.take_output()) > 32_000

    crumb = frame(WINDOW_UPDATE, 0, 1, (1).to_bytes(4, "big"))
    assert 400 < _frames_until_closed(connection, crumb, 1000) < 600


def test_replies_that_nobody_reads_are_bounded() -> None:
    """When the client gives no credit, new calls are refused once enough replies wait."""
    connection = _greeted(GrpcLimits(max_unsent_bytes=_MIB))

    answered = 0
    for stream in range(1, 201, 2):
        for event in connection.receive(request(stream, b"x")):
            assert isinstance(event, RpcReceived)
            connection.respond(event.stream_id, bytes(100_000))
            answered += 1
        connection.take_output()

    assert 10 <= answered <= 13
    assert connection.queued_bytes < 2 * _MIB
    assert not connection.is_closed


def test_priorities_and_unknown_frames_are_ignored() -> None:
    """Frames that HTTP/2 lets a peer send, and this server has no use for, change nothing."""
    connection = _greeted()

    events = connection.receive(
        frame(PRIORITY, 0, 1, bytes(5)) + frame(0xBE, 0, 0, b"?" * 100) + request(1, b"x")
    )

    messages = [event.message for event in events if isinstance(event, RpcReceived)]
    assert messages == [b"x"]


def test_a_violation_ends_with_goaway_and_no_exception() -> None:
    """Calls that came before the violation are reported, then the connection is closed."""
    connection = _greeted()

    events = connection.receive(request(1, b"x") + frame(DATA, 0, 2, b"no such stream"))

    output = connection.take_output()
    assert len(events) == 1
    assert connection.is_closed
    assert goaway_code(output) == PROTOCOL_ERROR
    assert connection.end_reason
    assert connection.receive(request(3, b"y")) == []
    connection.respond(1, b"nobody is there")
    assert connection.take_output() == b""
    assert [event.rpc for event in connection.lose()] == []
