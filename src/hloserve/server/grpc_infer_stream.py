"""`ModelStreamInfer`: many requests in flight on one call.

What lives here: the order of answers, how much one call may have in flight, and how it ends. What
does not: how a request is served (`hloserve.server.inference`, as for ModelInfer), bytes
(`hloserve.wire.v2_protobuf_stream`) and streams as such (`hloserve.server.grpc_stream`). Loop
thread.

Rules.
1. Requests are served at once and together; answers leave in the order of the requests, as
   Triton's do for models that are not decoupled. Clients without ids, and errors in some of them,
   can be told apart by nothing else.
2. An error of a request is its answer; the call goes on.
3. The call is read no further while `_MOST_REQUESTS` requests or `_MOST_BYTES` of them have no
   answer, or while its peer does not read; it goes on at half of that. So a call holds a bounded
   number of requests and answers, however much is sent.
4. Requests that are answered at once, as hostile ones are, hold no one up: after so many of them
   others have their turn.
5. Half-close ends the call with OK after the last answer. The peer's leaving, and the deadline,
   withdraw what is queued. When the server leaves, requests that it has are answered and the call
   ends UNAVAILABLE: what has no answer then was not looked at.

Source: Triton's stream_infer_handler.cc.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hloserve.core.clock import Clock
from hloserve.core.errors import BodyTooLarge, Code
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.server.grpc_call import told
from hloserve.server.grpc_stream import StreamingRpc
from hloserve.server.in_flight import Reply
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_stream as stream_codec
from hloserve.wire.grpc_framing import MAX_SEND_SETTING, Message

__all__ = ["Begun", "InferStream", "Inference"]

_MOST_REQUESTS = 256
"""Several batches of most models, and a quarter of what a worker takes by default."""

_MOST_BYTES = 64 << 20

_LONGEST_TIMER_S = 86_400.0
"""As for requests: a far deadline is looked at once a day."""


def _soon(function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(function)


class Begun(Protocol):
    """A request that is being served."""

    def cancel(self) -> None:
        """Drop it: nobody waits for it."""
        ...


class Inference(Protocol):
    """Serves requests: the inference service."""

    max_in_flight: int

    def start(self, request: InferRequest, reply: Reply) -> Begun:
        """Begin to serve one."""
        ...


class InferStream:
    """One call, from its headers to its end.

    Args:
        rpc: the call; its callbacks are set here.
        inference: serves the requests.
        clock: of the deadlines.
        soon: runs a function in the next turn of the loop.
    """

    def __init__(
        self,
        rpc: StreamingRpc,
        inference: Inference,
        clock: Clock,
        soon: Callable[[Callable[[], None]], object] = _soon,
    ) -> None:
        self._soon = soon
        self._quick_answers = 0
        self._rpc = rpc
        self._inference = inference
        self._now_ns = clock.now_ns
        self._most_requests = min(_MOST_REQUESTS, inference.max_in_flight or _MOST_REQUESTS)
        self._requests: deque[_Request] = deque()  # in the order of their answers
        self._held_bytes = 0
        self._is_leaving = False
        self._timer: asyncio.TimerHandle | None = None
        rpc.keeps_messages = True
        rpc.on_message = self._take
        rpc.on_half_close = self._go_on
        rpc.on_room = self._go_on
        rpc.on_cancel = self._drop
        rpc.on_drain = self._drain
        if rpc.deadline_ns != NEVER_NS:
            self._expire()

    def answered(
        self, request: "_Request", response: InferResponse | None, error: Exception | None
    ) -> None:
        """For a request: it has its outcome. It leaves when those before it have left."""
        request.answer = self._encode(request, response, error)
        request.in_flight = None
        self._rpc.let_go(request.message)
        request.message = b""  # the answer may have to wait for a slow one
        requests = self._requests
        while requests and (answer := requests[0].answer) is not None:
            self._held_bytes -= requests.popleft().nbytes
            self._rpc.send(answer)
        if not request.is_starting:
            self._go_on()

    def _take(self, message: Message) -> None:
        """Decode, call; the answer is encoded when it comes."""
        request = _Request(self, message)
        self._requests.append(request)
        self._held_bytes += len(message)
        try:
            decoded = codec.decode_infer_request(message, self._now_ns(), self._rpc.deadline_ns)
            if decoded.parameters:
                stream_codec.check_stream_parameters(decoded.parameters)
        except Exception as error:  # noqa: BLE001  # the edge of a request: `told` logs it
            self.answered(request, None, error)
        else:
            in_flight = self._inference.start(decoded, request.reply)
            if request.answer is None:
                request.in_flight = in_flight
        request.is_starting = False
        if request.answer is not None:
            self._quick_answers += 1
            if self._quick_answers == _MOST_REQUESTS:
                self._rpc.pause()
                self._soon(self._breathe)
        if (
            len(self._requests) >= self._most_requests
            or self._held_bytes >= _MOST_BYTES
            or self._rpc.is_full
        ):
            self._rpc.pause()

    def _encode(
        self, request: "_Request", response: InferResponse | None, error: Exception | None
    ) -> bytes:
        if response is not None:
            try:
                message = stream_codec.encode_stream_answer(response)
            except Exception as problem:  # noqa: BLE001  # the edge of a request: `told` logs it
                error = problem
            else:
                limit = self._rpc.max_send_bytes
                if len(message) <= limit:
                    return message
                error = BodyTooLarge(limit, len(message), MAX_SEND_SETTING)
        assert error is not None, "a request ends with a response or an error"
        names = stream_codec.names_of_request(request.message)
        return stream_codec.encode_stream_error(names, *told(error))

    def _go_on(self) -> None:
        """Read on if there is room, or end the call if it is time."""
        rpc = self._rpc
        if not self._requests and rpc.has_heard_all:
            self._drop()
            rpc.finish()
        elif self._is_leaving:
            if not self._requests:
                self._drop()
                rpc.fail_with(Code.UNAVAILABLE, "the server is shutting down")
        elif (
            rpc.is_paused
            and not rpc.is_full
            and len(self._requests) <= self._most_requests // 2
            and self._held_bytes <= _MOST_BYTES // 2
        ):
            rpc.resume()

    def _breathe(self) -> None:
        """Go on after others had their turn."""
        self._quick_answers = 0
        self._go_on()

    def _drain(self) -> None:
        self._is_leaving = True
        self._rpc.pause()
        self._go_on()

    def _drop(self) -> None:
        """Withdraw what has no answer: nobody waits for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._requests = self._requests, deque()
        for request in requests:
            if request.in_flight is not None:
                request.in_flight.cancel()

    def _expire(self) -> None:
        """End the call at its deadline; before, look again."""
        left_ns = self._rpc.deadline_ns - self._now_ns()
        if left_ns > 0:
            delay_s = min(left_ns * 1e-9, _LONGEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)
        else:
            self._timer = None
            self._drop()
            self._rpc.fail_with(Code.DEADLINE_EXCEEDED, "the deadline of the call passed")


class _Request:
    """One request of a call, from its arrival to its answer.

    Attributes:
        message: as it came, until there is an answer.
        nbytes: how long that was.
        in_flight: to cancel it; None before it is served and afterwards.
        answer: encoded, once there is one; it may have to wait for its turn.
        is_starting: an answer would come from within `_take`, which looks for itself what is next.
    """

    __slots__ = ("_stream", "answer", "in_flight", "is_starting", "message", "nbytes")

    def __init__(self, stream: InferStream, message: Message) -> None:
        self._stream = stream
        self.message = message
        self.nbytes = len(message)
        self.in_flight: Begun | None = None
        self.answer: bytes | None = None
        self.is_starting = True

    def reply(self, response: InferResponse | None, error: Exception | None, /) -> None:
        """Take the outcome."""
        self._stream.answered(self, response, error)
