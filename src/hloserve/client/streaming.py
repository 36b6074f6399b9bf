"""Many requests over one call of `ModelStreamInfer`, for bulk work from one thread.

What lives here: `InferStream` and what it gives back. What does not: where its connection comes
from (`hloserve.client.blocking`) and sockets (`hloserve.client.connection`). A stream belongs to
one thread at a time, like the connection that it has for itself.

Rules.
1. Answers come in the order of the requests, which is how an error without an id is told from
   others.
2. Sending waits only while more than `_MOST_UNSENT_BYTES` are not out, and takes answers
   meanwhile, so that a server that waits for its answers to be read cannot hold it up for ever.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hloserve.client.connection import Connection, deadline_of
from hloserve.client.failures import error_of, failure_of
from hloserve.client.requests import build_request, check_size
from hloserve.client.shared_memory import SharedArray
from hloserve.core.errors import BadRequest, DeadlineExceeded, HloserveError, NotPossibleNow
from hloserve.core.requests import Parameter
from hloserve.core.tensors import Tensors
from hloserve.wire import v2_protobuf as codec
from hloserve.wire.grpc_events import MessageReceived, RpcEnded
from hloserve.wire.grpc_framing import Message
from hloserve.wire.v2_protobuf_stream import decode_stream_answer

__all__ = ["InferStream", "StreamResult"]

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

_MOST_UNSENT_BYTES = 1 << 20
_GOODBYE_S = 5.0
"""A stream that has all its results waits so long for its end, to use the connection again."""


class StreamResult:
    """What became of one request of a stream.

    Attributes:
        request_id: of the request.
        error: why there are no outputs; None when there are.
    """

    __slots__ = ("_outputs", "error", "request_id")

    def __init__(self, request_id: str, outputs: Tensors, error: HloserveError | None) -> None:
        self.request_id = request_id
        self.error = error
        self._outputs = outputs

    @property
    def outputs(self) -> Tensors:
        """The outputs by name, as of `Client.infer`.

        Raises:
            HloserveError: `error`, if there is one.
        """
        if self.error is not None:
            raise self.error
        return self._outputs


class InferStream:
    """One stream of requests; `Client.stream` makes it, and its block ends it.

    Iterating gives the results of all requests that have none yet, in order, and ends when every
    request has its result; then more can be sent.

    Attributes:
        unanswered: requests whose results have not come yet.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        address: str,
        deadline_ns: int,
        patience_s: float | None,
        max_message_bytes: int,
        give_back: Callable[[Connection], None],
    ) -> None:
        self._connection = connection
        self._address = address
        self._deadline_ns = deadline_ns
        self._patience_s = patience_s
        self._max_message_bytes = max_message_bytes
        self._give_back = give_back
        self._sent: deque[tuple[str, str]] = deque()  # id and model of those without an answer
        self._answers: deque[StreamResult] = deque()
        self._count = 0
        self._ended: RpcEnded | None = None
        self._is_closed = False
        self._is_broken = False  # the server does not keep to the protocol
        self._stream_id = connection.begin(PATH, deadline_ns)

    @property
    def unanswered(self) -> int:
        """Requests whose results have not come yet."""
        return len(self._sent)

    def send(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike | SharedArray],
        *,
        outputs: Sequence[str] | None = None,
        classes: Mapping[str, int] | None = None,
        request_id: str = "",
        parameters: Mapping[str, Parameter | np.generic] | None = None,
    ) -> str:
        """Send one request; returns its id, which is its number when none is given.

        Results that come meanwhile wait in memory until they are iterated over.

        Args:
            model: served name.
            inputs: as for `Client.infer`.
            outputs: names of those to return; all by default, or those of `classes`.
            classes: as for `Client.infer`.
            request_id: comes back with the result.
            parameters: request parameters of the V2 protocol.

        Raises:
            BadRequest: this client refuses the request.
            Unavailable: the server is leaving, or the connection was lost. Retryable, on a new
                stream, for the requests that have no result.
            DeadlineExceeded: the stream's time is over.
        """
        if self._is_closed:
            raise NotPossibleNow("this stream is closed; make a new one")
        request_id = request_id or str(self._count)
        request = build_request(
            model,
            inputs,
            outputs=outputs,
            into={},
            classes=classes,
            request_id=request_id,
            parameters=parameters,
        )
        body = codec.encode_infer_request(request)
        check_size(body, self._max_message_bytes)
        self._check_open()
        self._count += 1
        self._sent.append((request_id, model))
        self._connection.send(self._stream_id, body)
        while self._ended is None and self._connection.unsent_bytes > _MOST_UNSENT_BYTES:
            self._turn(self._patience_s)
        return request_id

    def __iter__(self) -> Iterator[StreamResult]:
        """The results that are due; see the class.

        Raises:
            Unavailable, DeadlineExceeded, HloserveError: the stream has ended before.
        """
        while self._answers or self._sent:
            while not self._answers:
                self._check_open()
                self._turn(self._patience_s)
            yield self._answers.popleft()

    def close(self) -> None:
        """End the stream; requests without a result are given up. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ended is None:
            if self._sent or self._is_broken:
                self._connection.cancel(self._stream_id)
            else:
                self._connection.half_close(self._stream_id)
                try:
                    while self._ended is None:
                        self._turn(_GOODBYE_S)
                except HloserveError:  # everything has its result already
                    self._connection.close()
        self._give_back(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        ended = self._ended
        if ended is None:
            return
        if ended.code:
            raise failure_of(ended, "", self._address)
        raise HloserveError(f"{self._address} ended the stream with {self.unanswered} unanswered")

    def _turn(self, patience_s: float | None) -> None:
        """Wait until something can be sent or has come, and do that."""
        deadline_ns = min(self._deadline_ns, deadline_of(patience_s))
        events = self._connection.exchange(deadline_ns)
        if events is None:
            error = DeadlineExceeded(self._sent[0][1] if self._sent else "")
            what = "in the stream's time" if deadline_ns == self._deadline_ns else "in time"
            error.args = (f"stream to {self._address}: no answer {what}",)
            raise error
        for event in events:
            if type(event) is MessageReceived and event.stream_id == self._stream_id:
                self._take(event.message)
            elif type(event) is RpcEnded and event.stream_id == self._stream_id:
                self._ended = event

    def _take(self, message: Message) -> None:
        try:
            answer = decode_stream_answer(message)
        except BadRequest as error:
            self._is_broken = True
            raise HloserveError(f"an answer of {self._address} cannot be read: {error}") from error
        if not self._sent:
            self._is_broken = True
            raise HloserveError(f"{self._address} sent an answer that nobody asked for")
        request_id, model = self._sent.popleft()
        request_id = answer.id or request_id
        if answer.response is None:
            failure = error_of(answer.code, model, answer.text)
            self._answers.append(StreamResult(request_id, {}, failure))
        else:
            self._answers.append(StreamResult(request_id, answer.response.outputs, None))
