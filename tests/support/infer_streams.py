"""`ModelStreamInfer` in memory: both ends of a connection, and a service that answers when told."""

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
from typing_extensions import override

from hloserve.core.clock import ManualClock
from hloserve.core.requests import InferRequest, InferResponse, Parameter
from hloserve.server.grpc_infer_stream import InferStream
from hloserve.server.grpc_stream import StreamingRpc
from hloserve.server.grpc_transport import Connection, GrpcServer
from hloserve.server.in_flight import Reply
from hloserve.wire import v2_protobuf as codec
from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import MessageReceived, RpcEnded
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.v2_protobuf_stream import StreamAnswer, decode_stream_answer

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
_READ_BYTES = 64 * 1024


class Held:
    """A request that is being served until the test answers it."""

    def __init__(self, request: InferRequest, reply: Reply) -> None:
        self.request = request
        self.is_cancelled = False
        self.is_answered = False
        self._reply = reply

    @property
    def is_open(self) -> bool:
        """Neither answered nor cancelled."""
        return not (self.is_answered or self.is_cancelled)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.is_cancelled = True

    def answer(self, error: Exception | None = None) -> None:
        """Give the inputs back, or fail."""
        self.is_answered = True
        request = self.request
        response = InferResponse(request.model, request.inputs, request.id)
        self._reply(None if error is not None else response, error)


class ManualInference:
    """Holds requests; `at_once` is called for each first and may answer it."""

    def __init__(self, max_in_flight: int = 0) -> None:
        self.max_in_flight = max_in_flight
        self.requests: list[Held] = []
        self.at_once: Callable[[Held], None] = lambda held: None

    @property
    def open(self) -> list[Held]:
        """Those that are neither answered nor cancelled."""
        return [held for held in self.requests if held.is_open]

    def start(self, request: InferRequest, reply: Reply) -> Held:
        """Begin to serve a request."""
        held = Held(request, reply)
        self.requests.append(held)
        self.at_once(held)
        return held


class _Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.has_closed = False

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def can_write_eof(self) -> bool:
        return False

    @override
    def is_closing(self) -> bool:
        return self.has_closed

    @override
    def close(self) -> None:
        self.has_closed = True


class Line:
    """One call of one client, whose bytes are carried by hand.

    Attributes:
        answers: what the client has got.
        ended: how the call ended; None while it is open.
        is_deaf: the client does not read, and so gives no credit.
    """

    def __init__(
        self,
        inference: ManualInference,
        limits: GrpcLimits | None = None,
        client_limits: GrpcLimits | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.server = GrpcServer(
            {},
            limits or GrpcLimits(),
            self.clock,
            streams={PATH: partial(self._begin, inference)},
        )
        self._connection, self._pipe = Connection(self.server), _Pipe()
        self._connection.connection_made(self._pipe)
        self.client = GrpcClientConnection("localhost:1", client_limits)
        self.answers: list[StreamAnswer] = []
        self.ended: RpcEnded | None = None
        self.is_deaf = False
        self._later: list[Callable[[], None]] = []
        self.stream_id = self.client.start(PATH, None, timeout_s, streaming=True)
        self.settle()

    def _begin(self, inference: ManualInference, rpc: StreamingRpc) -> None:
        InferStream(rpc, inference, self.clock, lambda function: self._later.append(function))

    def send(
        self, number: int, parameters: dict[str, Parameter] | None = None, nbytes: int = 4
    ) -> None:
        """One request with its number as id; nothing is carried yet."""
        values = np.full(nbytes // 4, number, np.float32)
        self.send_raw(
            codec.encode_infer_request(
                InferRequest("m", {"x": values}, id=str(number), parameters=parameters or {})
            )
        )

    def send_raw(self, message: bytes) -> None:
        """Any message."""
        self.client.send(self.stream_id, message)

    def half_close(self) -> None:
        """The client has no more."""
        self.client.half_close(self.stream_id)

    def cancel(self) -> None:
        """The client gives the call up."""
        self.client.cancel(self.stream_id)

    def drain(self) -> None:
        """The server leaves."""
        self._connection.drain()

    def lose(self) -> None:
        """The client is killed."""
        self._connection.connection_lost(None)

    def settle(self) -> None:
        """Carry bytes both ways until both ends are silent."""
        while True:
            self.server.flush()
            up = self.carry_up()
            down = b""
            if not self.is_deaf:
                down, self._pipe.data = self._pipe.data, b""
            self._take(down)
            later, self._later = self._later, []
            for function in later:
                function()
            if not (up or down or later):
                return

    def carry_up(self) -> bytes:
        """Carry what the client has to say, as far as one read goes."""
        up = self.client.take_output(_READ_BYTES)
        if up and not self._pipe.has_closed:
            self._connection.get_buffer(-1)[: len(up)] = up
            self._connection.buffer_updated(len(up))
        return up

    def _take(self, down: bytes) -> None:
        for event in self.client.receive(down):
            if isinstance(event, MessageReceived):
                self.answers.append(decode_stream_answer(event.message))
            elif isinstance(event, RpcEnded):
                assert self.ended is None, "a call ends once"
                self.ended = event
