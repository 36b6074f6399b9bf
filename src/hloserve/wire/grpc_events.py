"""What the two ends of a gRPC connection report, and the record that each keeps of a call.

Plain mutable records with slots, not dataclasses: one is made per request and their cost shows.
Who owns them: the connection until the event is delivered, then its caller.
"""

from typing import Generic, TypeAlias, TypeVar

from hloserve.core.errors import HloserveError
from hloserve.wire.bytes_in_hand import Claim
from hloserve.wire.grpc_framing import Message, MessageReader
from hloserve.wire.grpc_headers import Headers

__all__ = [
    "ClientEvent",
    "GoAway",
    "MessageReceived",
    "RequestParts",
    "RpcCancelled",
    "RpcEnded",
    "RpcHalfClosed",
    "RpcPacked",
    "RpcReceived",
    "ServerEvent",
]

M = TypeVar("M")


class RequestParts:
    """How far a request has come that is not one whole message in one frame.

    Attributes:
        reader: has the message that is not complete.
        is_streaming: messages are reported one by one.
        has_message: a unary call's message is complete; its end has not come.
        has_ended: the caller has sent everything.
        has_headers_out: the response has begun.
        held_bytes: what it holds of `GrpcLimits.max_partial_bytes`.
        is_paused: its peer gets no credit, so that nothing may come for as long as that holds.
        kept_bytes: the part of it that are whole messages which wait for the handler.
        claim: what the message on its way takes of the bytes in hand, if it is large.
        counted_bytes: what else the call takes of them.
        taken_bytes: the part of it that are large messages in the handler's hands.
    """

    __slots__ = (
        "claim",
        "counted_bytes",
        "has_ended",
        "has_headers_out",
        "has_message",
        "held_bytes",
        "is_paused",
        "is_streaming",
        "kept_bytes",
        "reader",
        "taken_bytes",
    )

    def __init__(self, reader: MessageReader, *, is_streaming: bool) -> None:
        self.reader = reader
        self.is_streaming = is_streaming
        self.has_message = False
        self.has_ended = False
        self.has_headers_out = False
        self.is_paused = False
        self.held_bytes = 0
        self.kept_bytes = 0
        self.claim: Claim | None = None
        self.counted_bytes = 0
        self.taken_bytes = 0


class RpcReceived(Generic[M]):
    """A call has come: whole for a unary method, its headers for a streaming one.

    There is no constructor: the connection fills a new one in, in one place (`_begin`), which takes
    150 ns instead of 410. The transport subclasses it, so that one object is the call for everyone.

    Attributes:
        stream_id: HTTP/2 stream; unique on its connection.
        method: what the table of methods has for the path.
        headers: as received, pseudo-headers first.
        timeout_ns: from `grpc-timeout`; `NO_TIMEOUT` without.
        message: the request of a unary method; empty for a streaming one.
        is_delivered: for the connection: it was reported.
        parts: for the connection: None for a unary call that came, or may come, in one frame.
    """

    __slots__ = (
        "headers",
        "is_delivered",
        "message",
        "method",
        "parts",
        "stream_id",
        "timeout_ns",
    )

    stream_id: int
    method: M
    headers: Headers
    timeout_ns: int
    message: Message
    is_delivered: bool
    parts: RequestParts | None

    @property
    def has_ended(self) -> bool:
        """True when the caller has sent everything."""
        return self.is_delivered if self.parts is None else self.parts.has_ended

    @property
    def is_partial(self) -> bool:
        """True while the call, or the next message of a stream, is incomplete and may go on."""
        if self.parts is not None and self.parts.is_streaming:
            return not (self.parts.is_paused or self.parts.reader.is_between_messages)
        return not self.is_delivered


class RpcPacked(Generic[M]):
    """A unary call has come whole, and its message is a `PackedMessage`: who unpacks it goes on."""

    __slots__ = ("rpc",)

    def __init__(self, rpc: RpcReceived[M]) -> None:
        self.rpc = rpc


class RpcCancelled(Generic[M]):
    """The caller has gone: it reset the stream. Only for calls that were delivered, and once."""

    __slots__ = ("rpc",)

    def __init__(self, rpc: RpcReceived[M]) -> None:
        self.rpc = rpc


class MessageReceived:
    """One message of a streaming call."""

    __slots__ = ("message", "stream_id")

    def __init__(self, stream_id: int, message: Message) -> None:
        self.stream_id = stream_id
        self.message = message


class RpcHalfClosed:
    """The caller of a streaming call has sent its last message."""

    __slots__ = ("stream_id",)

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id


class RpcEnded:
    """A call of ours is over.

    Attributes:
        code: `grpc-status` number; 0 is OK.
        text: `grpc-message`, decoded.
        message: the response of a unary call; None when there is none.
        trailers: the trailing headers, empty when the stream or connection broke.
        was_refused: the server certainly did not look at it, so it may be sent again as it is.
        error: the fault of the response that this side found; None when the server told the end.
    """

    __slots__ = ("code", "error", "message", "stream_id", "text", "trailers", "was_refused")

    def __init__(
        self,
        stream_id: int,
        code: int,
        text: str = "",
        message: Message | None = None,
        trailers: Headers = (),
        *,
        was_refused: bool = False,
        error: HloserveError | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.code = code
        self.text = text
        self.message = message
        self.trailers = trailers
        self.was_refused = was_refused
        self.error = error


class GoAway:
    """The server takes no new calls on this connection; those up to `last_stream_id` go on."""

    __slots__ = ("error_code", "last_stream_id", "text")

    def __init__(self, last_stream_id: int, error_code: int, text: str) -> None:
        self.last_stream_id = last_stream_id
        self.error_code = error_code
        self.text = text


ServerEvent: TypeAlias = (
    RpcReceived[M] | RpcPacked[M] | RpcCancelled[M] | MessageReceived | RpcHalfClosed
)
ClientEvent: TypeAlias = RpcEnded | MessageReceived | GoAway
