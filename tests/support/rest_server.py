"""An HTTP server to test against: on a fake transport, or on a real socket with a raw client."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.server.rest_exchange import Exchange
from hloserve.server.rest_transport import HttpServer
from hloserve.wire.http1_client import HttpClientConnection
from hloserve.wire.http1_messages import HttpResponse


class FakeTransport(asyncio.Transport):
    """A transport that keeps what is written and does what it is told."""

    def __init__(self, *, can_end: bool = True) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unread_bytes = 0
        self.is_reading_now = True
        self.is_ended = False
        self.was_aborted = False
        self._is_closing = False
        self._can_end = can_end

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    @override
    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    @override
    def write_eof(self) -> None:
        self.is_ended = True

    @override
    def can_write_eof(self) -> bool:
        return self._can_end

    @override
    def close(self) -> None:
        self._is_closing = True

    @override
    def abort(self) -> None:
        self._is_closing = self.was_aborted = True

    @override
    def is_closing(self) -> bool:
        return self._is_closing

    @override
    def pause_reading(self) -> None:
        self.is_reading_now = False

    @override
    def resume_reading(self) -> None:
        self.is_reading_now = True

    @override
    def get_write_buffer_size(self) -> int:
        return self.unread_bytes


class FakePeer:
    """A client on a fake transport, and the server's clock."""

    def __init__(self, handler: Callable[[Exchange], None], **options: Any) -> None:
        self.clock = ManualClock()
        self.server = HttpServer(handler, clock=self.clock, **options)
        self.transport = FakeTransport()
        self.protocol = self.server.new_connection()
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Deliver bytes as the event loop would."""
        while data:
            buffer = memoryview(self.protocol.get_buffer(-1))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.protocol.buffer_updated(count)
            data = data[count:]

    def wait(self, seconds: float) -> None:
        """Let time pass, and the server notice."""
        self.clock.advance(seconds=seconds)
        self.server.sweep()

    @property
    def sent(self) -> bytes:
        """What the server has written."""
        return b"".join(self.transport.writes)


class RawClient:
    """A client that sends bytes as they are and reads responses with our own parser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._http = HttpClientConnection("test")
        self._ready: list[HttpResponse] = []

    async def send(self, data: bytes, responses: int = 0) -> list[HttpResponse]:
        """Send bytes and wait for that many responses."""
        self.writer.write(data)
        return await self.read(responses)

    async def read(self, responses: int) -> list[HttpResponse]:
        """Wait for responses."""
        for _ in range(responses):
            self._http.request("GET", "/")
        while len(self._ready) < responses:
            data = await self.reader.read(2**16)
            assert data, "the server closed the connection"
            self._ready += self._http.receive(data)
        got, self._ready = self._ready[:responses], self._ready[responses:]
        return got

    async def read_end(self) -> bytes:
        """Wait until the server ends the connection; returns what came before."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run_with_server(
    loop_factory: LoopFactory,
    handler: Callable[[Exchange], None],
    client: Callable[[HttpServer, Callable[[], Awaitable[RawClient]]], Awaitable[None]],
    ssl: Any = None,
    client_ssl: Any = None,
    **options: Any,
) -> None:
    """Start a server on a free port and run `client(server, connect)` against it."""

    async def main() -> None:
        server = HttpServer(handler, **options)
        host, port = await server.start("127.0.0.1", 0, ssl)
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> RawClient:
            reader, writer = await asyncio.open_connection(host, port, ssl=client_ssl)
            writers.append(writer)
            return RawClient(reader, writer)

        try:
            await client(server, connect)
        finally:
            for writer in writers:
                writer.transport.abort()
            server.close()
            await asyncio.sleep(0)  # let the transports report their end
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
