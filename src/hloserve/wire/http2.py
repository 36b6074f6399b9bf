"""HTTP/2 without I/O: bytes in, events and bytes out. The only module that imports ngh2.

What lives here: `Http2Connection`, the half that both ends of a gRPC connection share, and the
names of ngh2 that they need. What does not: gRPC (`hloserve.wire.grpc_server` has
`GrpcServerConnection`, `hloserve.wire.grpc_client` has `GrpcClientConnection`) and sockets
(`hloserve.server.grpc_transport`, the client). A connection belongs to one thread at a time.

Rules.
1. Nothing that a peer sends makes a method raise. A violation closes the connection: `is_closed`,
   with `end_reason`, and the last output has a GOAWAY.
2. Calls about a stream or connection that is gone do nothing: the caller may not know yet.
3. After `receive` and after any call that sends, write what `take_output` returns, then look at
   `is_closed`.
4. HEADERS must leave before an RST_STREAM of their stream is queued: ngh2 drops what it has not
   sent of a stream that is reset. `_reset_later` sees to it.
"""

from collections.abc import Mapping

import ngh2
from ngh2 import (
    Configuration,
    ConnectionClosed,
    DataReceived,
    ErrorCode,
    Event,
    GoAwayReceived,
    PingAcknowledged,
    RequestReceived,
    ResponseReceived,
    Role,
    Setting,
    StreamClosed,
    TrailersReceived,
    WindowUpdated,
)

from hloserve.wire.grpc_framing import (
    VIEW_FROM_BYTES,
    Message,
    frame_message,
    prefix_of,
)
from hloserve.wire.grpc_limits import GrpcLimits

__all__ = [
    "DRAIN_PING",
    "DataReceived",
    "ErrorCode",
    "Event",
    "GoAwayReceived",
    "Http2Connection",
    "Http2Error",
    "PingAcknowledged",
    "RequestReceived",
    "ResponseReceived",
    "Role",
    "StreamClosed",
    "TrailersReceived",
    "WindowUpdated",
]

Http2Error = ngh2.NGH2Error
"""What ngh2 raises. It goes no further than the two gRPC modules."""

DRAIN_PING = b"draining"
"""Opaque data of the PING whose answer ends a server's shutdown notice."""

# A backstop only: frames without work are counted by `frame_allowance`, which closes the connection
# with the right error code; ngh2 would close it as an internal error.
_BACKSTOP_RATE = (1 << 20, 1 << 16)
# PINGs and SETTINGS in one read whose answers wait; ngh2 closes the connection beyond.
_MAX_OUTBOUND_ACKS = 1_000

_GOAWAY = 7


class Http2Connection:
    """One end of an HTTP/2 connection.

    Args:
        role: which end.
        limits: what the peer may make this end hold.
    """

    def __init__(self, role: Role, limits: GrpcLimits) -> None:
        self.limits = limits
        self.is_closed = False
        self.is_draining = False
        self.is_drained = False
        self.end_reason = ""
        self._final_output = b""
        self._is_silent = False
        self._late_events: list[Event] = []
        self._resets: list[tuple[int, int]] = []
        self._last_peer_stream = 0
        self._allowance = limits.frame_allowance
        self._http2 = ngh2.Connection(role, _configuration(limits))
        self._http2.initiate_connection(_settings(role, limits))
        self._http2.set_local_window_size(limits.connection_window_bytes)

    @property
    def queued_bytes(self) -> int:
        """Body bytes that wait here because the peer gives no credit or nobody took the output."""
        return self._http2.queued_body_size()

    @property
    def last_stream_id(self) -> int:
        """The highest stream that the peer has opened."""
        return self._last_peer_stream

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        if not self.is_closed:
            self._http2.ping()

    def replenish(self) -> None:
        """Start a new period of `GrpcLimits.frame_allowance`. Call it about once a second."""
        self._allowance = self.limits.frame_allowance

    def take_output(self, amount: int | None = None) -> bytes:
        """Bytes for the peer, at most `amount`; empty when there are none now.

        What flow control holds back stays and is returned after the peer has given credit.
        """
        if self.is_closed:
            output, self._final_output = self._final_output, b""
            return output
        if self._is_silent:
            return b""
        try:
            output = self._http2.data_to_send(amount)
            if self._resets and (amount is None or len(output) < amount):
                output += self._send_resets()
        except Http2Error as error:
            self._fail(ErrorCode.INTERNAL_ERROR, f"cannot go on: {error}")
            output, self._final_output = self._final_output, b""
            return output
        for event in self._http2.events():
            if type(event) is ConnectionClosed:
                self.is_closed = True
                reason = event.debug_data.decode("ascii", "replace") or "closed"
                self.end_reason = self.end_reason or f"{reason} (HTTP/2 error {event.error_code})"
            elif type(event) is StreamClosed and event.error_code:
                self._late_events.append(event)  # of a stream that could not be sent
        return output

    def drain(self) -> None:
        """For a server: ask the peer to open no more streams; those that are under way,
        or in flight to here, are served.

        GOAWAY with the highest stream id now, the real one when a PING has been round.
        """
        if self.is_draining or self.is_closed:
            return
        self.is_draining = True
        try:
            self._http2.send_shutdown_notice()
            self._http2.ping(DRAIN_PING)
        except Http2Error as error:
            self._fail(ErrorCode.INTERNAL_ERROR, f"cannot drain: {error}")

    def finish_drain(self) -> None:
        """Send the GOAWAY that counts, without waiting for the PING any longer."""
        if self.is_drained or self.is_closed:
            return
        try:
            self._http2.send_goaway()
        except Http2Error as error:
            self._fail(ErrorCode.INTERNAL_ERROR, f"cannot drain: {error}")
        self.is_drained = True

    def close(self, error_code: int = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """End the connection with a GOAWAY; streams in progress are dropped."""
        if self.is_closed:
            return
        try:
            self._http2.terminate_connection(error_code)
            self._final_output = self._http2.data_to_send()
        except Http2Error:
            self._final_output = _goaway(self._last_peer_stream, error_code, reason)
        self.is_closed = True
        self.end_reason = self.end_reason or reason

    def _receive(self, data: bytes | bytearray | memoryview) -> list[Event]:
        try:
            self._http2.receive_data(data)
        except ngh2.DenialOfServiceError as error:
            self._fail(ErrorCode.ENHANCE_YOUR_CALM, str(error))
        except Http2Error as error:
            self._fail(ErrorCode.PROTOCOL_ERROR, str(error))
        events = self._http2.events()
        if self._late_events:
            events = self._late_events + events
            self._late_events = []
        return events

    def _fail(self, error_code: int, reason: str) -> None:
        """Close after ngh2 has given up: its session is of no use, so the GOAWAY is made here."""
        if not self.is_closed:
            self.is_closed = True
            self.end_reason = reason
            self._final_output = _goaway(self._last_peer_stream, error_code, reason)

    def _spend(self, frames: int) -> None:
        """Charge frames without work, or credit work (negative).

        Closes the connection when the allowance is used up.
        """
        self._allowance = min(self._allowance - frames, self.limits.frame_allowance)
        if self._allowance < 0 and not self.is_closed:
            self.close(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without work")

    def _send_message(self, stream_id: int, message: Message, *, end_stream: bool = False) -> None:
        if len(message) < VIEW_FROM_BYTES:
            self._http2.send_data(stream_id, frame_message(message), end_stream=end_stream)
        else:
            self._http2.send_data(stream_id, prefix_of(len(message)))
            self._http2.send_data(stream_id, message, end_stream=end_stream)

    def _reset_later(self, stream_id: int, error_code: int) -> None:
        self._resets.append((stream_id, error_code))

    def _send_resets(self) -> bytes:
        for stream_id, error_code in self._resets:
            self._http2.reset_stream(stream_id, error_code)
        self._resets.clear()
        return self._http2.data_to_send()


def _configuration(limits: GrpcLimits) -> Configuration:
    return Configuration(
        peer_max_concurrent_streams=100,
        max_outbound_ack=_MAX_OUTBOUND_ACKS,
        stream_reset_rate_limit=_BACKSTOP_RATE,
        glitch_rate_limit=_BACKSTOP_RATE,
        max_inbound_header_list_size=limits.max_header_bytes,
        max_inbound_header_count=limits.max_header_fields,
    )


def _settings(role: Role, limits: GrpcLimits) -> Mapping[Setting, int]:
    settings = {
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }
    if role is Role.SERVER:
        settings[Setting.MAX_CONCURRENT_STREAMS] = limits.max_concurrent_streams
    else:
        settings[Setting.ENABLE_PUSH] = 0
    return settings


def _goaway(last_stream_id: int, error_code: int, reason: str) -> bytes:
    text = reason.encode("ascii", "replace")[:256]
    length = 8 + len(text)
    header = length.to_bytes(3, "big") + bytes([_GOAWAY, 0]) + bytes(4)
    return header + last_stream_id.to_bytes(4, "big") + error_code.to_bytes(4, "big") + text
