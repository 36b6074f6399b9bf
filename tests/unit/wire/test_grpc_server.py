"""The server's end of a gRPC connection."""

from collections.abc import Sequence

import pytest
from support.grpc_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    frame,
    hpack,
    prefixed,
    request,
    request_fields,
    split_frames,
)
from support.grpc_pair import ECHO, TALK, Pair

from hloserve.core.errors import Overloaded
from hloserve.wire.grpc_events import (
    GoAway,
    MessageReceived,
    RpcCancelled,
    RpcEnded,
    RpcHalfClosed,
    RpcReceived,
)
from hloserve.wire.grpc_headers import NO_TIMEOUT
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_INVALID, _UNIMPLEMENTED, _EXHAUSTED = 3, 12, 8


def _raw(*parts: bytes) -> tuple[Pair, list[RpcEnded]]:
    """Send frames by hand on stream 1 of a connection whose client waits for stream 1."""
    pair = Pair()
    stream = pair.client.start(ECHO, None, streaming=True)
    pair.client.take_output()  # not sent: `parts` are
    assert stream == 1
    for part in parts:
        pair.server.receive(part)
    ended: Sequence[object] = pair.to_client()
    return pair, [event for event in ended if isinstance(event, RpcEnded)]


def _failure(*parts: bytes) -> RpcEnded:
    _, ended = _raw(*parts)
    assert len(ended) == 1
    return ended[0]


def test_a_call_is_reported_whole() -> None:
    """Method, headers, timeout and message come in one event."""
    pair = Pair()
    pair.client.start(ECHO, b"hello", 1.5, [("x-name", "value")])

    [rpc] = pair.received()

    assert (rpc.method, rpc.message, rpc.timeout_ns) == ("echo", b"hello", 1_500_000_000)
    assert (b"x-name", b"value") in rpc.headers
    assert pair.server.open_rpcs == 1


def test_a_call_without_timeout_says_so() -> None:
    """No grpc-timeout is not a timeout of zero."""
    pair = Pair()
    pair.client.start(ECHO, b"")

    assert [NO_TIMEOUT] == [rpc.timeout_ns for rpc in pair.received()]


def test_a_call_in_pieces_is_reported_once() -> None:
    """Frames may cut prefix and message anywhere; the end may be an empty frame or trailers."""
    data = prefixed(b"hello")
    pieces = [frame(DATA, 0, 1, data[i : i + 1]) for i in range(len(data))]
    for end in (frame(DATA, END_STREAM, 1), frame(HEADERS, 5, 1, hpack([(b"x", b"y")]))):
        server = Pair().server

        events = [server.receive(piece) for piece in [request(1, None), *pieces]]
        [rpc] = server.receive(end)

        assert not any(events)
        assert isinstance(rpc, RpcReceived)
        assert rpc.message == b"hello"
        assert not server.has_partial


@pytest.mark.parametrize(
    ("parts", "code", "word"),
    [
        ([request(1, b"x", path=b"/no/such")], _UNIMPLEMENTED, "/no/such"),
        ([request(1, None), frame(DATA, END_STREAM, 1)], _INVALID, "no message"),
        ([frame(HEADERS, 5, 1, hpack(request_fields()))], _INVALID, "no message"),
        ([request(1, None), frame(DATA, END_STREAM, 1, b"\0\0\0\0\5ab")], _INVALID, "middle"),
        ([request(1, None), frame(DATA, END_STREAM, 1, b"\0\0")], _INVALID, "middle"),
        ([request(1, None), frame(DATA, END_STREAM, 1, prefixed(b"a") * 2)], _INVALID, "one mess"),
        ([request(1, None), frame(DATA, 0, 1, b"\7\0\0\0\0")], _INVALID, "flag"),
        ([request(1, None), frame(DATA, 0, 1, b"\0\xff\xff\xff\xff")], _EXHAUSTED, "max_recv"),
    ],
)
def test_a_faulty_call_is_answered_with_the_reason(
    parts: list[bytes], code: int, word: str
) -> None:
    """What is wrong is said, with the code that fits; no handler is troubled."""
    ended = _failure(*parts)

    assert (ended.code, word in ended.text) == (code, True), ended.text


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (b"grpc-timeout", b"soon", _INVALID),
        (b"grpc-encoding", b"snappy", _UNIMPLEMENTED),
    ],
)
def test_a_header_that_cannot_be_read_fails_the_call(name: bytes, value: bytes, code: int) -> None:
    """The answer shows the value, and which encodings are accepted."""
    block = hpack(request_fields(extra=[(name, value)]))

    ended = _failure(frame(HEADERS, END_HEADERS, 1, block))

    assert code == ended.code
    assert value.decode() in ended.text
    assert (b"grpc-accept-encoding", b"identity,deflate,gzip") in ended.trailers


def test_identity_is_an_encoding() -> None:
    """Clients may say that they do not compress."""
    block = hpack(request_fields(extra=[(b"grpc-encoding", b"identity")]))
    server = Pair().server

    [rpc] = server.receive(
        frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, prefixed(b"x"))
    )

    assert isinstance(rpc, RpcReceived)


@pytest.mark.parametrize(
    ("replaced", "status"),
    [
        ({"content_type": b"application/json"}, b"415"),
        ({"content_type": b"application/grpc-web"}, b"415"),
        ({"method": b"GET"}, b"405"),
    ],
)
def test_http2_that_is_not_grpc_gets_an_http_status(
    replaced: dict[str, bytes], status: bytes
) -> None:
    """A browser or a wrong client is told in HTTP's words."""
    ended = _failure(request(1, b"x", **replaced))

    assert f"HTTP status {status.decode()}" in ended.text


@pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_grpc_content_types_may_have_a_suffix(kind: bytes) -> None:
    """Subtypes and parameters are accepted."""
    assert len(Pair().server.receive(request(1, b"x", content_type=kind))) == 1


def test_an_upload_that_is_refused_is_stopped() -> None:
    """The status leaves first, then RST_STREAM with NO_ERROR, as gRPC asks."""
    server = Pair().server
    server.receive(request(1, None, path=b"/no/such"))

    frames = split_frames(server.take_output())

    assert [(kind, stream) for kind, _, stream, _ in frames] == [(HEADERS, 1), (RST_STREAM, 1)]
    assert frames[1][3] == bytes(4)


def test_a_cancelled_call_is_reported_once_if_it_was_delivered() -> None:
    """A reset after delivery is an event; before delivery and after the answer it is none."""
    pair = Pair()
    first, second = pair.client.start(ECHO, b"1"), pair.client.start(ECHO, b"2")
    third = pair.client.start(ECHO, None, streaming=True)
    pair.to_server()
    pair.server.respond(second, b"done")

    for stream in (first, second, third):
        pair.client.cancel(stream)
    events = pair.to_server()

    assert [first] == [e.rpc.stream_id for e in events if isinstance(e, RpcCancelled)]
    assert len(events) == 1
    assert pair.server.open_rpcs == 0
    pair.server.respond(first, b"too late")
    pair.server.fail(first, 2, "too late")
    pair.server.send(first, b"too late")
    pair.server.finish(first)
    assert not pair.server.is_closed


def test_an_answer_that_crosses_a_reset_is_dropped() -> None:
    """The call is over for both sides, and no frame of it leaves."""
    pair = Pair()
    stream = pair.client.start(ECHO, b"1")
    pair.to_server()
    pair.server.respond(stream, b"answer")
    pair.client.cancel(stream)

    assert pair.to_server() == []
    assert pair.server.take_output() == b""


def test_a_large_response_waits_for_credit() -> None:
    """Output is held back by flow control and comes when the client has given credit."""
    limits = GrpcLimits(stream_window_bytes=70_000, connection_window_bytes=70_000)
    pair = Pair(client_limits=limits)
    pair.client.start(ECHO, b"1")
    [rpc] = pair.received()

    pair.server.respond(rpc.stream_id, bytes(1_000_000))
    first = pair.server.take_output()

    assert len(first) < 71_000
    assert pair.server.queued_bytes > 900_000
    pair.client.receive(first)
    [ended] = pair.ended()
    assert ended.message == bytes(1_000_000)
    assert pair.server.queued_bytes == 0


def test_output_can_be_taken_in_pieces() -> None:
    """`take_output(amount)` gives exactly that much while there is more."""
    pair = Pair()
    pair.client.start(ECHO, b"1")
    [rpc] = pair.received()
    pair.server.respond(rpc.stream_id, bytes(100_000))

    pieces = []
    while piece := pair.server.take_output(4_000):
        pieces.append(piece)

    assert {4_000} == {len(piece) for piece in pieces[:-1]}
    events = [event for piece in pieces for event in pair.client.receive(piece)]
    assert [bytes(100_000)] == [e.message for e in events if isinstance(e, RpcEnded)]


def test_a_refusal_and_its_reset_survive_small_pieces() -> None:
    """The reset waits until the status has left, however small the pieces."""
    server = Pair().server
    server.receive(request(1, None, path=b"/no/such"))

    output = b"".join(iter(lambda: server.take_output(7), b""))

    assert [HEADERS, RST_STREAM] == [kind for kind, *_ in split_frames(output)]


def test_draining_serves_what_is_in_flight() -> None:
    """First a notice, then, when a PING has been round, the GOAWAY that counts."""
    pair = Pair()
    crossing = pair.client.start(ECHO, b"sent before the notice arrives")
    pair.server.drain()
    pair.server.drain()

    at_server, at_client = pair.settle()

    assert [crossing] == [e.stream_id for e in at_server if isinstance(e, RpcReceived)]
    notices = [event for event in at_client if isinstance(event, GoAway)]
    assert [2**31 - 1, crossing] == [notice.last_stream_id for notice in notices]
    assert pair.server.is_drained
    assert not pair.client.can_start
    pair.server.respond(crossing, b"answer")
    assert [b"answer"] == [event.message for event in pair.ended()]


def test_a_streaming_call_is_reported_message_by_message() -> None:
    """Streaming methods get their headers at once, then messages, then the end; both ways."""
    pair = Pair()
    stream = pair.client.start(TALK, b"one", streaming=True)
    at_server, _ = pair.settle()
    pair.client.send(stream, b"two")
    pair.client.send(stream, bytes(100_000))
    pair.client.half_close(stream)
    at_server += pair.settle()[0]

    kinds = [RpcReceived, MessageReceived, MessageReceived, MessageReceived, RpcHalfClosed]
    assert kinds == [type(event) for event in at_server]
    pair.server.send(stream, b"uno")
    pair.server.send(stream, b"due")
    pair.server.finish(stream)
    at_client = pair.settle()[1]
    messages = [event.message for event in at_client if isinstance(event, MessageReceived)]
    assert messages == [b"uno", b"due"]
    assert [0] == [event.code for event in at_client if isinstance(event, RpcEnded)]


def test_a_streaming_call_may_fail_after_messages() -> None:
    """An error after the first message comes in the trailers."""
    pair = Pair()
    stream = pair.client.start(TALK, b"one", streaming=True)
    pair.settle()
    pair.server.send(stream, b"uno")
    pair.server.fail(stream, 8, "enough")

    [ended] = pair.ended()

    assert (ended.code, ended.text) == (8, "enough")
    assert pair.server.open_rpcs == 0


def test_a_streaming_call_may_end_without_messages() -> None:
    """OK without a message is a complete answer of a streaming method."""
    pair = Pair()
    stream = pair.client.start(TALK, None, streaming=True)
    pair.settle()

    pair.server.finish(stream)

    assert [0] == [event.code for event in pair.ended()]


def test_a_faulty_streaming_call_is_cancelled_for_its_handler() -> None:
    """The handler has been told of the call, so it is told that it is over."""
    server = Pair().server
    server.receive(request(1, None, path=TALK.encode()))

    events = server.receive(frame(DATA, 0, 1, b"\7\0\0\0\0"))

    assert [RpcCancelled] == [type(event) for event in events]


@pytest.mark.parametrize("cut", [1, 5, 16, 23])
def test_the_preface_may_come_in_pieces(cut: int) -> None:
    """Nothing is sent before the peer has shown that it speaks HTTP/2."""
    server: GrpcServerConnection[str] = GrpcServerConnection({}, GrpcLimits())
    server.receive(PREFACE[:cut])

    assert (server.is_open, server.take_output()) == (False, b"")
    server.receive(PREFACE[cut:] + frame(4))
    assert (server.is_open, server.take_output() > b"") == (True, True)


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"POST /v2 HTTP/1.1\r\n", b"PUT "])
def test_http1_is_told_where_it_is(start: bytes) -> None:
    """A connection that opens with HTTP/1 gets an HTTP/1 answer and is closed."""
    server: GrpcServerConnection[str] = GrpcServerConnection({}, GrpcLimits())
    server.receive(start)

    answer = server.take_output()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"gRPC" in answer
    assert server.is_closed
    assert server.receive(b"more") == []


@pytest.mark.parametrize(
    ("start", "word"), [(b"\x16\x03\x01\x02", "TLS"), (b"\0\1\2", "HTTP/2"), (b"PRI *?", "HTTP")]
)
def test_other_protocols_are_closed(start: bytes, word: str) -> None:
    """The reason is there for the log."""
    server: GrpcServerConnection[str] = GrpcServerConnection({}, GrpcLimits())
    server.receive(start)

    assert server.is_closed
    assert word in server.end_reason


def test_losing_the_connection_cancels_delivered_calls() -> None:
    """Calls in the hands of handlers are reported, unfinished requests are forgotten."""
    pair = Pair()
    stream = pair.client.start(ECHO, b"1")
    pair.client.start(ECHO, None, streaming=True)
    pair.to_server()

    cancelled = pair.server.lose()

    assert [stream] == [event.rpc.stream_id for event in cancelled]
    assert pair.server.lose() == []


def test_closing_sends_goaway() -> None:
    """`close` says goodbye once."""
    pair = Pair()
    pair.server.close(reason="going")
    pair.server.close(reason="again")

    assert [GoAway] == [type(event) for event in pair.to_client()]
    assert pair.server.end_reason == "going"
    pair.server.drain()
    pair.server.ping()
    assert pair.server.take_output() == b""


def test_a_ping_goes_out() -> None:
    """The transport can ask for a sign of life."""
    server = Pair().server
    server.ping()

    assert [PING] == [kind for kind, *_ in split_frames(server.take_output())]


def _stream(pair: Pair) -> int:
    stream_id = pair.client.start(TALK, None, streaming=True)
    pair.settle()
    return stream_id


def _bytes_of_messages(events: Sequence[object]) -> int:
    return sum(len(event.message) for event in events if isinstance(event, MessageReceived))


def test_paused_stream_is_not_blamed_for_half_a_message() -> None:
    """Its peer has no credit to send the other half, so nothing of it is late."""
    pair = Pair()
    stream = _stream(pair)
    pair.client.send(stream, bytes(40_000_000))  # more than a window
    pair.to_server()
    partial = [pair.server.has_partial]
    pair.server.pause(stream)
    partial.append(pair.server.has_partial)
    pair.server.resume(stream)
    partial.append(pair.server.has_partial)

    assert partial == [True, False, True]


def test_paused_stream_gets_no_credit_until_it_is_resumed() -> None:
    """The peer of a paused stream is stopped by its window; other streams are not."""
    window = 65_536
    pair = Pair(GrpcLimits(stream_window_bytes=window))
    paused, other = _stream(pair), _stream(pair)

    pair.server.pause(paused)
    for _ in range(100):
        pair.client.send(paused, bytes(10_000))
        pair.client.send(other, bytes(10_000))
    received = pair.settle()[0]
    after = [e for e in received if isinstance(e, MessageReceived) and e.stream_id == paused]

    assert _bytes_of_messages(after) <= window
    assert _bytes_of_messages(received) - _bytes_of_messages(after) == 1_000_000
    pair.server.resume(paused)
    assert _bytes_of_messages(after) + _bytes_of_messages(pair.settle()[0]) == 1_000_000


def test_unsent_bytes_of_a_stream_are_what_its_peer_gives_no_credit_for() -> None:
    """They go down as the peer reads, and are none for a stream that has gone."""
    pair = Pair(client_limits=GrpcLimits(stream_window_bytes=65_536))
    stream_id = _stream(pair)

    for _ in range(10):
        assert pair.server.send(stream_id, bytes(100_000))
    before = pair.server.unsent_bytes(stream_id)
    pair.to_client()
    between = pair.server.unsent_bytes(stream_id)
    pair.settle()

    assert before == 10 * 100_005
    assert before - 70_000 <= between < before
    assert pair.server.unsent_bytes(stream_id) == 0
    assert pair.server.unsent_bytes(999) == 0


def test_kept_messages_count_as_unfinished() -> None:
    """What waits for a handler is bounded per connection, and given back when it is taken."""
    pair = Pair(GrpcLimits(max_partial_bytes=1_000))
    stream_id = _stream(pair)

    for _ in range(5):
        pair.server.keep(stream_id, 900)
        pair.server.keep(stream_id, -900)
    pair.server.keep(stream_id, 900)
    with pytest.raises(Overloaded):
        pair.server.keep(stream_id, 101)


def test_sending_on_a_call_that_is_over_says_so() -> None:
    """`send` is False for a stream that never was, that ended, and for a message over the cap."""
    pair = Pair(GrpcLimits(max_send_msg_bytes=100))
    first, second = _stream(pair), _stream(pair)
    pair.server.finish(first)

    assert not pair.server.send(first, b"late")
    assert not pair.server.send(999, b"nobody")
    assert not pair.server.send(second, bytes(101))
    assert [_EXHAUSTED] == [e.code for e in pair.ended() if e.stream_id == second]


def test_half_received_message_of_a_stream_is_partial() -> None:
    """So a peer that stops in the middle of one is not waited for for ever."""
    pair = Pair()
    stream_id = _stream(pair)
    whole = prefixed(b"hello")

    is_partial = [pair.server.has_partial]
    for piece in (whole[:3], whole[3:]):
        pair.server.receive(frame(DATA, 0, stream_id, piece))
        is_partial.append(pair.server.has_partial)

    assert is_partial == [False, True, False]


def test_small_messages_of_a_stream_are_work() -> None:
    """However many come in a second, they are no flood of empty frames."""
    pair = Pair(GrpcLimits(frame_allowance=100))
    stream_id = _stream(pair)

    for _ in range(1_000):
        pair.client.send(stream_id, b"tiny")
        pair.to_server()

    assert not pair.server.is_closed
