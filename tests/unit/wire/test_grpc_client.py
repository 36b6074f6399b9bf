"""The client's end of a gRPC connection."""

import gzip

import pytest
from support.grpc_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    frame,
    hpack,
    prefixed,
    split_frames,
)
from support.grpc_pair import ECHO, TALK, Pair

from hloserve.core.errors import BadRequest, Unavailable
from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import ClientEvent, GoAway, MessageReceived, RpcEnded
from hloserve.wire.grpc_limits import GrpcLimits

_OK = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_CANCELLED, _UNKNOWN, _EXHAUSTED, _INTERNAL, _UNAVAILABLE = 1, 2, 8, 13, 14


def _client(limits: GrpcLimits | None = None) -> GrpcClientConnection:
    client = GrpcClientConnection("localhost:1", limits)
    client.receive(frame(SETTINGS))
    return client


def _headers(fields: list[tuple[bytes, bytes]], *, end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), 1, hpack(fields))


def _answer(*parts: bytes, limits: GrpcLimits | None = None) -> list[ClientEvent]:
    """What a call on stream 1 reports when the server sends these frames."""
    client = _client(limits)
    assert client.start(ECHO, b"x") == 1
    client.take_output()
    events = client.receive(b"".join(parts))
    assert not client.is_closed
    return events


def _ended(*parts: bytes, limits: GrpcLimits | None = None) -> RpcEnded:
    [event] = _answer(*parts, limits=limits)
    assert isinstance(event, RpcEnded)
    return event


_TRAILERS = _headers([(b"grpc-status", b"0")], end=True)


def test_a_plain_answer_is_one_event() -> None:
    """Headers, message and trailers are reported together."""
    ended = _ended(_headers(_OK), frame(DATA, 0, 1, prefixed(b"answer")), _TRAILERS)

    assert (ended.code, ended.message, ended.text) == (0, b"answer", "")
    assert ended.trailers == ((b"grpc-status", b"0"),)


def test_an_answer_in_pieces_is_one_event() -> None:
    """Frames may cut the message anywhere."""
    data = prefixed(b"answer")

    ended = _ended(
        _headers(_OK), *(frame(DATA, 0, 1, data[i : i + 1]) for i in range(len(data))), _TRAILERS
    )

    assert (ended.code, ended.message) == (0, b"answer")


@pytest.mark.parametrize(
    ("parts", "code", "word"),
    [
        (
            [_headers([*_OK, (b"grpc-status", b"5"), (b"grpc-message", b"no%20x")], end=True)],
            5,
            "no x",
        ),
        ([_headers(_OK), _headers([(b"grpc-status", b"99")], end=True)], 99, ""),
        ([_headers(_OK), _headers([(b"grpc-status", b"abc")], end=True)], _UNKNOWN, ""),
        ([_headers(_OK), _headers([(b"other", b"1")], end=True)], _UNKNOWN, "without a status"),
        ([_headers(_OK, end=True)], _UNKNOWN, "without a status"),
        ([_headers(_OK), frame(DATA, 1, 1, prefixed(b"x"))], _UNKNOWN, "without a status"),
        ([_headers(_OK), _TRAILERS], _INTERNAL, "no message"),
        ([_headers(_OK), frame(DATA, 0, 1, b"\0\0\0\0\5ab"), _TRAILERS], _INTERNAL, "not all"),
        ([_headers(_OK), frame(DATA, 0, 1, prefixed(b"x") * 2)], _INTERNAL, "more than one"),
        ([_headers(_OK), frame(DATA, 0, 1, prefixed(b"x", 1))], _INTERNAL, "compressed"),
        ([_headers([(b":status", b"503"), (b"content-type", b"text/html")])], _UNAVAILABLE, "503"),
        ([_headers([(b":status", b"418")], end=True)], _UNKNOWN, "418"),
        ([_headers([(b":status", b"200"), (b"content-type", b"text/html")])], _UNKNOWN, "html"),
        ([frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))], _CANCELLED, "reset"),
        ([frame(RST_STREAM, 0, 1, (2).to_bytes(4, "big"))], _INTERNAL, "reset"),
    ],
)
def test_a_call_ends_once_whatever_the_server_sends(
    parts: list[bytes], code: int, word: str
) -> None:
    """Errors, half answers, proxies that are not gRPC and resets all have a code and a reason."""
    ended = _ended(*parts)

    assert code == ended.code
    assert word in ended.text
    assert ended.message is None
    assert not ended.was_refused


def test_a_refused_stream_may_be_sent_again() -> None:
    """REFUSED_STREAM says that the server did not look at the call."""
    ended = _ended(frame(RST_STREAM, 0, 1, (7).to_bytes(4, "big")))

    assert (ended.code, ended.was_refused) == (_UNAVAILABLE, True)


def test_a_response_over_the_cap_is_refused() -> None:
    """The client's own cap is enforced at the prefix, and the rest is not awaited."""
    ended = _ended(
        _headers(_OK),
        frame(DATA, 0, 1, prefixed(bytes(101))[:5]),
        limits=GrpcLimits(max_recv_msg_bytes=100),
    )

    assert ended.code == _EXHAUSTED
    assert "client" in ended.text


def test_a_compressed_response_is_read() -> None:
    """A server may compress although it was not asked to."""
    data = prefixed(gzip.compress(b"answer"), 1)

    ended = _ended(
        _headers([*_OK, (b"grpc-encoding", b"gzip")]), frame(DATA, 0, 1, data), _TRAILERS
    )

    assert ended.message == b"answer"


def test_a_call_over_a_goaway_was_refused() -> None:
    """Streams above the GOAWAY's last are over and safe to send elsewhere; others go on."""
    client = _client()
    first, second = client.start(ECHO, b"1"), client.start(ECHO, b"2")
    client.take_output()

    payload = first.to_bytes(4, "big") + bytes(4) + b"bye"
    events = client.receive(frame(GOAWAY, 0, 0, payload))
    events += client.receive(_headers(_OK) + frame(DATA, 0, 1, prefixed(b"1")) + _TRAILERS)

    goaways = [event for event in events if isinstance(event, GoAway)]
    assert [(first, 0, "bye")] == [(e.last_stream_id, e.error_code, e.text) for e in goaways]
    ended = {event.stream_id: event for event in events if isinstance(event, RpcEnded)}
    assert (ended[second].code, ended[second].was_refused) == (_UNAVAILABLE, True)
    assert ended[first].message == b"1"
    assert not client.can_start
    with pytest.raises(Unavailable):
        client.start(ECHO, b"3")


def test_losing_the_connection_ends_every_call() -> None:
    """Each open call ends once, as UNAVAILABLE, with the reason."""
    client = _client()
    streams = [client.start(ECHO, b"x") for _ in range(3)]

    events = client.lose("peer closed")

    assert streams == [event.stream_id for event in events if isinstance(event, RpcEnded)]
    assert all(event.code == _UNAVAILABLE for event in events if isinstance(event, RpcEnded))
    assert client.lose("again") == []
    assert client.receive(b"more") == []
    with pytest.raises(Unavailable, match="peer closed"):
        client.start(ECHO, b"x")
    client.send(streams[0], b"x")
    client.half_close(streams[0])
    client.cancel(streams[0])


def test_a_cancelled_call_is_silent() -> None:
    """After `cancel` the server is told and nothing more is reported."""
    pair = Pair()
    stream = pair.client.start(ECHO, b"x")
    pair.to_server()

    pair.client.cancel(stream)
    pair.client.cancel(stream)

    assert len(pair.to_server()) == 1
    assert pair.client.open_rpcs == 0
    assert pair.to_client() == []


def test_an_early_error_stops_the_upload() -> None:
    """When the answer comes before the request is out, the rest of the request is not sent."""
    client = _client(GrpcLimits())
    client.start(ECHO, bytes(10_000_000))
    client.take_output()
    assert client.queued_bytes > 9_000_000

    error = [*_OK, (b"grpc-status", b"12")]
    [ended] = client.receive(_headers(error, end=True))

    assert isinstance(ended, RpcEnded)
    output = client.take_output()
    assert RST_STREAM in [kind for kind, *_ in split_frames(output)]
    assert client.queued_bytes == 0


def test_calls_over_the_stream_limit_wait_for_their_turn() -> None:
    """More calls than the server allows at once are queued here and served in order."""
    pair = Pair(GrpcLimits(max_concurrent_streams=4))
    for i in range(20):
        pair.client.start(ECHO, b"%d" % i)
    served = []
    while received := pair.received():
        assert len(received) <= 4
        for rpc in received:
            served.append(rpc.message)
            pair.server.respond(rpc.stream_id, rpc.message)

    assert [b"%d" % i for i in range(20)] == served


def test_a_server_that_breaks_http2_closes_the_connection() -> None:
    """Garbage ends the connection with GOAWAY; `lose` then ends the calls."""
    client = _client()
    client.start(ECHO, b"x")
    client.take_output()

    client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n and some more text")

    assert GOAWAY in [kind for kind, *_ in split_frames(client.take_output())]
    assert client.is_closed
    assert len(client.lose("")) == 1


def test_a_streaming_response_is_reported_message_by_message() -> None:
    """Messages come as they are complete, the status at the end."""
    client = _client()
    stream = client.start(TALK, None, streaming=True)
    client.take_output()

    events = client.receive(
        _headers(_OK) + frame(DATA, 0, 1, prefixed(b"a") + prefixed(b"b")[:5])
    ) + client.receive(frame(DATA, 0, 1, b"b") + _TRAILERS)

    assert [b"a", b"b"] == [e.message for e in events if isinstance(e, MessageReceived)]
    assert [(stream, 0)] == [(e.stream_id, e.code) for e in events if isinstance(e, RpcEnded)]


def test_an_empty_unary_request_without_message_ends_the_stream() -> None:
    """`start` with no message and no streaming sends an empty body."""
    client = _client()
    client.start(ECHO, None)

    kinds = [(kind, flags) for kind, flags, *_ in split_frames(client.take_output()[24:])]

    assert (DATA, END_STREAM) in kinds


def test_a_name_beyond_ascii_becomes_punycode() -> None:
    """The authority is sent as DNS would write it."""
    client = GrpcClientConnection("bücher.example")
    client.start(ECHO, b"")

    assert client.take_output()


def test_metadata_over_the_limit_is_refused_here() -> None:
    """What servers would close the connection for is not sent."""
    client = _client()

    with pytest.raises(BadRequest, match="metadata"):
        client.start(ECHO, b"", metadata=[("x", "y" * 17_000)])

    assert client.open_rpcs == 0


def test_a_request_that_cannot_be_sent_ends_the_call() -> None:
    """What HTTP/2 will not send has certainly not reached the server."""
    pair = Pair(client_limits=GrpcLimits(max_header_bytes=1 << 20))
    pair.client.start(ECHO, b"", metadata=[("x", "y" * 70_000)])

    [ended] = pair.ended()

    assert (ended.code, ended.was_refused) == (_UNAVAILABLE, True)
    assert "could not be sent" in ended.text


def test_sending_on_a_half_closed_stream_does_nothing() -> None:
    """Late sends of a streaming call are dropped."""
    pair = Pair()
    stream = pair.client.start(TALK, b"one", streaming=True)
    pair.client.half_close(stream)

    pair.client.send(stream, b"late")
    pair.client.half_close(stream)

    assert pair.settle()[1] == []
