"""One accepted gRPC connection: an asyncio protocol around the connection without I/O.

What lives here: reading, calling the handlers, writing in batches, slow readers, draining. What
does not: listening and flushing of all connections (`hloserve.server.grpc_transport`), HTTP/2 and
gRPC (`hloserve.wire`). Everything runs on the loop thread; the rules are the transport's.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from hloserve.core.errors import Cancelled, HloserveError
from hloserve.core.logging import log_event
from hloserve.core.requests import NEVER_NS
from hloserve.server.grpc_call import Handler, Rpc, Unpacked
from hloserve.server.grpc_stream import StreamingRpc
from hloserve.server.grpc_watch import GrpcTimeouts, Verdict, Watch
from hloserve.wire.bytes_in_hand import Growth
from hloserve.wire.grpc_events import (
    MessageReceived,
    RpcCancelled,
    RpcHalfClosed,
    RpcPacked,
    ServerEvent,
)
from hloserve.wire.grpc_framing import Message, PackedMessage
from hloserve.wire.grpc_request import path_and_token
from hloserve.wire.grpc_server import GrpcServerConnection

if TYPE_CHECKING:
    from hloserve.server.grpc_transport import GrpcServer

__all__ = ["Connection"]

log = logging.getLogger(__name__)

# Taken from the connection per write: a large reply to a slow reader is held once, not twice.
_WRITE_BYTES = 256 * 1024
_HIGH_WATER_BYTES = 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, server: "GrpcServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_reading = False  # inside buffer_updated
        self._is_dirty = False
        self._is_paused = False
        self._has_left = False
        self.http2: GrpcServerConnection[Handler] = GrpcServerConnection(
            server.methods,
            server.limits,
            streaming=server.streaming,
            make_rpc=Rpc,
            make_stream=StreamingRpc,
            guard=server.guard,
            memory=server.memory,
            account=server.budget.account(),
        )
        self.http2.on_late = self._late
        self.full_streams: list[StreamingRpc] = []
        self._watch = Watch(server.now_ns())
        self._rules: object = server.guard and server.guard.rules

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._server.joined(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._watch.has_read = True
        self._is_reading = True
        server = self._server
        server.is_alone_reading = server.connections == 1
        try:
            for event in self.http2.receive(server.read_buffer[:nbytes]):
                if type(event) is Rpc:
                    timeout_ns = event.timeout_ns
                    event.deadline_ns = NEVER_NS if timeout_ns < 0 else server.now_ns() + timeout_ns
                    event.on_cancel = None
                    event.connection = self
                    try:
                        event.method(event)
                    except Exception as error:  # noqa: BLE001  # the edge of a request: fail logs it
                        event.fail(error)
                else:
                    self._take_other(event)
        finally:
            server.run_after_read()  # also when we fail: others wait for what was put off
            self._is_reading = False
        if self.http2.waiting:
            self._set_reading()
        self.flush()

    def _take_other(self, event: "ServerEvent[Handler]") -> None:
        """What belongs to a streaming call, and the end of any."""
        if type(event) is RpcCancelled:
            _cancel(event)
        elif type(event) is RpcPacked:
            self._begin_packed(cast(Rpc, event.rpc))
        elif type(event) is StreamingRpc:
            self._begin_stream(event)
        elif type(event) is MessageReceived:
            rpc = self.http2.rpc_of(event.stream_id)
            if rpc is not None:
                cast(StreamingRpc, rpc).received(event.message)
        elif type(event) is RpcHalfClosed:
            rpc = self.http2.rpc_of(event.stream_id)
            if rpc is not None:
                cast(StreamingRpc, rpc).half_closed()

    def _begin_packed(self, rpc: Rpc) -> None:
        """Begin a unary call whose message must be decompressed first."""
        timeout_ns = rpc.timeout_ns
        rpc.deadline_ns = NEVER_NS if timeout_ns < 0 else self._server.now_ns() + timeout_ns
        rpc.on_cancel = None
        rpc.connection = self

        def go_on(message: Message | None, error: Exception | None) -> None:
            rpc.on_cancel = None
            if message is None:
                rpc.fail(error or Cancelled())
                return
            rpc.message = message
            try:
                self.http2.take(rpc.stream_id, len(message))
                rpc.method(rpc)
            except Exception as problem:  # noqa: BLE001  # the edge of a request: fail logs it
                rpc.fail(problem)

        give_up = self.unpack(cast(PackedMessage, rpc.message), go_on)
        if type(rpc.message) is PackedMessage and not rpc.is_over:
            rpc.on_cancel = give_up

    def unpack(self, message: PackedMessage, then: Unpacked) -> Callable[[], None]:
        """Decompress a message apart from the loop; returns what gives that up."""

        def unpack() -> Message:
            with Growth(self.http2.account) as growth:
                return message.unpack(growth)

        return self._server.run_apart(unpack, then)

    def _late(self, over: "Sequence[RpcCancelled[Handler]]") -> None:
        """Calls waited for bytes in hand: they go on, or these are over."""
        for event in over:
            _cancel(event)
        self._set_reading()
        self.wrote()

    def _begin_stream(self, rpc: StreamingRpc) -> None:
        timeout_ns = rpc.timeout_ns
        rpc.deadline_ns = NEVER_NS if timeout_ns < 0 else self._server.now_ns() + timeout_ns
        rpc.on_cancel = None
        rpc.connection = self
        try:
            rpc.method(rpc)
        except Exception as error:  # noqa: BLE001  # the edge of a call: fail logs it
            rpc.fail(error)
        if self.http2.is_draining:
            rpc.drain()

    @override
    def eof_received(self) -> bool:
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for event in self.http2.lose():
            _cancel(event)
        self._server.left(self)

    @override
    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch.last_write_ns = self._server.now_ns()
        self._set_reading()

    @override
    def resume_writing(self) -> None:
        self._is_paused = False
        self._set_reading()
        self.flush()

    def _set_reading(self) -> None:
        """Read, unless the peer does not read, or all that it sends has to wait."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_paused or self.http2.is_held_back:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def wrote(self) -> None:
        """There is output: see that it leaves with the rest of what this loop callback makes."""
        if not self._is_dirty and not self._is_reading:
            self._is_dirty = True
            self._server.mark_dirty(self)

    def flush(self) -> None:
        """Write what there is, as far as the peer takes it."""
        self._is_dirty = False
        transport = self._transport
        if transport is None or self._has_left or transport.is_closing():
            return
        http2 = self.http2
        while not self._is_paused:
            data = http2.take_output(_WRITE_BYTES)
            if data:
                transport.write(data)
            if len(data) < _WRITE_BYTES:
                break
        if self.full_streams:
            self.full_streams = [rpc for rpc in self.full_streams if not rpc.has_room()]
        if http2.is_closed:
            if http2.end_reason:
                log_event(log, "grpc_connection_closed", reason=http2.end_reason)
            for event in http2.lose():
                _cancel(event)
            self._leave(transport)
        elif http2.is_drained and not http2.open_rpcs and not http2.queued_bytes:
            self._leave(transport)

    def drain(self) -> None:
        """Serve what is under way, then close; at once if the peer has not even greeted."""
        if self.http2.is_open:
            self.http2.drain()
            for rpc in self.http2.streams():
                cast(StreamingRpc, rpc).drain()
            self.flush()
        else:
            self.abort()

    def close(self, reason: str) -> None:
        """Say goodbye and close; calls in progress are dropped."""
        self.http2.close(reason=reason)
        self.flush()

    def close_now(self) -> None:
        """Close as `close` does, without waiting for the peer to have read the goodbye."""
        self.close("server is shutting down")
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without a word: the peer does not listen."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_ns: int, timeouts: GrpcTimeouts) -> None:
        """Look at the clock on behalf of this connection; called about once a second."""
        http2, watch = self.http2, self._watch
        http2.replenish()
        self._check_streams()
        verdict = watch.judge(now_ns, timeouts, http2, is_paused=self._is_paused)
        if verdict is Verdict.ABORT:
            self.abort()
        elif verdict is Verdict.DRAIN:
            self.drain()
        elif verdict is Verdict.FINISH_DRAIN:
            http2.finish_drain()
            self.flush()
        elif verdict is Verdict.CLOSE:
            self.close("the rest of a request, or credit for a reply, did not come in time")
        elif verdict is Verdict.PING:
            http2.ping()
            self.flush()

    def _check_streams(self) -> None:
        """End the streams whose token is not valid any more, or not for them."""
        guard = self._server.guard
        if guard is None or guard.rules is self._rules:
            return
        self._rules = guard.rules
        for rpc in self.http2.streams():
            try:
                guard.check(*path_and_token(rpc.headers))
            except HloserveError as error:
                cast(StreamingRpc, rpc).break_off(error)

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close when the peer has read what was sent, which it shows by closing first.

        Closing a socket that has unread input resets it, and the peer may lose the last bytes. The
        sweep ends the wait.
        """
        self._has_left = True
        self._watch.left_ns = self._server.now_ns()
        if self._is_paused or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer was faster; asyncio's shutdown() of the socket says so
            transport.close()


def _cancel(event: "RpcCancelled[Handler]") -> None:
    try:
        cast(Rpc, event.rpc).cancelled()
    except Exception as error:  # noqa: BLE001  # the edge of a request: the connection goes on
        log_event(log, "on_cancel_failed", level=logging.ERROR, error=error)
