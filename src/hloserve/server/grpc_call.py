"""The one gRPC call that a handler sees.

What lives here: answering, failing, cancelling a call. What does not: streaming calls
(`hloserve.server.grpc_stream`), connections and sockets (`hloserve.server.grpc_connection`). Loop
thread.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from hloserve.core.errors import Code, HloserveError
from hloserve.core.logging import log_event
from hloserve.wire.grpc_events import RpcReceived
from hloserve.wire.grpc_framing import Message, PackedMessage
from hloserve.wire.grpc_headers import metadata_value
from hloserve.wire.grpc_server import GrpcServerConnection
from hloserve.wire.status import forget_frames, grpc_code, public_text

__all__ = ["Answering", "Handler", "Rpc", "Unpacked", "told"]

log = logging.getLogger(__name__)


Unpacked: TypeAlias = Callable[[Message | None, Exception | None], None]
"""Takes a message that was decompressed, or why it was not; on the loop."""


class Answering(Protocol):
    """What a call needs of its connection."""

    http2: GrpcServerConnection[Any]
    full_streams: list[Any]
    """Streaming calls that are told when what they sent has left."""

    def wrote(self) -> None:
        """There is output to flush."""
        ...

    def unpack(self, message: PackedMessage, then: Unpacked) -> Callable[[], None]:
        """Decompress a message apart from the loop; returns what gives that up."""
        ...


class Rpc(RpcReceived["Handler"]):
    """One call, a unary one if it is no `StreamingRpc`. The connection makes it; a handler gets it.

    Attributes:
        message: the request, without its prefix. A buffer: bytes, bytearray or memoryview.
        headers: all request headers as received.
        deadline_ns: monotonic instant, `NEVER_NS` without a deadline. Nobody enforces it here.
        on_cancel: called once when the caller goes away before the answer.
    """

    __slots__ = ("connection", "deadline_ns", "on_cancel")

    connection: "Answering | None"
    """For the transport: where it came from; None once answered or cancelled."""
    deadline_ns: int
    on_cancel: Callable[[], None] | None

    @property
    def is_over(self) -> bool:
        """True once answered or cancelled."""
        return self.connection is None

    def metadata(self, name: str) -> str | bytes | None:
        """The first value of a request header; bytes for names that end in ``-bin``."""
        return metadata_value(self.headers, name)

    def reply(self, message: Message) -> None:
        """Answer with a message and status OK."""
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.http2.respond(self.stream_id, message)
            connection.wrote()

    def fail(self, error: BaseException) -> None:
        """Answer with the error's status; an internal error is logged under an id."""
        if self.connection is not None:
            self.fail_with(*told(error))

    def fail_with(self, code: Code, text: str) -> None:
        """Answer with a status and a text of its own."""
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.http2.fail(self.stream_id, grpc_code(code), text)
            connection.wrote()

    def cancelled(self) -> None:
        """For the transport: the caller has gone."""
        if self.connection is None:
            return
        self.connection = None
        on_cancel, self.on_cancel = self.on_cancel, None  # it may lead back here, with the message
        if on_cancel is not None:
            on_cancel()


def told(error: BaseException) -> tuple[Code, str]:
    """What a caller is told of an error; an internal one is logged under an id."""
    request_id = ""
    if not isinstance(error, HloserveError) or error.code is Code.INTERNAL:
        request_id = secrets.token_hex(8)
        log_event(log, "internal_error", level=logging.ERROR, error=error, request_id=request_id)
    code = error.code if isinstance(error, HloserveError) else Code.INTERNAL
    forget_frames(error)
    return code, public_text(error, request_id)


Handler: TypeAlias = Callable[[Rpc], None]
