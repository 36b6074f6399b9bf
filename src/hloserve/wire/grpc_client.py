"""The client's end of a gRPC connection, without I/O.

What lives here: calls out, responses in. What does not: HTTP/2 (`hloserve.wire.http2`), sockets and
retries (`hloserve.client`). A connection belongs to one thread at a time. The blocking client, the
load generator and the tests drive it.

Rules, besides those of `hloserve.wire.http2`.
1. Every call that was started ends in exactly one `RpcEnded`, unless it was cancelled here.
2. When the socket or the connection has gone, call `lose`: it ends the calls that are left.

Source: gRPC over HTTP2; HTTP status and HTTP/2 error code mappings of the same document.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from hloserve.core.errors import BadRequest, BodyTooLarge, HloserveError, MalformedBody, Unavailable
from hloserve.wire.grpc_events import ClientEvent, GoAway, MessageReceived, RpcEnded
from hloserve.wire.grpc_framing import (
    VIEW_FROM_BYTES,
    Message,
    MessageReader,
    read_whole,
)
from hloserve.wire.grpc_headers import (
    OK_HEADERS,
    Header,
    Headers,
    decode_text,
    encode_metadata,
    format_timeout,
)
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.http2 import (
    DataReceived,
    ErrorCode,
    Event,
    GoAwayReceived,
    Http2Connection,
    Http2Error,
    ResponseReceived,
    Role,
    StreamClosed,
    TrailersReceived,
)

__all__ = ["GrpcClientConnection"]

_PLAIN: Final = tuple(OK_HEADERS)  # what our own server sends; others get a closer look
_STATUS_OK: Final = (b"grpc-status", b"0")
_UNKNOWN, _INTERNAL, _CANCELLED, _UNAVAILABLE = 2, 13, 1, 14
_EXHAUSTED, _DENIED, _UNIMPLEMENTED, _UNAUTHENTICATED = 8, 7, 12, 16

_SETTING: Final = "the client's max_message_bytes"

_BY_HTTP_STATUS: Mapping[bytes, int] = {
    b"400": _INTERNAL,
    b"401": _UNAUTHENTICATED,
    b"403": _DENIED,
    b"404": _UNIMPLEMENTED,
    b"429": _UNAVAILABLE,
    b"502": _UNAVAILABLE,
    b"503": _UNAVAILABLE,
    b"504": _UNAVAILABLE,
}
_BY_RESET: Mapping[int, int] = {
    ErrorCode.REFUSED_STREAM: _UNAVAILABLE,
    ErrorCode.CANCEL: _CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: _EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: _DENIED,
}


class _Call:
    """A call of ours that is not over."""

    __slots__ = ("has_large_request", "is_streaming", "is_untouched", "message", "reader")

    def __init__(self, *, is_streaming: bool, has_large_request: bool) -> None:
        self.is_streaming = is_streaming
        self.is_untouched = not is_streaming
        self.has_large_request = has_large_request
        self.message: Message | None = None
        self.reader: MessageReader | None = None


class GrpcClientConnection(Http2Connection):
    """The client's end of one connection.

    Args:
        authority: what goes into ``:authority``, usually ``host:port``.
        limits: caps of messages and windows.
        scheme: ``http`` or, over TLS, ``https``.
        user_agent: who is calling.
        metadata: further headers of every call.
    """

    def __init__(
        self,
        authority: str,
        limits: GrpcLimits | None = None,
        *,
        scheme: str = "http",
        user_agent: str = "hloserve",
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        super().__init__(Role.CLIENT, limits or GrpcLimits())
        self._base: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", scheme.encode("ascii")),
            (b":authority", authority.encode("idna" if not authority.isascii() else "ascii")),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", user_agent.encode("ascii", "replace")),
            *encode_metadata(metadata),
        ]
        self._headers: dict[str, list[Header]] = {}
        self._calls: dict[int, _Call] = {}

    @property
    def open_rpcs(self) -> int:
        """Calls that are not over."""
        return len(self._calls)

    @property
    def can_start(self) -> bool:
        """False when closed, after the server's GOAWAY, and when stream ids are used up."""
        return not self.is_closed and self._http2.can_send_request

    def start(
        self,
        path: str,
        message: Message | None,
        timeout_s: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        *,
        streaming: bool = False,
    ) -> int:
        """Begin a call; returns its stream id.

        Args:
            path: ``/package.Service/Method``.
            message: the request of a unary call. For a streaming one its first message or None.
            timeout_s: sent as `grpc-timeout`; nothing here watches it.
            metadata: further headers; bytes only under names that end in ``-bin``.
            streaming: report each response message, and keep the request open for `send`.

        Raises:
            Unavailable: the connection takes no new calls. Retryable, on a new one.
            BadRequest: the metadata is larger than servers take.
        """
        if self.is_closed:
            raise Unavailable(f"connection is closed: {self.end_reason or 'closed here'}")
        headers = self._headers.get(path)
        if headers is None:
            headers = [(b":path", path.encode("ascii")), *self._base]
            self._headers[path] = headers
        if timeout_s is not None:
            headers = [*headers, (b"grpc-timeout", format_timeout(timeout_s))]
        if metadata:
            headers = [*headers, *encode_metadata(metadata)]
            self._check_size(headers)
        try:
            stream_id = self._http2.send_request(headers)
            if message is not None:
                self._send_message(stream_id, message, end_stream=not streaming)
            elif not streaming:
                self._http2.send_data(stream_id, b"", end_stream=True)
        except Http2Error as error:
            raise Unavailable(f"connection takes no new calls: {error}") from error
        large = streaming or (message is not None and len(message) >= VIEW_FROM_BYTES)
        self._calls[stream_id] = _Call(is_streaming=streaming, has_large_request=large)
        return stream_id

    def send(self, stream_id: int, message: Message, *, end_stream: bool = False) -> None:
        """Send one more message of a streaming call."""
        if stream_id in self._calls and not self.is_closed:
            with suppress(Http2Error):  # the stream has gone; its end is on the way
                self._send_message(stream_id, message, end_stream=end_stream)

    def half_close(self, stream_id: int) -> None:
        """Say that a streaming call has no more messages from here."""
        if stream_id in self._calls and not self.is_closed:
            with suppress(Http2Error):  # as in `send`
                self._http2.end_stream(stream_id)

    def cancel(self, stream_id: int) -> None:
        """Give a call up: nothing more is reported about it."""
        if self._calls.pop(stream_id, None) is not None and not self.is_closed:
            with suppress(Http2Error):  # as in `send`
                self._http2.reset_stream(stream_id, ErrorCode.CANCEL)

    def receive(self, data: bytes | bytearray | memoryview) -> list[ClientEvent]:
        """Take bytes from the server; `data` may be reused afterwards."""
        if self.is_closed:
            return []
        found: list[ClientEvent] = []
        calls = self._calls
        limit = self.limits.max_recv_msg_bytes
        for event in self._receive(data):
            if type(event) is DataReceived:
                call = calls.get(event.stream_id)
                if call is None:
                    continue
                if call.is_untouched and not event.end_stream:
                    message = read_whole(event.data, limit)
                    if message is not None:
                        call.message = message
                        call.is_untouched = False
                        continue
                self._take_data(event, call, found)
            elif type(event) is ResponseReceived:
                if event.end_stream or event.headers != _PLAIN:
                    self._take_headers(event, found)
            elif type(event) is TrailersReceived:
                self._end(event.stream_id, event.headers, found)
            else:
                self._take_other(event, found)
        return found

    def lose(self, reason: str) -> list[ClientEvent]:
        """The socket or the connection has gone: end every call that is left as UNAVAILABLE."""
        self.is_closed = True
        self.end_reason = self.end_reason or reason
        calls, self._calls = self._calls, {}
        text = f"connection lost: {self.end_reason}"
        return [RpcEnded(stream_id, _UNAVAILABLE, text) for stream_id in calls]

    def _check_size(self, headers: list[Header]) -> None:
        # Source: RFC 9113, 10.5.1: a field counts 32 bytes more than its name and value.
        nbytes = sum(len(name) + len(value) + 32 for name, value in headers)
        if nbytes > self.limits.max_header_bytes:
            raise BadRequest(
                f"headers with the metadata take {nbytes} bytes,"
                f" the limit is {self.limits.max_header_bytes}"
            )

    def _take_data(self, event: DataReceived, call: _Call, found: list[ClientEvent]) -> None:
        """What is not the one whole message of a unary call: parts, streams, faults."""
        call.is_untouched = False
        reader = call.reader
        if reader is None:
            reader = call.reader = MessageReader(self.limits.max_recv_msg_bytes, setting=_SETTING)
        try:
            for message in reader.feed(event.data):
                if call.is_streaming:
                    found.append(MessageReceived(event.stream_id, message))
                elif call.message is not None:
                    raise MalformedBody("the response to a unary call has more than one message")
                else:
                    call.message = message
        except HloserveError as error:
            code = _EXHAUSTED if isinstance(error, BodyTooLarge) else _INTERNAL
            self._abandon(event.stream_id, code, str(error), found, error)
        else:
            if event.end_stream:
                self._end(event.stream_id, (), found)

    def _take_headers(self, event: ResponseReceived, found: list[ClientEvent]) -> None:
        """Headers that are not the plain beginning of a response: errors, encodings, trailers."""
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        fields = dict(event.headers)
        status = fields.get(b":status", b"")
        content_type = fields.get(b"content-type", b"")
        if b"grpc-status" in fields:
            self._end(event.stream_id, event.headers, found)
        elif status != b"200" or not content_type.startswith(b"application/grpc"):
            shown = f"HTTP status {_show(status)}, content-type {_show(content_type)!r}"
            code = _BY_HTTP_STATUS.get(status, _UNKNOWN)
            self._abandon(event.stream_id, code, f"the answer is not gRPC: {shown}", found)
        elif event.end_stream:
            self._end(event.stream_id, (), found)
        elif fields.get(b"grpc-encoding") in (b"gzip", b"deflate"):
            limit = self.limits.max_recv_msg_bytes
            call.reader = MessageReader(limit, has_coding=True, setting=_SETTING)
            call.is_untouched = False

    def _take_other(self, event: Event, found: list[ClientEvent]) -> None:
        if type(event) is StreamClosed:
            if event.stream_id in self._calls:
                refused = event.error_code == ErrorCode.REFUSED_STREAM
                del self._calls[event.stream_id]
                code = _BY_RESET.get(event.error_code, _INTERNAL)
                text = f"stream was reset by the server (HTTP/2 error {event.error_code})"
                if event.local_error is not None:
                    text = f"request could not be sent: {event.local_error}"
                found.append(RpcEnded(event.stream_id, code, text, was_refused=refused))
        elif type(event) is GoAwayReceived:
            text = _show(event.debug_data)
            found.append(GoAway(event.last_stream_id, event.error_code, text))

    def _end(self, stream_id: int, headers: Headers, found: list[ClientEvent]) -> None:
        call = self._calls.pop(stream_id, None)
        if call is None:
            return
        code, text, message = 0, "", call.message
        if not headers or headers[0] != _STATUS_OK:
            fields = dict(headers)
            code = _status_number(fields.get(b"grpc-status"))
            text = decode_text(fields.get(b"grpc-message", b""))
            if b"grpc-status" not in fields:
                text = "the response ended without a status"
        if code == 0 and not call.is_streaming and message is None:
            code, text = _INTERNAL, "the response has no message, or not all of one"
        elif code:
            message = None
        found.append(RpcEnded(stream_id, code, text, message, headers))
        if call.has_large_request:
            self._stop_upload(stream_id)

    def _abandon(
        self,
        stream_id: int,
        code: int,
        text: str,
        found: list[ClientEvent],
        error: HloserveError | None = None,
    ) -> None:
        self.cancel(stream_id)
        found.append(RpcEnded(stream_id, code, text, error=error))

    def _stop_upload(self, stream_id: int) -> None:
        """The answer came before the request was out: the rest of it is of no use."""
        try:
            if self._http2.queued_body_size(stream_id):
                self._http2.reset_stream(stream_id, ErrorCode.NO_ERROR)
        except Http2Error:
            return  # closed in the meantime


def _status_number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) < 4 else _UNKNOWN


def _show(value: bytes) -> str:
    return value[:200].decode("utf-8", "replace")
