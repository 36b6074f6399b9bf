"""The server's end of a gRPC connection, without I/O.

What lives here: calls in, replies out, and the refusals that need no handler. What does not: HTTP/2
(`hloserve.wire.http2`), sockets and handlers (`hloserve.server.grpc_transport`). A connection
belongs to one thread at a time.

Rules, besides those of `hloserve.wire.http2`.
1. A unary call is reported once, whole, but perhaps compressed (`RpcPacked`). What is wrong with it
   before that is answered here.
2. A call that was reported is answered or reported as cancelled, never both.
3. What is large is counted in the account before it is assembled (`hloserve.wire.bytes_in_hand`). A
   call that has to wait for that gets no credit.

Source: gRPC over HTTP2.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from hloserve.core.errors import HloserveError, MalformedBody, Overloaded
from hloserve.core.reused_memory import ReusedMemory
from hloserve.wire.bytes_in_hand import COUNTED_FROM_BYTES, Account
from hloserve.wire.grpc_events import (
    MessageReceived,
    RequestParts,
    RpcCancelled,
    RpcHalfClosed,
    RpcPacked,
    RpcReceived,
    ServerEvent,
)
from hloserve.wire.grpc_framing import Message, MessageReader, PackedMessage, read_whole
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_preface import Preface
from hloserve.wire.grpc_replies import GrpcReplies
from hloserve.wire.grpc_request import (
    CallGuard,
    GuardedHeadReader,
    HeadReader,
    NotGrpc,
    refusal_of,
)
from hloserve.wire.http2 import (
    DRAIN_PING,
    DataReceived,
    ErrorCode,
    Event,
    PingAcknowledged,
    RequestReceived,
    StreamClosed,
    TrailersReceived,
    WindowUpdated,
)

__all__ = ["GrpcServerConnection"]

M = TypeVar("M")

_NOTHING: Final[frozenset[bytes]] = frozenset()

# Tokens of `GrpcLimits.frame_allowance`. A request pays for the WINDOW_UPDATEs, PINGs and small
# frames that come with it; a cancelled one costs more than it brought, so a rapid reset runs dry.
_REQUEST_BRINGS = 4
_CANCEL_COSTS = 10
_SMALL_DATA_BYTES = 64
_SMALL_CREDIT = 1_024
_FRAME_BYTES = 1024 * 1024


class GrpcServerConnection(GrpcReplies[M], Generic[M]):
    """The server's end of one connection.

    Args:
        methods: path to whatever the caller wants back in `RpcReceived.method`.
        limits: what the peer may make this end hold.
        streaming: the paths whose messages are reported one by one.
        make_rpc: makes the empty record of a call: `RpcReceived`, or a subclass with the same slots
            and the caller's own.
        make_stream: the same for streaming calls.
        guard: who may make which call; everybody any when left out.
        memory: where long messages are assembled; None for a buffer of their own each.
        account: what the connection takes of the bytes that the process has in hand.

    Attributes:
        on_late: called when a wait is over: there may be output, and these calls have ended.
        is_open: the peer has greeted.
        credits: how often the peer let replies go on that waited for it.
    """

    def __init__(  # noqa: PLR0913  # it is wired once, by name
        self,
        methods: Mapping[bytes, M],
        limits: GrpcLimits,
        *,
        streaming: Container[bytes] = _NOTHING,
        make_rpc: Callable[[], RpcReceived[M]] = RpcReceived,
        make_stream: Callable[[], RpcReceived[M]] = RpcReceived,
        guard: CallGuard | None = None,
        memory: ReusedMemory | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(limits, account)
        self._memory = memory
        self.on_late: Callable[[Sequence[RpcCancelled[M]]], None] = _nobody_minds
        self._frame_bytes = 0
        self.is_open = False
        self.credits = 0
        self._head_reader = HeadReader(methods, streaming)
        if guard is not None:
            self._head_reader = GuardedHeadReader(methods, streaming, guard)
        self._make_rpc = make_rpc
        self._make_stream = make_stream
        self._preface = Preface()
        # An HTTP/1 client must not see frames before its answer.
        self._is_silent = True

    @property
    def has_partial(self) -> bool:
        """True while a request, or a message of a stream, has begun and not ended."""
        return self.oldest_partial is not None

    @property
    def oldest_partial(self) -> tuple[int, int] | None:
        """The oldest request, or message of a stream, that has begun and not ended: its stream, and
        how many pieces of it have come.
        """
        for rpc in self._rpcs.values():
            if rpc.is_partial:
                return rpc.stream_id, 0 if rpc.parts is None else rpc.parts.reader.pieces
        return None

    @property
    def unread_bytes(self) -> int:
        """Bytes of calls that are answered which wait, because their peer gives no credit."""
        queued_bytes = self.queued_bytes
        if queued_bytes:
            queued_bytes -= sum(self.unsent_bytes(rpc.stream_id) for rpc in self.streams())
        return queued_bytes

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
        events = self._receive(data)
        self._count_frame(len(data), events)
        for event in events:
            if type(event) is DataReceived:
                rpc = rpcs.get(event.stream_id)
                if rpc is not None and event.end_stream and rpc.parts is None:
                    message = read_whole(event.data, limit)
                    if message is not None and len(message) < COUNTED_FROM_BYTES:
                        rpc.message = message
                        rpc.is_delivered = True
                        found.append(rpc)
                        continue
                idle_frames += len(event.data) < _SMALL_DATA_BYTES
                if rpc is not None:
                    before = len(found)
                    self._take_data(rpc, event.data, event.end_stream, found)
                    idle_frames -= len(found) - before  # messages of a stream are work
            elif type(event) is RequestReceived:
                idle_frames -= _REQUEST_BRINGS
                self._begin(event, found)
            else:
                idle_frames += self._take_other(event, found)
        if idle_frames > 0 or self._allowance < self.limits.frame_allowance:
            self._spend(idle_frames)
        return found

    def lose(self) -> list[RpcCancelled[M]]:
        """The socket is gone or the connection closed: report every delivered call as cancelled."""
        self.is_closed = True
        rpcs, self._rpcs = self._rpcs, {}
        self._partial_bytes = 0
        for rpc in rpcs.values():
            if rpc.parts is not None:
                self._give_back(rpc.parts)
        self._account.give(_counted(self._frame_bytes))
        self._frame_bytes = 0
        self.on_late = _nobody_minds  # or the owner and this keep what is unsent from being freed
        return [RpcCancelled(rpc) for rpc in rpcs.values() if rpc.is_delivered]

    def _check_preface(self, data: bytes | bytearray | memoryview) -> bytes:
        """Look whether the peer speaks HTTP/2; returns what is to be read now."""
        if self.is_closed:
            return b""
        preface = self._preface
        preface.feed(data)
        self.is_open = preface.is_http2
        self._is_silent = not self.is_open
        if preface.fault:
            self.is_closed = True
            self.end_reason = preface.fault
            self._final_output = preface.answer
        return preface.data if self.is_open else b""

    def _begin(self, event: RequestReceived, found: list[ServerEvent[M]]) -> None:
        stream_id = self._last_peer_stream = event.stream_id
        try:
            head, timeout_ns, headers = self._head_reader.read(event.headers)
            if self._unsent_at_most > self.limits.max_unsent_bytes:
                self._check_backlog()
        except NotGrpc as answer:
            self._answer_block(stream_id, answer.headers, has_ended=event.end_stream)
            return
        except HloserveError as error:
            self._answer_block(stream_id, refusal_of(error), has_ended=event.end_stream)
            return
        method, has_coding, is_streaming = head
        rpc = self._make_stream() if is_streaming else self._make_rpc()
        self._rpcs[stream_id] = rpc
        rpc.stream_id = stream_id
        rpc.headers = headers
        rpc.timeout_ns = timeout_ns
        rpc.method = method
        rpc.message = b""
        rpc.is_delivered = False
        rpc.parts = None
        if has_coding or is_streaming:
            limit = self.limits.max_recv_msg_bytes
            reader = MessageReader(
                limit, has_coding=has_coding, keeps_packed=True, memory=self._memory
            )
            rpc.parts = RequestParts(reader, is_streaming=is_streaming)
            if is_streaming:
                rpc.is_delivered = True
                found.append(rpc)
        if event.end_stream:
            self._end_request(rpc, found)

    def _take_data(
        self, rpc: RpcReceived[M], data: bytes, end: bool, found: list[ServerEvent[M]]
    ) -> None:
        """What is not the one whole message of a unary call: parts, streams, faults."""
        parts = rpc.parts
        if parts is None:
            reader = MessageReader(self.limits.max_recv_msg_bytes, memory=self._memory)
            parts = rpc.parts = RequestParts(reader, is_streaming=False)
        try:
            for message in parts.reader.feed(data):
                if parts.is_streaming:
                    self._take_message(parts, message)
                    found.append(MessageReceived(rpc.stream_id, message))
                elif parts.has_message:
                    raise MalformedBody("a unary call has more than one message")
                else:
                    self._take_message(parts, message)
                    rpc.message, parts.has_message = message, True
            held_bytes = parts.reader.buffered_bytes + parts.kept_bytes + len(rpc.message)
            self._hold(parts, held_bytes)
            if parts.claim is not None or parts.reader.buffered_bytes >= COUNTED_FROM_BYTES:
                self._claim(rpc, parts)
            self._count(parts)
        except HloserveError as error:
            self._refuse(rpc, error, found)
            return
        if end:
            self._end_request(rpc, found)

    def _claim(self, rpc: RpcReceived[M], parts: RequestParts) -> None:
        """Claim what a message on its way announces; its peer gets credit when that is granted."""
        reader, claim = parts.reader, parts.claim
        if claim is None:
            told = partial(self._told, rpc)
            claim = parts.claim = self._account.claim(reader.announced_bytes, told)
            claim.is_excused = parts.is_paused
            if not claim.is_granted:
                self.waiting.add(rpc.stream_id)
                self._set_window(rpc.stream_id, parts)
        claim.came(reader.buffered_bytes)

    def _told(self, rpc: RpcReceived[M], is_granted: bool) -> None:
        """A message that waited may come now; or it may not, or not any longer."""
        parts = rpc.parts
        if parts is None or self._rpcs.get(rpc.stream_id) is not rpc:
            return
        if is_granted:
            self.waiting.discard(rpc.stream_id)
            self._set_window(rpc.stream_id, parts)
            self.on_late(())
        else:
            self._answer_error(rpc, self._account.budget.problem())
            self.on_late((RpcCancelled(rpc),) if rpc.is_delivered else ())

    def _take_message(self, parts: RequestParts, message: Message) -> None:
        """Count a message that is whole, if it is large, until its handler is done with it."""
        claim, parts.claim = parts.claim, None
        if claim is not None:
            parts.counted_bytes += claim.hand_over()
        if len(message) >= COUNTED_FROM_BYTES or type(message) is PackedMessage:
            parts.taken_bytes += len(message)

    def _count_frame(self, nbytes: int, events: Sequence[Event]) -> None:
        """Count what has come of a frame that is not whole: ngh2 keeps it until then, unless its
        stream has ended.

        Args:
            nbytes: what has just been read.
            events: what that brought. A frame in the middle brings none.
        """
        if events and nbytes < COUNTED_FROM_BYTES and not self._frame_bytes:
            return
        brought = sum(len(event.data) for event in events if type(event) is DataReceived)
        before, kept = self._frame_bytes, self._frame_bytes + nbytes - brought
        if all(rpc.has_ended for rpc in self._rpcs.values()):
            kept = 0
        self._frame_bytes = max(0, min(kept, nbytes if events else kept, _FRAME_BYTES))
        more = _counted(self._frame_bytes) - _counted(before)
        if more < 0:
            self._account.give(-more)
        while more > 0:
            try:
                self._account.take(more)
                return
            except Overloaded as error:
                if not self.waiting:
                    self._frame_bytes = before
                    self.close(ErrorCode.ENHANCE_YOUR_CALM, str(error))
                    return
                self._told(self._rpcs[max(self.waiting)], is_granted=False)

    def _end_request(self, rpc: RpcReceived[M], found: list[ServerEvent[M]]) -> None:
        parts = rpc.parts
        if parts is not None:
            parts.has_ended = True
        if parts is not None and not parts.reader.is_between_messages:
            self._refuse(rpc, MalformedBody("the request ends in the middle of a message"), found)
        elif parts is not None and parts.is_streaming:
            found.append(RpcHalfClosed(rpc.stream_id))
        elif parts is None or not parts.has_message:
            self._refuse(rpc, MalformedBody("the request has no message"), found)
        else:
            self._hold(parts, 0)
            rpc.is_delivered = True
            found.append(RpcPacked(rpc) if type(rpc.message) is PackedMessage else rpc)

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
        if type(event) is WindowUpdated:
            # Credit that lets output leave is work, unless it comes in crumbs.
            has_use = event.increment >= _SMALL_CREDIT and self._http2.queued_body_size() > 0
            self.credits += has_use
            return 0 if has_use else 1
        if type(event) is TrailersReceived:
            rpc = self._rpcs.get(event.stream_id)
            if rpc is not None and not rpc.has_ended:
                self._end_request(rpc, found)
        elif type(event) is PingAcknowledged and event.opaque_data == DRAIN_PING:
            self.finish_drain()
        return 1

    def _check_backlog(self) -> None:
        """Look how much really waits to be sent; until now there was only an upper bound.

        Raises:
            Overloaded: too much. Retryable, once the client has read.
        """
        self._unsent_at_most = self._http2.queued_body_size()
        limit = self.limits.max_unsent_bytes
        if self._unsent_at_most > limit:
            raise Overloaded(
                f"{self._unsent_at_most} bytes of replies wait on this connection because the"
                f" client does not read them; the limit is {limit}"
            )

    def _refuse(
        self, rpc: RpcReceived[M], error: HloserveError, found: list[ServerEvent[M]]
    ) -> None:
        self._answer_error(rpc, error)
        if rpc.is_delivered:  # a streaming call whose handler must learn that it is over
            found.append(RpcCancelled(rpc))


def _counted(nbytes: int) -> int:
    """What is counted of a part of a frame: little is not worth it."""
    return nbytes if nbytes >= COUNTED_FROM_BYTES else 0


def _nobody_minds(over: Sequence[RpcCancelled[M]]) -> None:
    """For who has no transport."""
