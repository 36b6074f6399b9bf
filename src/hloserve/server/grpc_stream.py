"""The one streaming gRPC call that a handler sees: server-streaming and bidirectional ones.

What lives here: `StreamingRpc`, and the form of a handler that takes one request and streams its
answers. What does not: unary calls (`hloserve.server.grpc_call`) and sockets
(`hloserve.server.grpc_connection`). Loop thread.

Rules.
1. The handler is called once, when the call's headers have come; it sets the callbacks that it
   wants and returns. Messages follow, one `on_message` each, in order, then `on_half_close`.
2. Between `pause` and `resume` no message is delivered, and the peer gets no new credit. What it
   has credit for still comes and waits; too much of it on one connection ends the call with
   RESOURCE_EXHAUSTED.
3. `send` never blocks. A handler that can produce more than its peer reads looks at `is_full`, and
   goes on at `on_room`.
4. `finish`, `fail` or the peer's leaving ends the call; whatever is done with it afterwards has no
   effect. `on_cancel` tells of the peer's leaving, and of nothing else.
5. When the server leaves, `on_drain` is asked to come to an end; a call without one is answered
   UNAVAILABLE.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from typing_extensions import override

from hloserve.core.errors import BadRequest, Cancelled, Code, HloserveError
from hloserve.server.grpc_call import Rpc
from hloserve.wire.bytes_in_hand import COUNTED_FROM_BYTES
from hloserve.wire.grpc_framing import Message, PackedMessage

__all__ = ["StreamHandler", "StreamingRpc", "server_streaming"]

_FULL_BYTES = 1 << 20
_ROOM_BYTES = 256 << 10
# What a waiting message costs beyond its bytes, so that empty ones are bounded too.
_MESSAGE_COST_BYTES = 128


class StreamingRpc(Rpc):
    """One streaming call. The connection makes it; a handler gets it.

    Attributes:
        on_message: takes each message of the peer. Without one they are dropped.
        on_half_close: called once when the peer has sent its last message.
        on_room: called when what was sent has left, after `is_full`.
        on_drain: called when the server leaves: end soon.
        is_full: more was sent than the peer reads; what is sent all the same waits in memory.
        is_paused: messages wait.
        has_half_closed: the peer has sent its last message, and `on_half_close` was called.
        keeps_messages: the handler has messages in hand after `on_message`, until `let_go`.
    """

    __slots__ = (
        "_give_up_unpacking",
        "_has_ended",
        "_is_delivering",
        "_waiting",
        "has_half_closed",
        "is_full",
        "is_paused",
        "keeps_messages",
        "on_drain",
        "on_half_close",
        "on_message",
        "on_room",
    )

    def __init__(self) -> None:
        self.on_message: Callable[[Message], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.is_full = False
        self.is_paused = False
        self.has_half_closed = False
        self.keeps_messages = False
        self._has_ended = False
        self._is_delivering = False
        self._give_up_unpacking: Callable[[], None] | None = None
        self._waiting: deque[Message] = deque()

    @property
    def has_heard_all(self) -> bool:
        """The peer has sent its last message, and none waits, though the stream may be paused."""
        return self._has_ended and not self._waiting

    @property
    def max_send_bytes(self) -> int:
        """What a message may have to be sent."""
        connection = self.connection
        return 0 if connection is None else connection.http2.limits.max_send_msg_bytes

    @override
    def reply(self, message: Message) -> None:
        """Send a last message and end the call with status OK."""
        self.send(message)
        self.finish()

    def send(self, message: Message) -> None:
        """Send one message. One over the cap ends the call with an error, as if the peer left."""
        connection = self.connection
        if connection is None:
            return
        is_sent = connection.http2.send(self.stream_id, message)
        connection.wrote()
        if not is_sent:
            self.cancelled()
        elif connection.http2.unsent_bytes(self.stream_id) >= _FULL_BYTES and not self.is_full:
            self.is_full = True
            connection.full_streams.append(self)

    def finish(self) -> None:
        """End the call with status OK, after what was sent."""
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.http2.finish(self.stream_id)
            connection.wrote()
            self._forget_handler()

    @override
    def fail_with(self, code: Code, text: str) -> None:
        super().fail_with(code, text)
        self._forget_handler()

    def _forget_handler(self) -> None:
        """The call is over: its handler and it lead to each other, and both to what has come."""
        self.on_message = self.on_half_close = self.on_room = self.on_drain = self.on_cancel = None

    def pause(self) -> None:
        """Take no messages until `resume`."""
        if not self.is_paused and self.connection is not None:
            self.is_paused = True
            self.connection.http2.pause(self.stream_id)

    def resume(self) -> None:
        """Take messages again; those that wait are delivered at once, until one pauses again."""
        if self.is_paused and self.connection is not None:
            self.is_paused = False
            self.connection.http2.resume(self.stream_id)
            self.connection.wrote()
            self._deliver()

    def let_go(self, message: Message) -> None:
        """Say that a message of `on_message` is not in hand any longer."""
        if len(message) >= COUNTED_FROM_BYTES and self.connection is not None:
            self.connection.http2.take(self.stream_id, -len(message))

    # What the connection tells.

    def received(self, message: Message) -> None:
        """For the connection: a message has come."""
        if self.connection is None:
            return
        is_packed = type(message) is PackedMessage
        if not (self.is_paused or self._waiting or self._is_delivering or is_packed):
            self._call_on_message(message)
            return
        self._waiting.append(message)
        try:
            self.connection.http2.keep(self.stream_id, len(message) + _MESSAGE_COST_BYTES)
        except HloserveError as error:
            self.break_off(error)
            return
        if is_packed:
            self._deliver()

    def break_off(self, error: Exception) -> None:
        """For the connection: the call may not go on."""
        self._waiting.clear()
        on_cancel = self.on_cancel
        self.fail(error)
        if on_cancel is not None:
            on_cancel()

    def half_closed(self) -> None:
        """For the connection: the peer has sent its last message."""
        self._has_ended = True
        self._deliver()

    def has_room(self) -> bool:
        """For the connection, after a write: True when the stream is not full any more."""
        connection = self.connection
        if connection is None:
            return True
        if connection.http2.unsent_bytes(self.stream_id) > _ROOM_BYTES:
            return False
        self.is_full = False
        if self.on_room is not None:
            self._guard(self.on_room)
        return True

    def drain(self) -> None:
        """For the connection: the server leaves."""
        if self.on_drain is not None:
            self._guard(self.on_drain)
        else:
            self.fail_with(Code.UNAVAILABLE, "the server is shutting down")

    @override
    def cancelled(self) -> None:
        self._waiting.clear()
        give_up, self._give_up_unpacking = self._give_up_unpacking, None  # it leads back here
        if give_up is not None:
            give_up()
        super().cancelled()
        self._forget_handler()

    def _deliver(self) -> None:
        """Hand over what waits, unless that is going on further up the stack."""
        if self._is_delivering or self._give_up_unpacking is not None:
            return
        self._is_delivering = True
        try:
            while self._waiting and not self.is_paused and self.connection is not None:
                message = self._waiting[0]
                if type(message) is PackedMessage:
                    self._unpack(message)
                    break
                self._waiting.popleft()
                self.connection.http2.keep(self.stream_id, -len(message) - _MESSAGE_COST_BYTES)
                self._call_on_message(message)
        finally:
            self._is_delivering = False
        if self._has_ended and not self._waiting and not self.is_paused:
            self._tell_half_close()

    def _unpack(self, message: PackedMessage) -> None:
        """Decompress the message whose turn it is, apart from the loop; then go on."""
        is_done = False

        def go_on(unpacked: Message | None, error: Exception | None) -> None:
            nonlocal is_done
            is_done = True
            self._give_up_unpacking = None
            connection = self.connection
            if connection is None:
                return
            try:
                if unpacked is None:
                    raise error or Cancelled()
                self._waiting[0] = unpacked
                connection.http2.keep(self.stream_id, len(unpacked) - len(message))
                is_counted = len(unpacked) >= COUNTED_FROM_BYTES
                counted_bytes = len(unpacked) if is_counted else 0
                connection.http2.take(self.stream_id, counted_bytes - len(message))
            except Exception as problem:  # noqa: BLE001  # the edge of a call: fail logs it
                self.break_off(problem)
                return
            self._deliver()

        assert self.connection is not None, "a call that is over has no messages"
        give_up = self.connection.unpack(message, go_on)
        if not is_done:
            self._give_up_unpacking = give_up

    def _tell_half_close(self) -> None:
        if not self.has_half_closed and self.connection is not None:
            self.has_half_closed = True
            if self.on_half_close is not None:
                self._guard(self.on_half_close)

    def _call_on_message(self, message: Message) -> None:
        if self.on_message is not None:
            self._guard(self.on_message, message)
        if not self.keeps_messages:
            self.let_go(message)

    def _guard(self, callback: Callable[..., None], *arguments: Message) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001  # the edge of a call: fail logs it
            self.fail(error)


StreamHandler: TypeAlias = Callable[[StreamingRpc], None]


def server_streaming(handler: Callable[[StreamingRpc, Message], None]) -> StreamHandler:
    """The handler of a method that takes one request and streams its answers.

    Args:
        handler: called when the request is complete, with the call and its one message.
    """

    def begin(rpc: StreamingRpc) -> None:
        requests: list[Message] = []

        def take(message: Message) -> None:
            requests.append(message)
            if len(requests) > 1:
                rpc.fail(BadRequest("a server-streaming call has more than one message"))

        def start() -> None:
            if requests:
                handler(rpc, requests[0])
            else:
                rpc.fail(BadRequest("the request has no message"))

        rpc.on_message = take
        rpc.on_half_close = start

    return begin
