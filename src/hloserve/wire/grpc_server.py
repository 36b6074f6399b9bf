"""The server's end of a gRPC connection, without I/O.

What lives here: calls in, replies out, and the refusals that need no handler. What does not: HTTP/2
(`hloserve.wire.http2`), sockets and handlers (`hloserve.server.grpc_transport`). A connection
belongs to one thread at a time.

Rules, besides those of `hloserve.wire.http2`.
1. A unary call is reported once, whole. What is wrong with it before that is answered here.
2. A call that was reported is answered or reported as cancelled, never both.

Source: gRPC over HTTP2.
"""

from collections.abc import Container, Mapping
from typing import Final, Generic, TypeVar

from typing_extensions import override

from hloserve.core.errors import (
    BodyTooLarge,
    HloserveError,
    MalformedBody,
    NotImplementedYet,
    Overloaded,
)
from hloserve.wire.grpc_events import (
    MessageReceived,
    RpcCancelled,
    RpcHalfClosed,
    RpcReceived,
    ServerEvent,
)
from hloserve.wire.grpc_framing import MAX_SEND_SETTING, Message, MessageReader, read_whole
from hloserve.wire.grpc_headers import (
    NO_TIMEOUT,
    OK_HEADERS,
    OK_TRAILERS,
    Header,
    error_headers,
    error_trailers,
    parse_timeout_ns,
)
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_preface import Preface
from hloserve.wire.http2 import (
    DataReceived,
    ErrorCode,
    Event,
    Http2Connection,
    Http2Error,
    PingAcknowledged,
    RequestReceived,
    Role,
    StreamClosed,
    TrailersReceived,
)
from hloserve.wire.status import grpc_code

__all__ = ["GrpcServerConnection"]

M = TypeVar("M")

_DRAIN_PING: Final = b"draining"
_NOTHING: Final[frozenset[bytes]] = frozenset()

# Tokens of `GrpcLimits.frame_allowance`. A request pays for the WINDOW_UPDATEs, PINGs and small
# frames that come with it; a cancelled one costs more than it brought, so a rapid reset runs dry.
_REQUEST_BRINGS = 4
_CANCEL_COSTS = 10
_SMALL_DATA_BYTES = 64

_GRPC_TYPE: Final = b"application/grpc"
_GRPC_SUBTYPES: Final = (b"application/grpc+", b"application/grpc;")
_NOT_GRPC: Final[list[Header]] = [(b":status", b"415"), (b"content-length", b"0")]
_NOT_POST: Final[list[Header]] = [
    (b":status", b"405"),
    (b"allow", b"POST"),
    (b"content-length", b"0"),
]


class GrpcServerConnection(Http2Connection, Generic[M]):
    """The server's end of one connection.

    Args:
        methods: path to whatever the caller wants back in `RpcReceived.method`.
        limits: what the peer may make this end hold.
        streaming: the paths whose messages are reported one by one.
    """

    def __init__(
        self,
        methods: Mapping[bytes, M],
        limits: GrpcLimits,
        *,
        streaming: Container[bytes] = _NOTHING,
    ) -> None:
        super().__init__(Role.SERVER, limits)
        self.is_open = False
        self.is_draining = False
        self.is_drained = False
        self._methods = methods
        self._streaming = streaming
        self._preface = Preface()
        self._rpcs: dict[int, RpcReceived[M]] = {}
        self._partial_bytes = 0
        self._unsent_at_most = 0

    @override
    def take_output(self, amount: int | None = None) -> bytes:
        if not self.is_open and not self.is_closed:
            return b""  # an HTTP/1 client must not see frames before its answer
        return super().take_output(amount)

    @property
    def open_rpcs(self) -> int:
        """Calls that have begun and are not answered."""
        return len(self._rpcs)

    @property
    def has_partial(self) -> bool:
        """True while a request has begun and not ended."""
        return any(not rpc.is_delivered for rpc in self._rpcs.values())

    def receive(self, data: bytes | bytearray | memoryview) -> list[ServerEvent[M]]:
        """Take bytes from the peer; `data` may be reused afterwards."""
        if not self.is_open or self.is_closed:
            data = self._check_preface(data)
            if not data:
                return []
        found: list[ServerEvent[M]] = []
        limit = self.limits.max_recv_msg_bytes
        rpcs = self._rpcs
        idle_frames = 0
        for event in self._receive(data):
            if type(event) is DataReceived:
                rpc = rpcs.get(event.stream_id)
                if rpc is not None and event.end_stream and rpc.is_untouched:
                    message = read_whole(event.data, limit)
                    if message is not None:
                        rpc.message = message
                        rpc.is_delivered = rpc.has_ended = True
                        found.append(rpc)
                        continue
                idle_frames += len(event.data) < _SMALL_DATA_BYTES
                if rpc is not None:
                    self._take_data(rpc, event.data, event.end_stream, found)
            elif type(event) is RequestReceived:
                idle_frames -= _REQUEST_BRINGS
                self._begin(event, found)
            else:
                idle_frames += self._take_other(event, found)
        self._spend(idle_frames)
        return found

    def respond(self, stream_id: int, message: Message) -> None:
        """Answer a call: headers, one message, status OK."""
        rpc = self._rpcs.pop(stream_id, None)
        if rpc is None or self.is_closed:
            return
        if len(message) > self.limits.max_send_msg_bytes:
            self._rpcs[stream_id] = rpc
            self._refuse_reply(rpc, len(message))
            return
        self._unsent_at_most += len(message)
        http2 = self._http2
        try:
            http2.send_response(stream_id, OK_HEADERS)
            self._send_message(stream_id, message)
            http2.send_trailers(stream_id, OK_TRAILERS)
        except Http2Error:
            return  # the stream has gone; its StreamClosed is on the way

    def fail(self, stream_id: int, code: int, text: str) -> None:
        """Answer a call with a status other than OK; `text` is cut to what peers accept."""
        rpc = self._rpcs.get(stream_id)
        if rpc is not None and not self.is_closed:
            self._answer_status(rpc, code, text)

    def send(self, stream_id: int, message: Message) -> None:
        """Send one message of a streaming call."""
        rpc = self._rpcs.get(stream_id)
        if rpc is None or self.is_closed:
            return
        if len(message) > self.limits.max_send_msg_bytes:
            self._refuse_reply(rpc, len(message))
            return
        self._unsent_at_most += len(message)
        try:
            if not rpc.has_headers_out:
                self._http2.send_response(stream_id, OK_HEADERS)
                rpc.has_headers_out = True
            self._send_message(stream_id, message)
        except Http2Error:
            return  # as in `respond`

    def finish(self, stream_id: int) -> None:
        """End a streaming call with status OK."""
        rpc = self._rpcs.get(stream_id)
        if rpc is None or self.is_closed:
            return
        self._forget(rpc)
        try:
            if not rpc.has_headers_out:
                self._http2.send_response(stream_id, [*OK_HEADERS, *OK_TRAILERS], end_stream=True)
            else:
                self._http2.send_trailers(stream_id, OK_TRAILERS)
            if not rpc.has_ended:
                self._reset_later(stream_id, ErrorCode.NO_ERROR)
        except Http2Error:
            return  # as in `respond`

    def drain(self) -> None:
        """Ask the peer to open no more streams; those under way, and in flight to here, are served.

        GOAWAY with the highest stream id now, the real one when a PING has been round.
        """
        if self.is_draining or self.is_closed:
            return
        self.is_draining = True
        try:
            self._http2.send_shutdown_notice()
            self._http2.ping(_DRAIN_PING)
        except Http2Error as error:
            self._fail(ErrorCode.INTERNAL_ERROR, f"cannot drain: {error}")

    def lose(self) -> list[RpcCancelled[M]]:
        """The socket is gone or the connection closed: report every delivered call as cancelled."""
        self.is_closed = True
        rpcs, self._rpcs = self._rpcs, {}
        self._partial_bytes = 0
        return [RpcCancelled(rpc) for rpc in rpcs.values() if rpc.is_delivered]

    def _check_preface(self, data: bytes | bytearray | memoryview) -> bytes:
        """Look whether the peer speaks HTTP/2; returns what is to be read now."""
        if self.is_closed:
            return b""
        preface = self._preface
        preface.feed(data)
        self.is_open = preface.is_http2
        if preface.fault:
            self.is_closed = True
            self.end_reason = preface.fault
            self._final_output = preface.answer
        return preface.data if self.is_open else b""

    def _begin(self, event: RequestReceived, found: list[ServerEvent[M]]) -> None:
        stream_id = self._last_peer_stream = event.stream_id
        fields = dict(event.headers)
        if fields.get(b":method") != b"POST":
            self._answer_block(stream_id, _NOT_POST, has_ended=event.end_stream)
            return
        content_type = fields.get(b"content-type", b"")
        if content_type != _GRPC_TYPE and not content_type.startswith(_GRPC_SUBTYPES):
            self._answer_block(stream_id, _NOT_GRPC, has_ended=event.end_stream)
            return
        try:
            path = fields.get(b":path", b"")
            method = self._methods.get(path)
            if method is None:
                raise NotImplementedYet(f"method {path[:200].decode('ascii', 'replace')}")
            timeout = fields.get(b"grpc-timeout")
            timeout_ns = NO_TIMEOUT if timeout is None else parse_timeout_ns(timeout)
            encoding = fields.get(b"grpc-encoding")
            has_gzip = encoding is not None and _is_gzip(encoding)
            self._check_backlog()
        except HloserveError as error:
            refusal = error_headers(grpc_code(error.code), str(error))
            self._answer_block(stream_id, refusal, has_ended=event.end_stream)
            return
        rpc = RpcReceived(stream_id, method, event.headers, timeout_ns)
        self._rpcs[stream_id] = rpc
        if has_gzip:
            rpc.reader = MessageReader(self.limits.max_recv_msg_bytes, has_gzip=True)
            rpc.is_untouched = False
        if path in self._streaming:
            rpc.is_streaming = rpc.is_delivered = True
            rpc.is_untouched = False
            found.append(rpc)
        if event.end_stream:
            self._end_request(rpc, found)

    def _take_data(
        self, rpc: RpcReceived[M], data: bytes, end: bool, found: list[ServerEvent[M]]
    ) -> None:
        """What is not the one whole message of a unary call: parts, streams, faults."""
        rpc.is_untouched = False
        reader = rpc.reader
        if reader is None:
            reader = rpc.reader = MessageReader(self.limits.max_recv_msg_bytes)
        try:
            for message in reader.feed(data):
                if rpc.is_streaming:
                    found.append(MessageReceived(rpc.stream_id, message))
                elif rpc.has_message:
                    raise MalformedBody("a unary call has more than one message")
                else:
                    rpc.message, rpc.has_message = message, True
            self._count_partial(rpc, reader.buffered_bytes + len(rpc.message))
        except HloserveError as error:
            self._refuse(rpc, error, found)
            return
        if end:
            self._end_request(rpc, found)

    def _end_request(self, rpc: RpcReceived[M], found: list[ServerEvent[M]]) -> None:
        rpc.has_ended = True
        if rpc.reader is not None and not rpc.reader.is_between_messages:
            self._refuse(rpc, MalformedBody("the request ends in the middle of a message"), found)
        elif rpc.is_streaming:
            found.append(RpcHalfClosed(rpc.stream_id))
        elif not rpc.has_message:
            self._refuse(rpc, MalformedBody("the request has no message"), found)
        else:
            self._count_partial(rpc, 0)
            rpc.reader = None
            rpc.is_delivered = True
            found.append(rpc)

    def _take_other(self, event: Event, found: list[ServerEvent[M]]) -> int:
        """Events that carry no request; returns what they cost."""
        if type(event) is StreamClosed:
            rpc = self._rpcs.get(event.stream_id)
            if rpc is None:
                return 0
            self._forget(rpc)
            if rpc.is_delivered:
                found.append(RpcCancelled(rpc))
            return _CANCEL_COSTS
        if type(event) is TrailersReceived:
            rpc = self._rpcs.get(event.stream_id)
            if rpc is not None and not rpc.has_ended:
                self._end_request(rpc, found)
        elif type(event) is PingAcknowledged and event.opaque_data == _DRAIN_PING:
            self._finish_drain()
        return 1

    def _finish_drain(self) -> None:
        try:
            self._http2.send_goaway()
        except Http2Error as error:
            self._fail(ErrorCode.INTERNAL_ERROR, f"cannot drain: {error}")
        self.is_drained = True

    def _check_backlog(self) -> None:
        """Refuse work while the peer does not take the replies that it has.

        Raises:
            Overloaded: retryable, once the peer has read.
        """
        limit = self.limits.max_unsent_bytes
        if self._unsent_at_most > limit:
            # An upper bound until now; asking ngh2 at every request would cost 0.15 us.
            self._unsent_at_most = self._http2.queued_body_size()
            if self._unsent_at_most > limit:
                raise Overloaded(
                    f"{self._unsent_at_most} bytes of replies wait on this connection because the"
                    f" client does not read them; the limit is {limit}"
                )

    def _count_partial(self, rpc: RpcReceived[M], held: int) -> None:
        self._partial_bytes += held - rpc.partial_bytes
        rpc.partial_bytes = held
        limit = self.limits.max_partial_bytes
        if self._partial_bytes > limit:
            raise Overloaded(
                f"unfinished requests of this connection hold {self._partial_bytes} bytes,"
                f" the limit is {limit}; send them over several connections"
            )

    def _refuse(
        self, rpc: RpcReceived[M], error: HloserveError, found: list[ServerEvent[M]]
    ) -> None:
        self._answer_status(rpc, grpc_code(error.code), str(error))
        if rpc.is_delivered:  # a streaming call whose handler must learn that it is over
            found.append(RpcCancelled(rpc))

    def _refuse_reply(self, rpc: RpcReceived[M], nbytes: int) -> None:
        error = BodyTooLarge(self.limits.max_send_msg_bytes, nbytes, MAX_SEND_SETTING)
        self._answer_status(rpc, grpc_code(error.code), str(error))

    def _answer_status(self, rpc: RpcReceived[M], code: int, text: str) -> None:
        self._forget(rpc)
        if not rpc.has_headers_out:
            self._answer_block(rpc.stream_id, error_headers(code, text), has_ended=rpc.has_ended)
            return
        try:
            self._http2.send_trailers(rpc.stream_id, error_trailers(code, text))
            if not rpc.has_ended:
                self._reset_later(rpc.stream_id, ErrorCode.NO_ERROR)
        except Http2Error:
            return  # the stream has gone

    def _answer_block(self, stream_id: int, headers: list[Header], *, has_ended: bool) -> None:
        """Answer with one header block, and stop the upload if there still is one."""
        try:
            self._http2.send_response(stream_id, headers, end_stream=True)
        except Http2Error:
            return  # the stream has gone
        if not has_ended:
            self._reset_later(stream_id, ErrorCode.NO_ERROR)

    def _forget(self, rpc: RpcReceived[M]) -> None:
        del self._rpcs[rpc.stream_id]
        self._partial_bytes -= rpc.partial_bytes
        rpc.partial_bytes = 0


def _is_gzip(encoding: bytes) -> bool:
    """True for gzip, False for identity.

    Raises:
        NotImplementedYet: any other; the answer's grpc-accept-encoding lists ours.
    """
    if encoding == b"identity":
        return False
    if encoding == b"gzip":
        return True
    raise NotImplementedYet(f"grpc-encoding {encoding[:40].decode('ascii', 'replace')!r}")
