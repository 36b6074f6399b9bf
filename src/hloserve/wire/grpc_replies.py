"""The server's answers on a gRPC connection, without I/O.

What lives here: sending replies, messages of streams and statuses, and how much a stream may bring
or has to send. What does not: reading calls (`hloserve.wire.grpc_server`, which builds on this) and
HTTP/2 (`hloserve.wire.http2`). A connection belongs to one thread at a time.

Rules, besides those of `hloserve.wire.http2`.
1. A call that is answered is forgotten: answering it again does nothing.
2. A paused stream gets no new credit. What its peer has credit for still comes.

Source: gRPC over HTTP2.
"""

from typing import Generic, TypeVar

from hloserve.core.errors import BodyTooLarge, HloserveError, Overloaded
from hloserve.wire.bytes_in_hand import Account, BytesInHand
from hloserve.wire.grpc_events import RequestParts, RpcReceived
from hloserve.wire.grpc_framing import MAX_SEND_SETTING, VIEW_FROM_BYTES, Message, prefix_of
from hloserve.wire.grpc_headers import (
    OK_HEADERS,
    OK_TRAILERS,
    Header,
    error_headers,
    error_trailers,
)
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.http2 import ErrorCode, Http2Connection, Http2Error, Role
from hloserve.wire.status import grpc_code

__all__ = ["GrpcReplies"]

M = TypeVar("M")

_NO_LIMIT_BYTES = 1 << 62


class GrpcReplies(Http2Connection, Generic[M]):
    """The half of a server's connection that answers.

    Args:
        limits: what the peer may make this end hold.
        account: what it takes of the bytes that the process has in hand.

    Attributes:
        waiting: streams whose message waits for bytes in hand.
    """

    def __init__(self, limits: GrpcLimits, account: Account | None = None) -> None:
        super().__init__(Role.SERVER, limits)
        self._account = account or Account(BytesInHand(_NO_LIMIT_BYTES))
        self._rpcs: dict[int, RpcReceived[M]] = {}
        self._partial_bytes = 0
        self.waiting: set[int] = set()
        self._unsent_at_most = 0
        self._max_send_bytes = limits.max_send_msg_bytes

    @property
    def open_rpcs(self) -> int:
        """Calls that have begun and are not answered."""
        return len(self._rpcs)

    @property
    def is_held_back(self) -> bool:
        """True when all that the peer can send now would have to wait: read nothing more.

        Not while another message of its may come: that one has to end first.
        """
        if not self.waiting:
            return False
        claims = (rpc.parts.claim for rpc in self._rpcs.values() if rpc.parts is not None)
        return not any(claim is not None and claim.is_granted for claim in claims)

    def respond(self, stream_id: int, message: Message) -> None:
        """Answer a call: headers, one message, status OK."""
        rpc = self._rpcs.pop(stream_id, None)
        if rpc is None or self.is_closed:
            return
        nbytes = len(message)
        if nbytes > self._max_send_bytes:
            self._rpcs[stream_id] = rpc
            self._refuse_reply(rpc, nbytes)
            return
        if rpc.parts is not None:
            self._give_back(rpc.parts)
            self.waiting.discard(stream_id)
        self._unsent_at_most += nbytes
        http2 = self._http2
        try:
            http2.send_response(stream_id, OK_HEADERS)
            if nbytes < VIEW_FROM_BYTES:
                http2.send_data(stream_id, prefix_of(nbytes) + message)
            else:
                self._send_message(stream_id, message)
            http2.send_trailers(stream_id, OK_TRAILERS)
        except Http2Error:
            return  # the stream has gone; its StreamClosed is on the way

    def fail(self, stream_id: int, code: int, text: str) -> None:
        """Answer a call with a status other than OK; `text` is cut to what peers accept."""
        rpc = self._rpcs.get(stream_id)
        if rpc is not None and not self.is_closed:
            self._answer_status(rpc, code, text)

    def send(self, stream_id: int, message: Message) -> bool:
        """Send one message of a streaming call; False when there is no such call any more.

        A message over the cap ends its call with an error.
        """
        rpc, parts = self._streaming_rpc(stream_id)
        if rpc is None or parts is None:
            return False
        if len(message) > self._max_send_bytes:
            self._refuse_reply(rpc, len(message))
            return False
        self._unsent_at_most += len(message)
        try:
            if not parts.has_headers_out:
                self._http2.send_response(stream_id, OK_HEADERS)
                parts.has_headers_out = True
            self._send_message(stream_id, message)
        except Http2Error:
            return False  # as in `respond`
        return True

    def finish(self, stream_id: int) -> None:
        """End a streaming call with status OK."""
        rpc, parts = self._streaming_rpc(stream_id)
        if rpc is None or parts is None:
            return
        self._forget(rpc)
        try:
            if not parts.has_headers_out:
                self._http2.send_response(stream_id, [*OK_HEADERS, *OK_TRAILERS], end_stream=True)
            else:
                self._http2.send_trailers(stream_id, OK_TRAILERS)
            if not parts.has_ended:
                self._reset_later(stream_id, ErrorCode.NO_ERROR)
        except Http2Error:
            return  # as in `respond`

    def rpc_of(self, stream_id: int) -> RpcReceived[M] | None:
        """The call of a stream; None once it is answered or lost."""
        return self._rpcs.get(stream_id)

    def streams(self) -> list[RpcReceived[M]]:
        """The streaming calls that have begun and are not answered."""
        rpcs = self._rpcs.values()
        return [rpc for rpc in rpcs if rpc.parts is not None and rpc.parts.is_streaming]

    def unsent_bytes(self, stream_id: int) -> int:
        """Bytes of a stream's messages that wait here, because its peer gives no credit."""
        try:
            return self._http2.queued_body_size(stream_id)
        except Http2Error:
            return 0  # the stream has gone

    def pause(self, stream_id: int) -> None:
        """Give the peer of a stream no more credit, until `resume`."""
        _, parts = self._streaming_rpc(stream_id)
        if parts is not None and not parts.has_ended:
            parts.is_paused = True
            self._set_window(stream_id, parts)

    def resume(self, stream_id: int) -> None:
        """Give the peer of a paused stream credit again."""
        _, parts = self._streaming_rpc(stream_id)
        if parts is not None and not parts.has_ended:
            parts.is_paused = False
            self._set_window(stream_id, parts)

    def keep(self, stream_id: int, nbytes: int) -> None:
        """Account for messages of a stream that wait for its handler; negative when it takes them.

        Raises:
            Overloaded: the connection holds too much that is unfinished.
        """
        rpc, parts = self._streaming_rpc(stream_id)
        if rpc is not None and parts is not None:
            parts.kept_bytes += nbytes
            self._hold(parts, parts.held_bytes + nbytes)
            self._count(parts)

    def take(self, stream_id: int, nbytes: int) -> None:
        """Account for large messages in hand until the call is answered; negative lets them go.

        Raises:
            Overloaded: the process has too many bytes of requests in hand.
        """
        rpc = self._rpcs.get(stream_id)
        if rpc is not None and rpc.parts is not None:
            rpc.parts.taken_bytes += nbytes
            self._count(rpc.parts)

    @property
    def account(self) -> Account:
        """What the connection takes of the bytes that the process has in hand."""
        return self._account

    def _set_window(self, stream_id: int, parts: RequestParts) -> None:
        """Give the peer of a stream credit, unless its handler or the process has too much."""
        claim = parts.claim
        if claim is not None:
            claim.is_excused = parts.is_paused
        is_held_back = parts.is_paused or (claim is not None and not claim.is_granted)
        nbytes = 0 if is_held_back else self.limits.stream_window_bytes
        try:
            self._http2.set_local_window_size(nbytes, stream_id=stream_id)
        except Http2Error:
            return  # the stream has gone

    def _streaming_rpc(
        self, stream_id: int
    ) -> tuple[RpcReceived[M], RequestParts] | tuple[None, None]:
        rpc = self._rpcs.get(stream_id)
        if rpc is None or rpc.parts is None or self.is_closed:
            return None, None
        return rpc, rpc.parts

    def _hold(self, parts: RequestParts, held_bytes: int) -> None:
        """Account for what an unfinished request holds.

        Raises:
            Overloaded: the connection holds too much of such requests.
        """
        self._partial_bytes += held_bytes - parts.held_bytes
        parts.held_bytes = held_bytes
        limit = self.limits.max_partial_bytes
        if self._partial_bytes > limit:
            raise Overloaded(
                f"unfinished requests of this connection hold {self._partial_bytes} bytes,"
                f" the limit is {limit}; send them over several connections"
            )

    def _count(self, parts: RequestParts) -> None:
        """Account for what a call takes of the process's bytes in hand, beside its claim.

        Raises:
            Overloaded: there are too many.
        """
        nbytes = parts.taken_bytes + parts.kept_bytes
        if parts.claim is None:
            nbytes += parts.reader.buffered_bytes
        more, parts.counted_bytes = nbytes - parts.counted_bytes, nbytes
        if more > 0:
            try:
                self._account.take(more)
            except Overloaded:
                parts.counted_bytes -= more
                raise
        elif more:
            self._account.give(-more)

    def _give_back(self, parts: RequestParts) -> None:
        """The call is over: nothing of it is in hand."""
        claim, parts.claim = parts.claim, None
        if claim is not None:
            claim.end()
        counted, parts.counted_bytes = parts.counted_bytes, 0
        parts.taken_bytes = parts.kept_bytes = 0
        if counted:
            self._account.give(counted)

    def _refuse_reply(self, rpc: RpcReceived[M], nbytes: int) -> None:
        error = BodyTooLarge(self.limits.max_send_msg_bytes, nbytes, MAX_SEND_SETTING)
        self._answer_error(rpc, error)

    def _answer_error(self, rpc: RpcReceived[M], error: HloserveError) -> None:
        self._answer_status(rpc, grpc_code(error.code), str(error))

    def _answer_status(self, rpc: RpcReceived[M], code: int, text: str) -> None:
        self._forget(rpc)
        if rpc.parts is None or not rpc.parts.has_headers_out:
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
        if rpc.parts is not None:
            self._partial_bytes -= rpc.parts.held_bytes
            rpc.parts.held_bytes = 0
            self._give_back(rpc.parts)
            self.waiting.discard(rpc.stream_id)
