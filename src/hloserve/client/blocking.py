"""The blocking client.

What lives here: `Client`: inference and the pool of connections. What does not: the other calls
(`hloserve.client.server_calls`), sockets (`hloserve.client.connection`), bytes
(`hloserve.wire`). Any number of threads may share one client: each call borrows a connection of its
own from a pool that grows with the number of calls at once, so threads never wait for each other.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from hloserve.client.address import asks_for_tls, parse_address
from hloserve.client.connection import Connection, deadline_of, remaining_s
from hloserve.client.control import ControlCalls
from hloserve.client.failures import failure_of
from hloserve.client.requests import build_request, check_size
from hloserve.client.server_calls import ServerCalls
from hloserve.client.shared_memory import (
    SharedArray,
    SharedMemory,
    call_registered,
    collect_outputs,
)
from hloserve.client.streaming import InferStream
from hloserve.core.errors import (
    BadRequest,
    DeadlineExceeded,
    HloserveError,
    NotPossibleNow,
)
from hloserve.core.requests import Parameter, RegionStatus
from hloserve.core.tensors import Tensors
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_shared_memory as shared_memory_codec
from hloserve.wire.control_protobuf import CONTROL_SERVICE
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_limits import GrpcLimits

if TYPE_CHECKING:
    import ssl

__all__ = ["Client"]

T = TypeVar("T")

_SERVICE = "/inference.GRPCInferenceService/"
_MAX_MESSAGE_BYTES = 512 * 1024 * 1024
_MAX_IDLE_CONNECTIONS = 64
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class Client(ServerCalls):
    """Talk to a V2 server over gRPC, one blocking call at a time per thread.

    Nothing is connected before the first call; a connection that was lost is made anew by the next
    call. Close the client, or use it as a context manager.

    Args:
        address: ``host:port`` of the server's gRPC listener; IPv6 in brackets.
        timeout_s: how long a call may take, from its start to its answer, unless it says
            otherwise. Sent to the server as the call's deadline. None for no limit.
        connect_timeout_s: how long connecting may take, within the call's time.
        max_message_bytes: the largest request to send and answer to accept.
        token: sent with every call as ``authorization: Bearer TOKEN``.
        tls: whom to trust and what to show, e.g. ``ssl.create_default_context(cafile="ca.pem")``;
            its ALPN is set to h2. Left out, an address with ``grpcs://`` gets the default context,
            and any other no TLS.

    Raises:
        BadRequest: the address or a number cannot be used.

    Threading: any thread, any number at once. Not across `os.fork`.

    Example:
        >>> import numpy as np
        >>> from hloserve import Client
        >>> with Client("localhost:8001") as client:  # doctest: +SKIP
        ...     outputs = client.infer("digits", {"image": np.zeros((1, 8, 8), np.uint8)})
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = 60.0,
        connect_timeout_s: float = 5.0,
        max_message_bytes: int = _MAX_MESSAGE_BYTES,
        token: str | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self._address = parse_address(address)
        self._tls = _tls_of(address, tls)
        self._token = _check_token(token)
        _check_timeout("timeout_s", timeout_s)
        _check_timeout("connect_timeout_s", connect_timeout_s)
        if max_message_bytes <= 0:
            raise BadRequest(f"max_message_bytes is {max_message_bytes}; it must be above 0")
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._limits = GrpcLimits(
            max_recv_msg_bytes=max_message_bytes, max_send_msg_bytes=max_message_bytes
        )
        self._lock = threading.Lock()  # guards the two below; never held while waiting
        self._idle: list[Connection] = []
        self._is_closed = False

    @property
    def address(self) -> str:
        """The server's address as ``host:port``."""
        return str(self._address)

    @property
    def control(self) -> ControlCalls:
        """The calls by which a server's device is watched and operated."""
        return ControlCalls(partial(self._call, service=f"/{CONTROL_SERVICE}/"), self._read)

    def infer(  # noqa: PLR0913  # keywords with defaults, one for each part of a request
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike | SharedArray],
        *,
        outputs: Sequence[str] | None = None,
        into: Mapping[str, SharedArray] | None = None,
        classes: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
        parameters: Mapping[str, Parameter | np.generic] | None = None,
    ) -> Tensors:
        """Run a model once.

        Args:
            model: served name.
            inputs: by name, in numpy order. What is no array is made one by `numpy.asarray`, so a
                list of Python floats becomes float64: give arrays of the model's dtype. Any memory
                layout and byte order will do. BYTES takes text and bytes, in lists or in arrays.
            outputs: names of those to return, in that order; all by default, or those of `into` and
                `classes`.
            into: outputs that the server shall write into shared memory, by name.
            classes: how many of its highest classes shall come instead of an output, by name. They
                come as `bytes`: ``value:index``, or ``value:index:label`` where the bundle has
                labels; shape (rows, classes), the highest first.
            timeout_s: instead of the client's.
            request_id: echoed by the server and in its log.
            parameters: request parameters of the V2 protocol.

        Returns:
            The outputs by name, in the order of the answer. They are read-only views of the
            answer; copy one to change it. BF16 comes as `ml_dtypes.bfloat16`. Those of `into` are
            views of the shared memory, of the shape that they have this time.

        Raises:
            BadRequest: the server, or this client, refuses the request; the message says why.
            ModelNotFound: nothing of that name is served there.
            Overloaded: the server has too much to do. Retryable.
            DeadlineExceeded: no answer in time.
            Unavailable: nobody answers, or the connection was lost. Retryable.
            HloserveError: anything else that went wrong in the server.
        """
        places = into or {}
        request = build_request(
            model,
            inputs,
            outputs=outputs,
            into=places,
            classes=classes,
            request_id=request_id,
            parameters=parameters,
        )
        body = codec.encode_infer_request(request)

        def call() -> Message:
            return self._call("ModelInfer", body, model, timeout_s)

        answer = call() if request.shared is None else call_registered(call, inputs, places)
        response = self._read(codec.decode_infer_response, answer)
        if request.shared is None:
            return response.outputs
        return collect_outputs(response, places, request.outputs)

    def stream(self, *, timeout_s: float | None = None) -> InferStream:
        """Open a stream of requests, for many of them from one thread.

        It has a connection of its own until the end of its block.

        Args:
            timeout_s: how long the stream as a whole may take; any time when left out. Without a
                sign of life for the client's own time, waiting for a result ends as well.

        Raises:
            Unavailable: nobody answers. Retryable.

        Example:
            >>> import numpy as np
            >>> from hloserve import Client
            >>> client = Client("localhost:8001")
            >>> with client.stream() as stream:  # doctest: +SKIP
            ...     for image in np.zeros((1000, 1, 8, 8), np.uint8):
            ...         stream.send("digits", {"image": image})
            ...     for result in stream:
            ...         print(result.request_id, result.outputs["digit"])
        """
        _check_timeout("timeout_s", timeout_s)
        deadline_ns = deadline_of(timeout_s)
        connection = self._borrow(deadline_ns)
        try:
            return InferStream(
                connection,
                address=self.address,
                deadline_ns=deadline_ns,
                patience_s=self._timeout_s,
                max_message_bytes=self._limits.max_send_msg_bytes,
                give_back=self._give_back,
            )
        except BaseException:
            connection.close()
            raise

    def shared_memory(self, nbytes: int, *, mode: int = 0o600) -> SharedMemory:
        """Make memory that the server sees too, and register it there.

        The server must be on this machine, and have `shared_memory.enabled`.

        Args:
            nbytes: its size; arrays in it begin at multiples of 64.
            mode: permissions of the object; a server that runs as another user must be able to
                read and write it, and so will all whom this lets.

        Raises:
            NotPossibleNow: the server has it not enabled, or there is no room.
            BadRequest: the server does not see it.
        """
        return SharedMemory(self._call, nbytes, mode)

    def shared_memory_status(self) -> tuple[RegionStatus, ...]:
        """The regions of shared memory that clients registered with the server, whoever they are.

        Raises:
            NotPossibleNow: the server has shared memory not enabled.
        """
        answer = self._call("SystemSharedMemoryStatus")
        return self._read(shared_memory_codec.decode_status_response, answer)

    def close(self) -> None:
        """Close the connections that no call uses; others are closed when their call ends."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @override
    def _read(self, decode: Callable[[Message], T], answer: Message) -> T:
        """Decode an answer; one that cannot be read is the server's fault, not the caller's."""
        try:
            return decode(answer)
        except BadRequest as error:
            raise HloserveError(f"the answer of {self._address} cannot be read: {error}") from error

    @override
    def _call(
        self,
        method: str,
        body: bytes = b"",
        model: str = "",
        timeout_s: float | None = None,
        service: str = _SERVICE,
    ) -> Message:
        """Make one call; again when the server certainly did not look at it."""
        check_size(body, self._limits.max_send_msg_bytes)
        _check_timeout("timeout_s", timeout_s)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_ns = deadline_of(limit_s)
        may_repeat = True
        while True:
            connection = self._borrow(deadline_ns)
            ended = connection.call(service + method, body, deadline_ns)
            self._give_back(connection)
            if ended is None:
                error = DeadlineExceeded(model)
                error.args = (f"{method} at {self._address}: no answer within {limit_s:g} s",)
                raise error
            if ended.message is not None:
                return ended.message
            if not (ended.was_refused and may_repeat):
                raise failure_of(ended, model, self.address)
            may_repeat = False

    def _borrow(self, deadline_ns: int) -> Connection:
        """A connection that takes a call: an idle one, or a new one."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise NotPossibleNow("this client is closed; make a new one")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                left_s = remaining_s(deadline_ns)
                wait_s = self._connect_timeout_s
                wait_s = wait_s if left_s is None else max(min(wait_s, left_s), 1e-3)
                return Connection.open(
                    self._address, wait_s, self._limits, token=self._token, tls=self._tls
                )
            if connection.is_usable():
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            has_room = not self._is_closed and len(self._idle) < _MAX_IDLE_CONNECTIONS
            if has_room and not connection.is_closed:
                self._idle.append(connection)
                return
        connection.close()


def _tls_of(address: str, tls: "ssl.SSLContext | None") -> "ssl.SSLContext | None":
    wanted = asks_for_tls(address)
    if tls is not None and wanted is False:
        raise BadRequest(f"address {address!r} says no TLS, and tls= is given; write grpcs://")
    if tls is None and wanted:
        from hloserve.client.tls import build_context

        return build_context()
    return tls


def _check_token(token: str | None) -> str | None:
    if token is not None and _TOKEN.fullmatch(token) is None:  # it is not shown
        raise BadRequest("the token is not a word of letters, digits and -._~+/ with = at its end")
    return token


def _check_timeout(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise BadRequest(f"{name} is {value}; it must be above 0")
