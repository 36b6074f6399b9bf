"""How long an HTTP connection may keep the server waiting, and what becomes of it then.

What lives here: the timeouts, and the look at the clock that a connection is asked for once a
second. What does not: reading and writing (`hloserve.server.rest_transport`). Loop thread.
"""

import asyncio
from dataclasses import dataclass

from hloserve.server.rest_half_closed import PROBE, has_ended
from hloserve.wire.http1_server import HttpServerConnection, Phase

__all__ = ["HttpTimeouts", "Timed"]


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long a connection may keep the server waiting.

    Attributes:
        header_timeout_s: from the first byte of a request to the end of its headers; also for the
            handshake of TLS.
        body_timeout_s: between two pieces of a request body, or of a response that the peer
            takes slowly.
        idle_timeout_s: between two requests.
        linger_s: for the peer to stop sending after it was refused, or got its last answer.
        leave_s: when the server leaves: for requests that are on their way on idle connections.
    """

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0
    leave_s: float = 0.2

    def patience_s(self, phase: int) -> float:
        """How long a connection may stay in a phase without anything new."""
        if phase == Phase.HEAD:
            return self.header_timeout_s
        return self.body_timeout_s if phase == Phase.BODY else self.idle_timeout_s


class Timed:
    """The half of a connection that minds the time."""

    __slots__ = (
        "_http",
        "_is_closing",
        "_is_reading",
        "_is_write_paused",
        "_phase",
        "_since_ns",
        "_timeouts",
        "_transport",
        "_unread_bytes",
    )

    _http: HttpServerConnection
    _is_closing: bool
    _is_reading: bool
    _is_write_paused: bool
    _phase: int
    _since_ns: int
    _timeouts: HttpTimeouts
    _transport: asyncio.Transport | None
    _unread_bytes: int

    def advance(self) -> None:
        """Write what is ready."""
        raise NotImplementedError

    def check_timeouts(self, now_ns: int) -> None:
        """Act when the peer has kept the server waiting for too long."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_write_paused and not self._is_closing:
            self._check_reader(transport, now_ns)
        elif (self._phase == Phase.IDLE and self._http.has_pending) or not self._is_reading:
            self._since_ns = now_ns  # it is the peer who waits for us
            if not self._is_reading and has_ended(transport):
                self._check_peer(transport)
        elif (now_ns - self._since_ns) / 1e9 > self._patience_s():
            self._give_up(transport)

    def _patience_s(self) -> float:
        timeouts = self._timeouts
        return timeouts.linger_s if self._is_closing else timeouts.patience_s(self._phase)

    def _give_up(self, transport: asyncio.Transport) -> None:
        if self._is_closing:
            transport.abort()
        elif self._phase == Phase.IDLE:
            transport.close()
        else:
            what = "headers" if self._phase == Phase.HEAD else "body"
            text = f"the request's {what} did not arrive within {self._patience_s():g} s"
            self._http.refuse(408, text)
            self.advance()

    def _check_peer(self, transport: asyncio.Transport) -> None:
        """See whether a peer that sends nothing more is still there, though nothing is read."""
        if not transport.can_write_eof():  # over TLS it has left
            transport.abort()
        elif self._http.knows_interim and self._phase == Phase.IDLE and not self._is_write_paused:
            transport.write(PROBE)

    def _check_reader(self, transport: asyncio.Transport, now_ns: int) -> None:
        """Cut a peer off that takes nothing of its response."""
        unread = transport.get_write_buffer_size()
        if unread != self._unread_bytes:
            self._unread_bytes = unread
            self._since_ns = now_ns
        elif (now_ns - self._since_ns) / 1e9 > self._timeouts.body_timeout_s:
            transport.abort()
