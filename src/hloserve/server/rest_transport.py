"""HTTP/1.1 on asyncio: sockets, flow control and timeouts around `hloserve.wire.http1_server`.

What lives here: `HttpServer`, which serves the REST and the admin endpoints. What does not: the
protocol (`hloserve.wire.http1_server`), what a handler sees (`hloserve.server.rest_exchange`) and
routes. Everything runs on the event loop's thread.

Rules.
1. All connections read into one buffer: what arrives is consumed before the callback returns.
   Long bodies are read straight into their own memory.
2. Replies given within one loop callback leave in one write per connection.
3. No timer per request or connection: one sweep per second looks at all connections, so timeouts
   are exact to a second, and an idle connection costs its memory alone.
4. A peer whose stream ends has gone, and its requests are cancelled, unless it only half-closed.
"""

import asyncio
import ssl as tls
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from typing import cast

from typing_extensions import override

from hloserve.core.clock import Clock, SystemClock
from hloserve.models.task_threads import TaskThreads
from hloserve.server.listening import Listener
from hloserve.server.rest_bodies import mind_body
from hloserve.server.rest_exchange import Exchange
from hloserve.server.rest_half_closed import probe_peer
from hloserve.server.rest_timeouts import HttpTimeouts, Timed
from hloserve.wire.bytes_in_hand import BytesInHand
from hloserve.wire.http1 import HeadCheck
from hloserve.wire.http1_messages import HttpLimits, HttpRequest
from hloserve.wire.http1_server import CommonHeaders, HttpServerConnection, Phase

__all__ = ["Exchange", "HttpServer", "HttpTimeouts"]

_RECEIVE_BYTES = 64 * 2**10
_JOIN_BYTES = 64 * 2**10
_SWEEP_S = 1.0
_BACKLOG = 4096
_BODY_THREADS = 2
_MOST_BODIES = 256
_BODIES_IN_HAND = 16


class HttpServer:
    """Serves HTTP/1.1 on one address.

    Args:
        handler: called with each request; it answers now or later. What it raises becomes an
            error response.
        limits: what a connection may ask for.
        timeouts: how long it may take.
        clock: the time for timeouts.
        guard: makes, for each connection, the check of who may ask; everybody when left out.
        budget: the bytes of requests that the process has in hand; a large one when left out.
    """

    def __init__(
        self,
        handler: Callable[[Exchange], None],
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
        timeouts: HttpTimeouts | None = None,
        guard: Callable[[], HeadCheck] | None = None,
        budget: BytesInHand | None = None,
    ) -> None:
        self._guard = guard
        self._handler = handler
        self._limits = limits or HttpLimits()
        self.budget = budget or BytesInHand(self._limits.max_body_bytes * _BODIES_IN_HAND)
        self._clock: Clock = clock or SystemClock()
        self._timeouts = timeouts or HttpTimeouts()
        self._connections: set[_Connection] = set()
        self._unsent: list[_Connection] = []
        self._common = CommonHeaders()
        self._receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._now_ns = 0
        self.listener: Listener | None = None
        self._threads: TaskThreads | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None
        self.has_left = False  # idle connections are closed

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(
        self, host: str, port: int, ssl: tls.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; returns the host and port that were bound.

        Args:
            host: address to bind.
            port: 0 lets the system pick one.
            ssl: a server context; its ALPN is set to http/1.1 here.

        Raises:
            OSError: the address cannot be bound.
        """
        if ssl is not None:
            ssl.set_alpn_protocols(["http/1.1"])
        post = asyncio.get_running_loop().call_soon_threadsafe
        self._threads = TaskThreads(_BODY_THREADS, post, name="body", max_waiting=_MOST_BODIES)
        self.listener = await Listener.open(
            self.new_connection,
            (host, port),
            ssl,
            backlog=_BACKLOG,
            handshake_timeout_s=self._timeouts.header_timeout_s,
        )
        self._tick()
        return self.listener.address

    async def renew(self, ssl: tls.SSLContext) -> None:
        """Let connections that are accepted from now on use another context."""
        ssl.set_alpn_protocols(["http/1.1"])
        if self.listener is not None:
            await self.listener.renew(ssl)

    def new_connection(self) -> asyncio.BufferedProtocol:
        """The protocol object of one more connection; listeners call it."""
        return _Connection(self)

    async def drain(self, grace_s: float) -> None:
        """Stop listening, let the requests in flight finish, then close.

        Args:
            grace_s: after it, what is left is cut off.
        """
        if self.listener is not None:
            self.listener.close()
        self._all_closed = asyncio.Event()
        for connection in self._connections:
            connection._http.is_draining = True
        # On idle connections requests may be on their way: they are answered, and told to be last.
        for patience_s in (min(grace_s, self._timeouts.leave_s), grace_s):
            if self._connections:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._all_closed.wait(), patience_s)
            self.has_left = True
            for connection in list(self._connections):
                connection.advance()
        self.close()

    def close(self) -> None:
        """Stop listening and cut all connections off. Idempotent."""
        if self.listener is not None:
            self.listener.close()
        if self._threads is not None:
            self._threads.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._connections):
            connection.abort()

    def sweep(self) -> None:
        """Enforce the timeouts now; the server itself does it every second."""
        now_ns = self._now_ns = self._clock.now_ns()
        self.budget.look(now_ns)
        for connection in list(self._connections):
            connection.check_timeouts(now_ns)

    def _tick(self) -> None:
        self._common.lines = f"Date: {formatdate(usegmt=True)}\r\n".encode("ascii")
        self.sweep()
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._tick)

    def _write_soon(self, connection: "_Connection") -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._unsent.append(connection)

    def _write_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.advance()

    def _closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if not self._connections and self._all_closed is not None:
            self._all_closed.set()


class _Connection(Timed, asyncio.BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_into_body",
        "_is_held_back",
        "_is_unsent",
        "_server",
        "account",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        check = None if server._guard is None else server._guard()
        self._http = HttpServerConnection(server._limits, server._common, check)
        self._transport: asyncio.Transport | None = None
        self._into_body = False
        self._is_closing = self._is_held_back = False
        self.account = server.budget.account()
        self._is_reading = True
        self._is_unsent = False
        self._is_write_paused = False
        self._unread_bytes = 0
        self._phase: int = Phase.IDLE
        self._since_ns = server._now_ns
        self._timeouts = server._timeouts

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour only
        self._server._connections.add(self)
        self._http.is_draining = self._server._all_closed is not None
        if self._server.has_left:
            self.advance()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server._closed(self)
        self._depart()

    @override
    def eof_received(self) -> bool:
        transport, http = self._transport, self._http
        is_waiting = http.has_pending and http.phase == Phase.IDLE and not self._is_closing
        if transport is None or not is_waiting or not transport.can_write_eof():
            self._depart()
            return False  # closes the transport once its output is sent
        if not http.is_draining:
            http.is_draining = True  # nothing follows on the answers that are due
            probe_peer(transport, lambda: http.knows_interim and not self._is_write_paused)
        return True

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._http.body_buffer()
        self._into_body = body is not None
        return self._server._receive_buffer if body is None else body

    @override
    def buffer_updated(self, nbytes: int) -> None:
        http = self._http
        if self._into_body:
            requests = http.body_received(nbytes)
        else:
            requests = http.receive(self._server._receive_buffer[:nbytes])
        phase = http.phase
        if (requests or phase != self._phase or phase == Phase.BODY) and not self._is_closing:
            self._phase = phase
            self._since_ns = self._server._now_ns
        if phase == Phase.BODY:
            self._is_held_back = mind_body(http, self.account, self._proceed)
            if self._is_held_back or http.has_work:
                self._set_reading()
        self._handle(requests)
        self.advance()

    def _proceed(self) -> None:
        """The body that had to wait may come, or was refused."""
        self._is_held_back = False
        self._set_reading()
        self.advance()

    @override
    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._unread_bytes = 0
        self._set_reading()

    @override
    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.advance()

    def _handle(self, requests: Sequence[HttpRequest]) -> None:
        server = self._server
        self._is_unsent = True  # what is answered at once leaves with the `advance` that follows
        for request in requests:
            claim, limit = request.context, server._limits.max_body_bytes
            exchange = Exchange(request, self, limit, server._threads, claim)
            request.context = exchange
            try:
                server._handler(exchange)
            except Exception as error:  # noqa: BLE001  # the edge of a request: logged and answered
                exchange.fail(error)

    def answer(
        self,
        request: HttpRequest,
        status: int,
        body: bytes,
        content_type: str,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        """Send an answer in its turn, together with others of this loop callback."""
        request.context = None
        self._http.respond(request, status, body, content_type, headers)
        if not self._is_unsent:
            self._is_unsent = True
            self._server._write_soon(self)

    @override
    def advance(self) -> None:
        """Write what is ready, take up requests that waited for it, and mind the reading."""
        http = self._http
        self._is_unsent = False
        if self._is_reading and not (http.has_work or self._server.has_left):
            return
        self._write()
        while http.has_backlog and not http.is_full and not self._is_write_paused:
            self._handle(http.receive(b""))
            self._is_unsent = False
            self._write()
        self._set_reading()

    def _write(self) -> None:
        transport, http = self._transport, self._http
        out = http.take_output()
        if transport is None:
            return
        if out:
            if len(out) == 2 and len(out[1]) > _JOIN_BYTES:
                transport.writelines(out)  # a large body is not copied
            else:
                transport.write(b"".join(out))
        if http.should_close and not self._is_closing:
            self._close(linger=http.is_refused or self._server._all_closed is not None)
        elif self._server.has_left and not http.has_pending and http.phase == Phase.IDLE:
            self._close(linger=False)

    def _set_reading(self) -> None:
        is_wanted = self._is_closing or not (
            self._is_write_paused or self._is_held_back or self._http.is_blocked
        )
        transport = self._transport
        if is_wanted == self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = is_wanted
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def abort(self) -> None:
        """Cut the connection off."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self, *, linger: bool) -> None:
        """End the connection once its output is sent.

        Args:
            linger: the peer may still be sending. Closing a socket with unread input resets it, and
                the peer could lose the answer; so only our side ends, and input is thrown away
                until the peer has read the answer or `linger_s` is over.
        """
        transport = self._transport
        assert transport is not None, "closing a connection that is gone"
        self._is_closing = True
        self._since_ns = self._server._now_ns
        if linger and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _depart(self) -> None:
        for request in self._http.abandon():
            exchange, request.context = request.context, None
            if exchange is not None:
                exchange.disconnected()
