"""One blocking connection to a server.

What lives here: the socket under `hloserve.wire.grpc_client`. What does not: which connection a
call uses, and retries (`hloserve.client.blocking`). A connection belongs to one thread at a time,
the one that borrowed it; it carries one call at a time.

Rules.
1. Reading and writing never wait for each other: a server that answers before it has read the
   whole request, or that reads no more until it is read from, cannot hold a call up.
2. A call that was given up is reset; a connection with half-sent output takes no other call.
"""

import select
import socket
import time
from typing import TYPE_CHECKING, Self

from hloserve.client.address import Address
from hloserve.core.errors import BadRequest, Unavailable
from hloserve.core.requests import NEVER_NS
from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import ClientEvent, RpcEnded
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_limits import GrpcLimits

if TYPE_CHECKING:
    import ssl

    from hloserve.client.tls import TlsSocket

__all__ = ["Connection", "deadline_of", "remaining_s"]

_READ_BYTES = 256 * 1024
_WRITE_BYTES = 1024 * 1024
_MAX_POLL_MS = 2**31 - 1
_NS_PER_MS = 1_000_000
_NO_TLS = "does it speak TLS?"


def deadline_of(timeout_s: float | None) -> int:
    """The instant so many seconds from now; `NEVER_NS` for None."""
    return NEVER_NS if timeout_s is None else time.monotonic_ns() + round(timeout_s * 1e9)


def remaining_s(deadline_ns: int) -> float | None:
    """Seconds until a deadline, not below 0; None when there is none."""
    if deadline_ns == NEVER_NS:
        return None
    return max(0, deadline_ns - time.monotonic_ns()) / 1e9


class Connection:
    """A socket and the HTTP/2 state on it.

    Args:
        connected: a connected stream socket; the connection owns it from now on.
        address: whom it leads to, for messages and the ``:authority`` header.
        limits: caps of messages and windows.
        token: goes with every call; None for none.
    """

    def __init__(
        self,
        connected: "socket.socket | TlsSocket",
        address: Address,
        limits: GrpcLimits,
        token: str | None = None,
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._address = address
        has_tls = not isinstance(connected, socket.socket)
        # Servers often say neither that they want a certificate nor that they want TLS.
        self._guess = "does it want a client's certificate, or another?" if has_tls else _NO_TLS
        self._http2 = GrpcClientConnection(
            str(address),
            limits,
            scheme="https" if has_tls else "http",
            metadata=() if token is None else (("authorization", f"Bearer {token}"),),
        )
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._waits_to_write = False
        self._unsent = memoryview(b"")
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._has_read = False

    @classmethod
    def open(
        cls,
        address: Address,
        timeout_s: float | None,
        limits: GrpcLimits,
        *,
        token: str | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> Self:
        """Connect.

        Args:
            address: where to.
            timeout_s: for TCP, and again for TLS.
            limits: caps of messages and windows.
            token: goes with every call.
            tls: a client's context; None for plain TCP.

        Raises:
            Unavailable: nobody answers there, or not in time. Retryable.
            NotPossibleNow: there is TLS, and no trust.
            BadRequest: TLS was asked for, and the peer does not speak it.
        """
        try:
            connected = socket.create_connection(address, timeout_s)
        except TimeoutError as error:
            raise Unavailable(
                f"no connection to {address} within {timeout_s:.3g} s; is the host reachable?"
            ) from error
        except OSError as error:
            raise Unavailable(
                f"cannot connect to {address}: {error.strerror or error}; is the server running,"
                " and is this its gRPC port (8001 by default)?"
            ) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return cls(connected, address, limits, token)
        from hloserve.client.tls import start_tls  # importing ssl takes time that others do not owe

        return cls(start_tls(connected, tls, address, timeout_s), address, limits, token)

    @property
    def is_closed(self) -> bool:
        """True once it was lost or closed."""
        return self._http2.is_closed

    def is_usable(self) -> bool:
        """Look at what has come while the connection was idle, and say if it takes a call."""
        while self._poll.poll(0):
            self._read()
            if self._http2.is_closed:
                return False
        return self._http2.can_start and not self._unsent

    def call(self, path: str, message: Message, deadline_ns: int) -> RpcEnded | None:
        """Make one call and wait for its end; None when the deadline passed before.

        Raises:
            BadRequest: the peer speaks HTTP/1.
            Unavailable: the connection takes no new calls. Retryable.
        """
        http2 = self._http2
        http2.replenish()
        try:
            stream_id = http2.start(path, message, remaining_s(deadline_ns))
            while True:
                self._write()
                if not self._wait(deadline_ns):
                    http2.cancel(stream_id)
                    self._write()
                    return None
                for event in self._read():
                    if type(event) is RpcEnded and event.stream_id == stream_id:
                        self._write()
                        return event
        except BaseException:  # also KeyboardInterrupt: the call's state is not known any more
            self.close()
            raise

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that wait here for the peer to read."""
        return self._http2.queued_bytes + len(self._unsent)

    def begin(self, path: str, deadline_ns: int) -> int:
        """Begin a streaming call; returns its stream. Go on with `send` and `exchange`.

        Raises:
            Unavailable: the connection takes no new calls. Retryable.
        """
        self._http2.replenish()
        return self._http2.start(path, None, remaining_s(deadline_ns), streaming=True)

    def send(self, stream_id: int, message: Message) -> None:
        """Send a message of a streaming call, as far as that needs no waiting."""
        self._http2.send(stream_id, message)
        self._write()

    def half_close(self, stream_id: int) -> None:
        """Say that a streaming call has no more messages."""
        self._http2.half_close(stream_id)

    def cancel(self, stream_id: int) -> None:
        """Give a streaming call up."""
        self._http2.cancel(stream_id)
        self._write()

    def exchange(self, deadline_ns: int) -> list[ClientEvent] | None:
        """Send what can be sent, and wait until something comes or more can be sent.

        Returns:
            What has come, perhaps nothing; None when the deadline passed before.

        Raises:
            BadRequest: the peer speaks HTTP/1.
        """
        try:
            self._http2.replenish()
            self._write()
            if not self._wait(deadline_ns):
                return None
            events = self._read()
            self._write()
        except BaseException:  # as in `call`
            self.close()
            raise
        return events

    def close(self) -> None:
        """Close the socket; what is unsent is dropped. Idempotent."""
        self._http2.close()
        self._socket.close()

    def _write(self) -> None:
        """Send what can be sent without waiting."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._http2.take_output(_WRITE_BYTES))
                if not self._unsent:
                    return
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # the peer has gone; reading tells why, and may bring its last words
                self._unsent = memoryview(b"")
                return
            self._unsent = self._unsent[sent:]

    def _wait(self, deadline_ns: int) -> bool:
        """Wait until the socket can go on; False at the deadline."""
        waits_to_write = bool(self._unsent)
        if waits_to_write is not self._waits_to_write:
            events = select.POLLIN | select.POLLOUT if waits_to_write else select.POLLIN
            self._poll.modify(self._socket, events)
            self._waits_to_write = waits_to_write
        timeout_ms = None
        if deadline_ns != NEVER_NS:
            left = deadline_ns - time.monotonic_ns()
            timeout_ms = min(max(0, -(-left // _NS_PER_MS)), _MAX_POLL_MS)
        return bool(self._poll.poll(timeout_ms))

    def _read(self) -> list[ClientEvent]:
        """Take what has come; when the connection is lost, the ends of the calls on it."""
        http2 = self._http2
        try:
            nbytes = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return []
        except OSError as error:
            return http2.lose(error.strerror or str(error))
        if nbytes == 0:
            hint = "" if self._has_read else f", before it said a word; {self._guess}"
            return http2.lose(f"the server closed it{hint}")
        if not self._has_read:
            self._has_read = True
            if bytes(self._buffer[:5]) == b"HTTP/":
                self.close()
                raise BadRequest(
                    f"{self._address} answers with HTTP/1; give the gRPC port (8001 by default),"
                    " not the REST port"
                )
        events = http2.receive(self._buffer[:nbytes])
        if http2.is_closed:
            events += http2.lose("")
        return events
