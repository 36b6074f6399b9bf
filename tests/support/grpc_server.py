"""A gRPC server on a loop of its own thread, with handlers that tests can steer."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import uvloop

from hloserve.core.clock import Clock, SystemClock
from hloserve.core.errors import ModelNotFound
from hloserve.server.grpc_stream import StreamHandler, StreamingRpc, server_streaming
from hloserve.server.grpc_transport import GrpcServer, GrpcTimeouts, Handler, Rpc
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_limits import GrpcLimits

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


PIECE = bytes(64 * 1024)
"""One message of a flood."""


class Streams:
    """Streaming handlers of the test service, and what they saw. Filled on the loop thread."""

    def __init__(self) -> None:
        self.held: list[StreamingRpc] = []
        self.messages: list[bytes] = []
        self.cancelled: list[StreamingRpc] = []
        self.has_held = threading.Event()
        self.has_message = threading.Event()
        self.has_cancelled = threading.Event()
        self.most_unsent_bytes = 0
        self.pieces_sent = 0

    @property
    def handlers(self) -> dict[str, StreamHandler]:
        """The table for `GrpcServer`."""
        return {
            "/test.Service/Talk": self.talk,
            "/test.Service/Count": server_streaming(self.count),
            "/test.Service/Flood": server_streaming(self.flood),
            "/test.Service/Hear": self.hear,
            "/test.Service/Last": self.last,
        }

    def talk(self, rpc: StreamingRpc) -> None:
        """Send every message back; ``fail`` ends the call with an error, ``boom`` with a bug."""

        def answer(message: Message) -> None:
            if message == b"fail":
                rpc.fail(ModelNotFound("nobody"))
            elif message == b"boom":
                raise ZeroDivisionError("a secret of the server")
            else:
                rpc.send(message)

        rpc.on_message = answer
        rpc.on_half_close = rpc.finish

    def last(self, rpc: StreamingRpc) -> None:
        """Answer with the number of messages, at the end."""
        messages: list[Message] = []
        rpc.on_message = messages.append
        rpc.on_half_close = lambda: rpc.reply(b"%d" % len(messages))

    def count(self, rpc: StreamingRpc, message: Message) -> None:
        """Send the numbers below the one in the request."""
        for number in range(int(bytes(message))):
            rpc.send(b"%d" % number)
        rpc.finish()

    def flood(self, rpc: StreamingRpc, message: Message) -> None:
        """Send as many pieces as the request says, as fast as the peer reads."""
        wanted = int(bytes(message))

        def go_on() -> None:
            while self.pieces_sent < wanted and not rpc.is_full:
                rpc.send(PIECE)
                self.pieces_sent += 1
                connection = rpc.connection
                assert connection is not None
                unsent = connection.http2.unsent_bytes(rpc.stream_id)
                self.most_unsent_bytes = max(self.most_unsent_bytes, unsent)
            if self.pieces_sent == wanted:
                rpc.finish()
            self.has_message.set()

        rpc.on_room = go_on
        rpc.on_cancel = lambda: self._note_cancel(rpc)
        go_on()

    def hear(self, rpc: StreamingRpc) -> None:
        """Keep messages; pause after the first one, and answer nothing."""
        self.held.append(rpc)
        rpc.on_message = lambda message: self._keep(rpc, message)
        rpc.on_cancel = lambda: self._note_cancel(rpc)
        rpc.on_half_close = rpc.finish
        self.has_held.set()

    def _keep(self, rpc: StreamingRpc, message: Message) -> None:
        self.messages.append(bytes(message))
        if len(self.messages) == 1:
            rpc.pause()
        self.has_message.set()

    def _note_cancel(self, rpc: StreamingRpc) -> None:
        self.cancelled.append(rpc)
        self.has_cancelled.set()


class Service:
    """Handlers of the test service. `held` and `cancelled` are filled on the loop thread."""

    def __init__(self) -> None:
        self.streams = Streams()
        self.held: list[Rpc] = []
        self.cancelled: list[Rpc] = []
        self.has_held = threading.Event()
        self.has_cancelled = threading.Event()

    @property
    def methods(self) -> dict[str, Handler]:
        """The table for `GrpcServer`."""
        return {
            "/test.Service/Echo": self.echo,
            "/test.Service/Hold": self.hold,
            "/test.Service/Boom": self.boom,
            "/test.Service/Length": self.length,
            "/test.Service/Deadline": self.deadline,
            "/test.Service/Metadata": self.metadata,
        }

    def echo(self, rpc: Rpc) -> None:
        """Answer with the request."""
        rpc.reply(rpc.message)

    def length(self, rpc: Rpc) -> None:
        """Answer with the length of the request."""
        rpc.reply(b"%d" % len(rpc.message))

    def hold(self, rpc: Rpc) -> None:
        """Answer when the test says so."""
        self.held.append(rpc)
        rpc.on_cancel = lambda: self._note_cancel(rpc)
        self.has_held.set()

    def boom(self, rpc: Rpc) -> None:
        """Fail as a bug would."""
        raise ZeroDivisionError("a secret of the server")

    def deadline(self, rpc: Rpc) -> None:
        """Answer with the deadline."""
        rpc.reply(b"%d" % rpc.deadline_ns)

    def metadata(self, rpc: Rpc) -> None:
        """Answer with the header that the request names."""
        value = rpc.metadata(bytes(rpc.message).decode())
        rpc.reply(value.encode() if isinstance(value, str) else value or b"")

    def _note_cancel(self, rpc: Rpc) -> None:
        self.cancelled.append(rpc)
        self.has_cancelled.set()


class RunningServer:
    """A server that runs in a thread; the methods may be called from the test's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: GrpcServer, service: Service
    ) -> None:
        self.loop, self.server, self.service = loop, server, service
        self.host, self.port = "", 0

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    def on_loop(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on the loop thread and give its result."""
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001  # carried to the test's thread
                future.set_exception(error)

        self.loop.call_soon_threadsafe(call)
        return future.result(20)

    def begin(self, coroutine: Any) -> Future[Any]:
        """Start a coroutine on the loop thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@contextmanager
def running_server(
    loop_kind: str = "asyncio",
    *,
    limits: GrpcLimits | None = None,
    clock: Clock | None = None,
    timeouts: GrpcTimeouts | None = None,
    tls: Any = None,
) -> Iterator[RunningServer]:
    """Serve the test service for the length of the block."""
    loop = LOOPS[loop_kind]()
    thread = threading.Thread(target=loop.run_forever, name="grpc-server")
    thread.start()
    service = Service()
    try:
        server = GrpcServer(
            service.methods,
            limits or GrpcLimits(),
            clock or SystemClock(),
            timeouts,
            streams=service.streams.handlers,
        )
        running = RunningServer(loop, server, service)
        running.host, running.port = running.begin(server.start("127.0.0.1", 0, tls)).result(20)
        try:
            yield running
        finally:
            running.on_loop(server.close)
            running.begin(server.wait_closed()).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
