"""gRPC on sockets: an asyncio protocol around the connection without I/O.

What lives here: listening, reading, writing in batches, slow readers, timeouts, draining; and
`Rpc`, the one call that a handler sees. What does not: HTTP/2 and gRPC (`hloserve.wire`), and what
a call means (the handlers). Everything runs on the loop thread.

Rules.
1. A handler is called synchronously and must not block. It answers at once or later, by
   `Rpc.reply` or `Rpc.fail`, on the loop thread.
2. An answer to a caller that has gone is ignored.
3. All answers of one loop callback leave in one write per connection: at the end of the read that
   they were made in, else by `GrpcServer.flush`, which is scheduled when nobody calls it.
4. Time is looked at by one sweep per server, not by timers per connection or call.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from typing_extensions import override

from hloserve.core.clock import Clock
from hloserve.core.logging import log_event
from hloserve.core.requests import NEVER_NS
from hloserve.server.grpc_call import Handler, Rpc
from hloserve.server.grpc_watch import GrpcTimeouts, Verdict, Watch
from hloserve.wire.grpc_events import RpcCancelled
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

__all__ = ["Connection", "GrpcServer", "GrpcTimeouts", "Handler", "Rpc"]

log = logging.getLogger(__name__)

# One read; large bodies come at most this much at a time.
_READ_BYTES = 256 * 1024
# Taken from the connection per write: a large reply to a slow reader is held once, not twice.
_WRITE_BYTES = 256 * 1024
_HIGH_WATER_BYTES = 1024 * 1024
_SWEEP_PERIOD_S = 1.0
_GOODBYE_S = 1.0


class Connection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, server: "GrpcServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_reading = False  # inside buffer_updated
        self._is_dirty = False
        self._is_paused = False
        self._has_left = False
        self.http2: GrpcServerConnection[Handler] = GrpcServerConnection(
            server.methods, server.limits, make_rpc=Rpc
        )
        self._watch = Watch(server.now_ns())

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._server.joined(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._watch.has_read = True
        self._is_reading = True
        server = self._server
        server.is_alone_reading = server.connections == 1
        try:
            for event in self.http2.receive(server.read_buffer[:nbytes]):
                if type(event) is Rpc:
                    timeout_ns = event.timeout_ns
                    event.deadline_ns = NEVER_NS if timeout_ns < 0 else server.now_ns() + timeout_ns
                    event.on_cancel = None
                    event.connection = self
                    try:
                        event.method(event)
                    except Exception as error:  # noqa: BLE001  # the edge of a request: fail logs it
                        event.fail(error)
                elif type(event) is RpcCancelled:
                    _cancel(event)
        finally:
            server.run_after_read()  # also when we fail: others wait for what was put off
            self._is_reading = False
        self.flush()

    @override
    def eof_received(self) -> bool:
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for event in self.http2.lose():
            _cancel(event)
        self._server.left(self)

    @override
    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch.last_write_ns = self._server.now_ns()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    @override
    def resume_writing(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.flush()

    def wrote(self) -> None:
        """There is output: see that it leaves with the rest of what this loop callback makes."""
        if not self._is_dirty and not self._is_reading:
            self._is_dirty = True
            self._server.mark_dirty(self)

    def flush(self) -> None:
        """Write what there is, as far as the peer takes it."""
        self._is_dirty = False
        transport = self._transport
        if transport is None or self._has_left or transport.is_closing():
            return
        http2 = self.http2
        while not self._is_paused:
            data = http2.take_output(_WRITE_BYTES)
            if data:
                transport.write(data)
            if len(data) < _WRITE_BYTES:
                break
        if http2.is_closed:
            if http2.end_reason:
                log_event(log, "grpc_connection_closed", reason=http2.end_reason)
            for event in http2.lose():
                _cancel(event)
            self._leave(transport)
        elif http2.is_drained and not http2.open_rpcs and not http2.queued_bytes:
            self._leave(transport)

    def drain(self) -> None:
        """Serve what is under way, then close; at once if the peer has not even greeted."""
        if self.http2.is_open:
            self.http2.drain()
            self.flush()
        else:
            self.abort()

    def close(self, reason: str) -> None:
        """Say goodbye and close; calls in progress are dropped."""
        self.http2.close(reason=reason)
        self.flush()

    def close_now(self) -> None:
        """Close as `close` does, without waiting for the peer to have read the goodbye."""
        self.close("server is shutting down")
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without a word: the peer does not listen."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_ns: int, timeouts: GrpcTimeouts) -> None:
        """Look at the clock on behalf of this connection; called about once a second."""
        http2, watch = self.http2, self._watch
        http2.replenish()
        verdict = watch.judge(now_ns, timeouts, http2, is_paused=self._is_paused)
        if verdict is Verdict.ABORT:
            self.abort()
        elif verdict is Verdict.DRAIN:
            self.drain()
        elif verdict is Verdict.FINISH_DRAIN:
            http2.finish_drain()
            self.flush()
        elif verdict is Verdict.CLOSE:
            self.close("no bytes came in time")
        elif verdict is Verdict.PING:
            http2.ping()
            self.flush()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close when the peer has read what was sent, which it shows by closing first.

        Closing a socket that has unread input resets it, and the peer may lose the last bytes. The
        sweep ends the wait.
        """
        self._has_left = True
        self._watch.left_ns = self._server.now_ns()
        if self._is_paused or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer was faster; asyncio's shutdown() of the socket says so
            transport.close()


def _cancel(event: "RpcCancelled[Handler]") -> None:
    try:
        cast(Rpc, event.rpc).cancelled()
    except Exception as error:  # noqa: BLE001  # the edge of a request: the connection goes on
        log_event(log, "on_cancel_failed", level=logging.ERROR, error=error)


class GrpcServer:
    """Listens and keeps the connections of one loop.

    Args:
        methods: path, ``/package.Service/Method``, to handler. Other paths are UNIMPLEMENTED.
        limits: of each connection.
        clock: for deadlines and timeouts.
        timeouts: of each connection.
    """

    def __init__(
        self,
        methods: Mapping[str, Handler],
        limits: GrpcLimits,
        clock: Clock,
        timeouts: GrpcTimeouts | None = None,
    ) -> None:
        self.methods: Mapping[bytes, Handler] = {
            path.encode("ascii"): handler for path, handler in methods.items()
        }
        self.limits = limits
        self.timeouts = timeouts or GrpcTimeouts()
        self.now_ns = clock.now_ns
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.is_alone_reading = False
        self._after_read: list[Callable[[], object]] = []
        self._connections: set[Connection] = set()
        self._dirty: list[Connection] = []
        self._is_flush_scheduled = False
        self._is_in_batch = False
        self._is_draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; returns the address, with the port that the system picked for 0.

        Args:
            host: address or name to bind to.
            port: 0 lets the system pick.
            tls: a server context; its ALPN is set to h2 here.
        """
        loop = self._loop = asyncio.get_running_loop()
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._listener = await loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=tls,
            backlog=1024,
            ssl_handshake_timeout=self.timeouts.handshake_s if tls is not None else None,
        )
        self._sweep_timer = loop.call_later(_SWEEP_PERIOD_S, self._sweep_again)
        address = self._listener.sockets[0].getsockname()
        return address[0], address[1]

    def post(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: run a function that answers calls on the loop thread, as a batch."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.run_batch, function, *args)

    def run_batch(self, function: Callable[..., object], *args: object) -> None:
        """Call `function`, then write all answers that it made, one write per connection.

        Without it the answers leave one turn of the loop later: 2.5 us on uvloop, 6.6 on asyncio's.
        """
        self._is_in_batch = True
        try:
            function(*args)
        finally:
            self._is_in_batch = False
            self.flush()

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """From the loop thread: run a function that answers calls after what has arrived was read.

        That is at the end of this turn of the loop, since other connections may have sent something
        as well; or, without others, as soon as the present read is over, which saves a turn.
        """
        if self.is_alone_reading:
            self._after_read.append(partial(function, *args))
        else:
            assert self._loop is not None, "a server that has not started has nothing to answer"
            self._loop.call_soon(self.run_batch, function, *args)

    def run_after_read(self) -> None:
        """For the connection that has read: run what was put off.

        What that puts off in turn waits for the loop, which minds other things in between.
        """
        self.is_alone_reading = False
        put_off, self._after_read = self._after_read, []
        for function in put_off:
            try:
                function()
            except Exception as error:  # noqa: BLE001  # not the fault of the peer that was read
                log_event(log, "after_read_failed", level=logging.ERROR, error=error)

    def flush(self) -> None:
        """Write the answers that were made since the last flush."""
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    async def drain(self, grace_s: float) -> None:
        """Take no new connections and calls, wait for those under way, close.

        Args:
            grace_s: at most so long; what is still under way then is dropped by `close`.
        """
        self._is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), grace_s)
        self.close()
        await self.wait_closed()

    def close(self) -> None:
        """Close the listener and every connection; calls under way are cancelled. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self._connections):
            connection.close_now()
        if self._connections and self._loop is not None:
            self._loop.call_later(_GOODBYE_S, self._abort_all)

    async def wait_closed(self) -> None:
        """After `close`: wait until the last connection is gone; about a second at most."""
        await self._is_empty.wait()

    def sweep(self) -> None:
        """Apply the timeouts to every connection; runs by itself once a second."""
        now_ns = self.now_ns()
        for connection in tuple(self._connections):
            connection.sweep(now_ns, self.timeouts)

    def joined(self, connection: Connection) -> None:
        """For the transport: a connection was accepted."""
        self._connections.add(connection)
        self._is_empty.clear()
        if self._is_draining:
            connection.drain()

    def left(self, connection: Connection) -> None:
        """For the transport: a connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def mark_dirty(self, connection: Connection) -> None:
        """For the transport: a connection has output, made outside of its own read."""
        self._dirty.append(connection)
        if not self._is_in_batch and not self._is_flush_scheduled and self._loop is not None:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _abort_all(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _sweep_again(self) -> None:
        self.sweep()
        if self._loop is not None:
            self._sweep_timer = self._loop.call_later(_SWEEP_PERIOD_S, self._sweep_again)
