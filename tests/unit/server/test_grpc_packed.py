"""Compressed messages, which are unpacked apart from the loop."""

import gc
import gzip
import random
from collections.abc import Iterator

import grpc
import pytest
from support.grpc_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    hpack,
    prefixed,
    request_fields,
    split_frames,
)
from support.grpc_server import RunningServer, Service, running_server

from hloserve.core.clock import SystemClock
from hloserve.server.grpc_transport import Connection, GrpcServer
from hloserve.wire.grpc_events import RpcCancelled, RpcPacked
from hloserve.wire.grpc_framing import PackedMessage
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_MOST = 4 << 20
_TEXT = b"".join(b"%d " % number for number in range(10_000))
_BOMB = bytes(2 * _MOST)
_PACKED = gzip.compress(_TEXT[:20_000])
"""Fits one frame, and is long enough to be unpacked on a thread."""


@pytest.fixture(name="server")
def run_server() -> Iterator[RunningServer]:
    """A server whose messages may have 4 MiB."""
    with running_server(limits=GrpcLimits(max_recv_msg_bytes=_MOST)) as server:
        yield server


@pytest.fixture(name="channel")
def open_channel(server: RunningServer) -> Iterator[grpc.Channel]:
    """A client that compresses."""
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
        yield channel


@pytest.mark.parametrize("message", [b"short", _TEXT, _TEXT * 50])
def test_a_compressed_call_is_answered(channel: grpc.Channel, message: bytes) -> None:
    """Of whatever length."""
    assert message == channel.unary_unary("/test.Service/Echo")(message, timeout=20)


def test_a_message_that_grows_over_the_cap_is_refused(channel: grpc.Channel) -> None:
    """With the setting that would allow it."""
    with pytest.raises(grpc.RpcError, match=r"grpc\.max_recv_msg_bytes"):
        channel.unary_unary("/test.Service/Length")(_BOMB, timeout=20)
    assert b"5" == channel.unary_unary("/test.Service/Length")(b"12345", timeout=20)


def test_a_bug_in_a_handler_of_a_compressed_call_is_told_without_details(
    channel: grpc.Channel,
) -> None:
    """As it is told of other calls."""
    with pytest.raises(grpc.RpcError, match="internal error"):
        channel.unary_unary("/test.Service/Boom")(_TEXT, timeout=20)


def test_messages_of_a_stream_keep_their_order(channel: grpc.Channel) -> None:
    """Those that are unpacked hold up those that follow, and the end."""
    talk = channel.stream_stream("/test.Service/Talk")
    messages = [_TEXT * (number % 3) + b"%d" % number for number in range(50)]

    assert messages == list(talk(iter(messages), timeout=20))


def test_a_message_of_a_stream_that_grows_over_the_cap_ends_it(channel: grpc.Channel) -> None:
    """What came before it is answered."""
    talk = channel.stream_stream("/test.Service/Talk")(iter([_TEXT, _BOMB, _TEXT]), timeout=20)

    assert _TEXT == next(talk)
    with pytest.raises(grpc.RpcError, match=r"grpc\.max_recv_msg_bytes"):
        next(talk)


def test_a_stream_that_fails_while_a_message_is_unpacked_is_over(channel: grpc.Channel) -> None:
    """Nothing of it follows."""
    talk = channel.stream_stream("/test.Service/Talk")(iter([b"fail", _TEXT]), timeout=20)

    with pytest.raises(grpc.RpcError, match="nobody"):
        next(talk)


def _call(stream: int, path: bytes, packed: bytes) -> bytes:
    head = hpack(request_fields(path, [(b"grpc-encoding", b"gzip")]))
    body = frame(DATA, END_STREAM, stream, prefixed(packed, 1))
    return frame(HEADERS, END_HEADERS, stream, head) + body


def test_a_long_compressed_message_is_reported_as_it_came() -> None:
    """Reading costs what was sent, not what it grows to."""
    connection = GrpcServerConnection({b"/test.Service/Echo": "echo"}, GrpcLimits())
    packed = gzip.compress(_BOMB)
    call = _call(1, b"/test.Service/Echo", packed)
    events = connection.receive(PREFACE + frame(SETTINGS) + call)

    (event,) = events
    assert isinstance(event, RpcPacked)
    assert isinstance(event.rpc.message, PackedMessage)
    assert packed == bytes(event.rpc.message)
    assert _BOMB == event.rpc.message.unpack()
    (lost,) = connection.lose()
    assert isinstance(lost, RpcCancelled)


def test_damaged_data_fails_its_call_alone() -> None:
    """The connection goes on."""
    unstarted = GrpcServer(Service().methods, GrpcLimits(), SystemClock())
    connection = Connection(unstarted)
    noise = random.Random(1).randbytes(5000)
    data = PREFACE + frame(SETTINGS) + _call(1, b"/test.Service/Echo", noise)
    unstarted.read_buffer[: len(data)] = data
    connection.buffer_updated(len(data))

    (_, _, stream, _) = split_frames(connection.http2.take_output())[-1]

    assert stream == 1
    assert not connection.http2.is_closed
    assert connection.http2.open_rpcs == 0


def test_a_call_whose_caller_leaves_while_it_is_unpacked_is_dropped(server: RunningServer) -> None:
    """Its handler never hears of it."""
    service = server.service

    def leave() -> None:
        connection = Connection(server.server)
        call = _call(1, b"/test.Service/Hold", _PACKED)
        cancel = frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))
        data = PREFACE + frame(SETTINGS) + call + cancel
        server.server.read_buffer[: len(data)] = data
        connection.buffer_updated(len(data))

    server.on_loop(leave)
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
        assert _TEXT == channel.unary_unary("/test.Service/Echo")(_TEXT, timeout=20)

    assert service.held == []


@pytest.mark.parametrize("path", [b"/test.Service/Hold", b"/test.Service/Talk"])
def test_messages_of_callers_who_leave_while_they_are_unpacked_are_let_go(
    server: RunningServer, path: bytes
) -> None:
    """They do not wait for the collector: a bomb is half a megabyte, and nobody waits for it."""
    streams = range(1, 41, 2)

    def leave() -> None:
        connection = Connection(server.server)
        calls = (_call(stream, path, _PACKED) for stream in streams)
        cancels = (frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")) for stream in streams)
        for data in (PREFACE + frame(SETTINGS), *calls, *cancels):
            server.server.read_buffer[: len(data)] = data
            connection.buffer_updated(len(data))

    gc.collect()
    gc.disable()
    try:
        server.on_loop(leave)
        with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
            for _ in range(20):  # these go through the threads behind those that nobody waits for
                assert _TEXT == channel.unary_unary("/test.Service/Echo")(_TEXT, timeout=20)
            left = sum(type(each) is PackedMessage for each in gc.get_objects())
    finally:
        gc.enable()

    assert left <= 2, "more than what the threads had last"
