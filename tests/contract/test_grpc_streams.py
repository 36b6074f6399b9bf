"""What grpcio's clients may expect of streaming calls, on both event loops."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from support.grpc_server import LOOPS, PIECE, RunningServer, running_server

from hloserve.wire.grpc_limits import GrpcLimits

_MIB = 1 << 20


@pytest.fixture(params=list(LOOPS))
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server on either loop, whose connections may hold two MiB that wait for a handler."""
    limits = GrpcLimits(
        max_recv_msg_bytes=_MIB,
        max_send_msg_bytes=_MIB,
        max_partial_bytes=2 * _MIB,
        stream_window_bytes=4 * _MIB,
    )
    with running_server(str(request.param), limits=limits) as running:
        yield running


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    """A channel of grpcio's blocking client, whose windows do not grow."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel


def _talk(channel: grpc.Channel, messages: Iterator[bytes], method: str = "Talk") -> Any:
    return channel.stream_stream(f"/test.Service/{method}")(messages, timeout=20)


def _fed(source: "queue.Queue[bytes | None]") -> Iterator[bytes]:
    return iter(source.get, None)


def test_messages_come_back_in_order_until_the_caller_ends(channel: grpc.Channel) -> None:
    """A thousand messages of all sizes on one call, and status OK after half-close."""
    sent = [b"x" * (i * 37 % 5_000) + b"%d" % i for i in range(1_000)]

    call = _talk(channel, iter(sent))

    assert sent == list(call)
    assert call.code() is grpc.StatusCode.OK


def test_answers_need_not_wait_for_the_callers_end(channel: grpc.Channel) -> None:
    """Each message is answered while the call is open."""
    source: queue.Queue[bytes | None] = queue.Queue()
    call = _talk(channel, _fed(source))

    for number in range(20):
        source.put(b"%d" % number)
        assert next(call) == b"%d" % number
    source.put(None)

    assert list(call) == []


def test_one_request_brings_many_answers(channel: grpc.Channel) -> None:
    """A server-streaming call."""
    call = channel.unary_stream("/test.Service/Count")(b"500", timeout=20)

    assert [b"%d" % i for i in range(500)] == list(call)


def test_many_requests_bring_one_answer(channel: grpc.Channel) -> None:
    """A client-streaming call."""
    call = channel.stream_unary("/test.Service/Last")

    assert call(iter([b"a"] * 300), timeout=20) == b"300"


def test_call_without_any_message_is_over_at_once(channel: grpc.Channel) -> None:
    """Half-close alone ends the call with status OK and no answer."""
    assert list(_talk(channel, iter([]))) == []


@pytest.mark.parametrize("messages", [[], [b"1", b"2"]])
def test_server_streaming_call_takes_exactly_one_message(
    channel: grpc.Channel, messages: list[bytes]
) -> None:
    """None and two are the caller's fault."""
    with pytest.raises(grpc.RpcError) as caught:
        list(_talk(channel, iter(messages), "Count"))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_error_ends_the_call_after_what_was_sent(channel: grpc.Channel) -> None:
    """Earlier answers arrive, then the status with its text."""
    call = _talk(channel, iter([b"one", b"fail", b"two"]))

    assert next(call) == b"one"
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "nobody" in caught.value.details()


def test_bug_in_a_handler_tells_no_secret(channel: grpc.Channel) -> None:
    """The caller gets an id, the server goes on."""
    with pytest.raises(grpc.RpcError) as caught:
        list(_talk(channel, iter([b"boom"])))

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert list(_talk(channel, iter([b"on"]))) == [b"on"]


def test_message_over_the_cap_ends_its_call_alone(channel: grpc.Channel) -> None:
    """Other calls of the connection go on."""
    source: queue.Queue[bytes | None] = queue.Queue()
    other = _talk(channel, _fed(source))

    with pytest.raises(grpc.RpcError) as caught:
        list(_talk(channel, iter([b"x" * (_MIB + 1)])))
    source.put(b"still here")

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc.max_recv_msg_bytes" in caught.value.details()
    assert next(other) == b"still here"
    source.put(None)


def test_slow_reader_holds_the_sender_up(channel: grpc.Channel, server: RunningServer) -> None:
    """What a handler sends waits in bounded memory until the peer reads; all of it arrives."""
    streams = server.service.streams
    wanted = 200  # pieces, 12.5 MiB
    call = channel.unary_stream("/test.Service/Flood")(b"%d" % wanted, timeout=30)
    assert streams.has_message.wait(20)
    server.on_loop(lambda: None)

    assert server.on_loop(lambda: streams.pieces_sent) < wanted
    assert wanted * len(PIECE) == sum(len(piece) for piece in call)
    assert streams.most_unsent_bytes <= _MIB + len(PIECE) + 5


def test_paused_handler_gets_the_rest_when_it_goes_on(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """Messages wait in order while the handler is paused, and so does the half-close."""
    streams = server.service.streams
    call = _talk(channel, iter([b"%d" % i for i in range(50)]), "Hear")
    assert streams.has_message.wait(20)

    assert server.on_loop(lambda: list(streams.messages)) == [b"0"]
    server.on_loop(streams.held[0].resume)

    assert list(call) == []
    assert server.on_loop(lambda: list(streams.messages)) == [b"%d" % i for i in range(50)]


def test_what_waits_for_a_paused_handler_is_bounded(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """More than a connection may hold ends the call, and the handler is told."""
    streams = server.service.streams

    with pytest.raises(grpc.RpcError) as caught:
        list(_talk(channel, iter([bytes(_MIB - 100)] * 64), "Hear"))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert streams.has_cancelled.wait(20)
    assert list(_talk(channel, iter([b"on"]))) == [b"on"]


def test_leaving_caller_is_told_once(channel: grpc.Channel, server: RunningServer) -> None:
    """The handler hears of it, and what it does afterwards has no effect."""
    streams = server.service.streams
    source: queue.Queue[bytes | None] = queue.Queue()
    call = _talk(channel, _fed(source), "Hear")
    assert streams.has_held.wait(20)

    call.cancel()
    source.put(None)

    assert streams.has_cancelled.wait(20)
    rpc = streams.cancelled[0]
    for late in (rpc.finish, rpc.resume, rpc.pause, lambda: rpc.send(b"late")):
        server.on_loop(late)
    assert len(streams.cancelled) == 1
    assert server.on_loop(lambda: rpc.is_over)


def test_lost_connection_cancels_its_streams(server: RunningServer) -> None:
    """A channel that is closed takes its calls with it."""
    streams = server.service.streams
    source: queue.Queue[bytes | None] = queue.Queue()
    with grpc.insecure_channel(server.address) as channel:
        call = _talk(channel, _fed(source), "Hear")
        assert streams.has_held.wait(20)
    source.put(None)

    assert streams.has_cancelled.wait(20)
    assert call.code() is grpc.StatusCode.CANCELLED


def test_drain_ends_streams_at_once(channel: grpc.Channel, server: RunningServer) -> None:
    """Open streams do not hold the server's end up; their callers are told to go elsewhere."""
    source: queue.Queue[bytes | None] = queue.Queue()
    call = _talk(channel, _fed(source))
    source.put(b"hello")
    assert next(call) == b"hello"

    server.begin(server.server.drain(30)).result(20)

    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    source.put(None)


def test_unary_calls_and_streams_share_a_connection(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """A busy stream does not disturb unary calls beside it."""
    results: list[bool] = []

    def stream() -> None:
        sent = [b"%d" % i for i in range(2_000)]
        results.append(sent == list(_talk(channel, iter(sent))))

    threads = [threading.Thread(target=stream) for _ in range(3)]
    for thread in threads:
        thread.start()
    echo = channel.unary_unary("/test.Service/Echo")
    echoes = [echo(b"%d" % i, timeout=20) for i in range(300)]
    for thread in threads:
        thread.join(30)

    assert [b"%d" % i for i in range(300)] == echoes
    assert results == [True] * 3
    assert server.on_loop(lambda: server.server.connections) == 1


def test_the_asyncio_client_streams_both_ways(server: RunningServer) -> None:
    """Writes and reads of grpc.aio alternate on one call."""

    async def run() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            call = channel.stream_stream("/test.Service/Talk")(timeout=20)
            answers = []
            for number in range(100):
                await call.write(b"%d" % number)
                answers.append(bytes(await call.read()))
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            return answers

    assert [b"%d" % i for i in range(100)] == asyncio.run(run())
