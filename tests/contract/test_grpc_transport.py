"""What grpcio's clients may expect of the gRPC transport, on both event loops."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import grpc.aio
import pytest
from support.grpc_server import LOOPS, RunningServer, running_server

from hloserve.core.errors import ModelNotFound, QueueFull
from hloserve.core.logging import TextFormatter
from hloserve.core.requests import NEVER_NS
from hloserve.wire.grpc_limits import GrpcLimits

_MIB = 1 << 20
_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(params=list(LOOPS))
def loop_kind(request: pytest.FixtureRequest) -> str:
    """The event loop that the server runs on."""
    return str(request.param)


@pytest.fixture
def server(loop_kind: str) -> Iterator[RunningServer]:
    """A server with a cap of 32 MiB."""
    limits = GrpcLimits(max_recv_msg_bytes=32 * _MIB, max_send_msg_bytes=32 * _MIB)
    with running_server(loop_kind, limits=limits) as running:
        yield running


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    """A channel of grpcio's blocking client."""
    with grpc.insecure_channel(server.address, options=_UNBOUNDED) as channel:
        yield channel


def _call(channel: grpc.Channel, method: str, message: bytes = b"", **options: Any) -> bytes:
    options.setdefault("timeout", 20)
    return bytes(channel.unary_unary(f"/test.Service/{method}")(message, **options))


def _failure(channel: grpc.Channel, method: str, message: bytes = b"", **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        _call(channel, method, message, **options)
    return caught.value


def _held(server: RunningServer) -> Any:
    assert server.service.has_held.wait(20)
    return server.service.held[-1]


@pytest.mark.parametrize("nbytes", [0, 1, 300, 16_379, 16_384, 100_000, 5 * _MIB, 20 * _MIB])
def test_a_message_of_any_size_comes_back(channel: grpc.Channel, nbytes: int) -> None:
    """Requests and responses of every size cross unchanged."""
    message = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]

    assert message == _call(channel, "Echo", message)


def test_many_streams_share_one_connection(channel: grpc.Channel, server: RunningServer) -> None:
    """Two thousand calls at once, more than the stream limit, are each answered with their own."""
    echo = channel.unary_unary("/test.Service/Echo")

    calls = [echo.future(b"%d" % i, timeout=30) for i in range(2000)]

    assert [b"%d" % i for i in range(2000)] == [call.result() for call in calls]
    assert server.on_loop(lambda: server.server.connections) == 1


def test_the_asyncio_client_is_served(server: RunningServer) -> None:
    """The asyncio client gets answers and errors as the blocking one does."""

    async def run() -> tuple[list[bytes], grpc.StatusCode]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            echo = channel.unary_unary("/test.Service/Echo")
            replies = await asyncio.gather(*(echo(b"%d" % i, timeout=20) for i in range(200)))
            try:
                await channel.unary_unary("/test.Service/Nope")(b"", timeout=20)
            except grpc.aio.AioRpcError as error:
                return [bytes(reply) for reply in replies], error.code()
        raise AssertionError("the call did not fail")

    replies, code = asyncio.run(run())

    assert [b"%d" % i for i in range(200)] == replies
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    """The answer names the method, and does not wait for the upload."""
    error = _failure(channel, "Nope", b"x" * (4 * _MIB))

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "/test.Service/Nope" in error.details()


def test_a_message_over_the_cap_names_the_setting(channel: grpc.Channel) -> None:
    """The refusal says how large, how large it may be, and which setting raises the cap."""
    error = _failure(channel, "Echo", b"x" * (33 * _MIB))

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc.max_recv_msg_bytes" in error.details()
    assert str(33 * _MIB) in error.details()
    assert str(32 * _MIB) in error.details()
    assert _call(channel, "Echo", b"still here") == b"still here"


def test_a_response_over_the_cap_names_the_setting(loop_kind: str) -> None:
    """A response that is too large fails its call and nothing else."""
    with (
        running_server(loop_kind, limits=GrpcLimits(max_send_msg_bytes=100)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        error = _failure(channel, "Echo", b"x" * 101)

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc.max_send_msg_bytes" in error.details()
        assert _call(channel, "Echo", b"x" * 100) == b"x" * 100


@pytest.mark.parametrize("coding", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
def test_a_compressed_request_is_read(channel: grpc.Channel, coding: grpc.Compression) -> None:
    """A client may compress; the cap counts the decompressed bytes."""
    message = b"abc" * 100_000

    assert message == _call(channel, "Echo", message, compression=coding)
    error = _failure(channel, "Length", bytes(33 * _MIB), compression=coding)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_deadline_arrives_as_a_monotonic_instant(channel: grpc.Channel) -> None:
    """`grpc-timeout` becomes an instant of the server's clock; none becomes `NEVER_NS`."""
    before = time.monotonic_ns()
    deadline_ns = int(_call(channel, "Deadline", timeout=100))

    assert before + 98e9 < deadline_ns < time.monotonic_ns() + 101e9
    assert int(_call(channel, "Deadline", timeout=None)) == NEVER_NS


def test_metadata_is_looked_up(channel: grpc.Channel) -> None:
    """Text and binary metadata reach the handler."""
    metadata = (("x-name", "value"), ("x-data-bin", b"\x00\xff"))

    assert _call(channel, "Metadata", b"x-name", metadata=metadata) == b"value"
    assert _call(channel, "Metadata", b"x-data-bin", metadata=metadata) == b"\x00\xff"
    assert _call(channel, "Metadata", b"x-other", metadata=metadata) == b""


def test_an_error_arrives_with_its_code_and_text(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """Our errors keep their words, in any script."""
    call = channel.unary_unary("/test.Service/Hold").future(b"", timeout=20)
    rpc = _held(server)

    server.on_loop(rpc.fail, ModelNotFound("größe/%41"))

    assert call.exception().code() is grpc.StatusCode.NOT_FOUND
    assert "größe/%41" in call.exception().details()


def test_an_internal_error_shows_an_id_and_no_secret(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback is in the log under the id that the caller is told."""
    error = _failure(channel, "Boom")

    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()
    request_id = error.details().split()[-1]
    lines = [TextFormatter().format(record) for record in caplog.records]
    logged = [line for line in lines if request_id in line]
    assert len(logged) == 1
    assert "ZeroDivisionError: a secret of the server" in logged[0]


def test_a_cancelled_call_is_reported_once(channel: grpc.Channel, server: RunningServer) -> None:
    """RST_STREAM reaches `on_cancel`; a late answer is ignored and disturbs nobody."""
    call = channel.unary_unary("/test.Service/Hold").future(b"", timeout=20)
    rpc = _held(server)

    call.cancel()

    assert server.service.has_cancelled.wait(20)
    server.on_loop(rpc.reply, b"too late")
    server.on_loop(rpc.fail, QueueFull("m", 1))
    assert _call(channel, "Echo", b"next") == b"next"
    assert server.service.cancelled == [rpc]


def test_an_expired_call_is_cancelled_by_the_client(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """When the client's deadline passes it resets the stream, and the handler learns of it."""
    error = _failure(channel, "Hold", timeout=0.05)

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.service.has_cancelled.wait(20)


def test_a_vanished_client_cancels_its_calls(server: RunningServer) -> None:
    """Closing the connection cancels every call on it, once."""
    with grpc.insecure_channel(server.address) as channel:
        hold = channel.unary_unary("/test.Service/Hold")
        calls: list[Future[bytes]] = [hold.future(b"", timeout=20) for _ in range(3)]
        with grpc.insecure_channel(server.address, options=[("x", 1)]) as other:
            _call(other, "Echo", b"both are connected")
        assert len(calls) == 3
        _call(channel, "Echo", b"the calls before this one have arrived")

    while len(server.service.cancelled) < 3:
        server.service.has_cancelled.clear()
        assert len(server.service.cancelled) == 3 or server.service.has_cancelled.wait(20)
    assert set(server.service.held) == set(server.service.cancelled)


def test_keepalive_pings_are_permitted(server: RunningServer) -> None:
    """A client that pings every 10 ms keeps its connection and its call."""
    options = [
        ("grpc.keepalive_time_ms", 10),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with grpc.insecure_channel(server.address, options=options) as channel:
        call = channel.unary_unary("/test.Service/Hold").future(b"", timeout=20)
        rpc = _held(server)
        with pytest.raises(grpc.FutureTimeoutError):
            call.result(0.5)  # the time in which some fifty pings pass

        server.on_loop(rpc.reply, b"answer")

        assert call.result() == b"answer"
        assert server.on_loop(lambda: server.server.connections) == 1


def test_draining_finishes_what_is_under_way(channel: grpc.Channel, server: RunningServer) -> None:
    """During a drain the running call is answered, new ones are turned away, then all is closed."""
    call = channel.unary_unary("/test.Service/Hold").future(b"", timeout=20)
    rpc = _held(server)

    drained = server.begin(server.server.drain(20))
    echo = channel.unary_unary("/test.Service/Echo")
    error = None
    while error is None:  # calls that cross the GOAWAY on the wire are still served
        error = echo.future(b"", timeout=5).exception()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert not drained.done()
    server.on_loop(rpc.reply, b"the last answer")

    assert call.result() == b"the last answer"
    drained.result(20)
    assert server.on_loop(lambda: server.server.connections) == 0


def test_a_drain_ends_after_its_grace(channel: grpc.Channel, server: RunningServer) -> None:
    """A call that does not end in time is cancelled, and its caller is told UNAVAILABLE."""
    call = channel.unary_unary("/test.Service/Hold").future(b"", timeout=20)
    _held(server)

    server.begin(server.server.drain(0.05)).result(20)

    assert server.service.has_cancelled.wait(20)
    assert call.exception().code() is grpc.StatusCode.UNAVAILABLE


def test_an_idle_server_drains_at_once(channel: grpc.Channel, server: RunningServer) -> None:
    """Without calls under way a drain takes one round trip, not its grace."""
    _call(channel, "Echo", b"x")

    server.begin(server.server.drain(1000)).result(20)

    assert server.on_loop(lambda: server.server.connections) == 0


def test_answers_of_one_batch_reach_many_callers(
    channel: grpc.Channel, server: RunningServer
) -> None:
    """`run_batch` writes all answers that a callback makes."""
    hold = channel.unary_unary("/test.Service/Hold")
    calls = [hold.future(b"", timeout=20) for _ in range(50)]
    while len(server.service.held) < 50:
        server.service.has_held.clear()
        assert len(server.service.held) == 50 or server.service.has_held.wait(20)

    def answer_all() -> None:
        for i, rpc in enumerate(server.service.held):
            rpc.reply(b"%d" % i)

    server.on_loop(server.server.run_batch, answer_all)

    assert {b"%d" % i for i in range(50)} == {call.result() for call in calls}
