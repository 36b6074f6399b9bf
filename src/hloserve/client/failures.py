"""How a failed call comes back to the caller: the same error types as in the server.

What lives here: one table from gRPC's status to `hloserve.core.errors`. What does not: the
statuses' numbers (`hloserve.wire.status`). Pure functions; any thread.

Rules.
1. The message of the server is kept word for word.
2. A type is chosen by code alone, so a subclass of the server's (`QueueFull`) comes back as its
   base (`Overloaded`).
"""

from collections.abc import Callable, Mapping

from hloserve.core.errors import (
    BadRequest,
    BodyTooLarge,
    Cancelled,
    Code,
    DeadlineExceeded,
    HloserveError,
    ModelNotFound,
    NotImplementedYet,
    NotPossibleNow,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from hloserve.wire.grpc_events import RpcEnded
from hloserve.wire.status import code_of, grpc_name

__all__ = ["error_of", "failure_of"]

_MAKERS: Mapping[Code, Callable[[str, str], HloserveError]] = {
    Code.INVALID_ARGUMENT: lambda model, text: BadRequest(text),
    Code.NOT_FOUND: lambda model, text: ModelNotFound(model),
    Code.UNIMPLEMENTED: lambda model, text: NotImplementedYet(text),
    Code.FAILED_PRECONDITION: lambda model, text: NotPossibleNow(text),
    Code.RESOURCE_EXHAUSTED: lambda model, text: Overloaded(text),
    Code.DEADLINE_EXCEEDED: lambda model, text: DeadlineExceeded(model),
    Code.CANCELLED: lambda model, text: Cancelled(model),
    Code.UNAVAILABLE: lambda model, text: Unavailable(text),
    Code.INTERNAL: lambda model, text: HloserveError(text),
    Code.UNAUTHENTICATED: lambda model, text: Unauthenticated(text, has_token=False),
    Code.PERMISSION_DENIED: lambda model, text: PermissionDenied("", ""),
}


def error_of(code: Code | None, model: str, text: str) -> HloserveError:
    """Make the error of a code, with the server's words; None stands for one that is not known."""
    error = HloserveError(text) if code is None else _MAKERS[code](model, text)
    error.args = (text,)  # types with fields make a message of their own
    return error


def failure_of(ended: RpcEnded, model: str, address: str) -> HloserveError:
    """Make the error of a call that did not end well.

    Args:
        ended: how it ended; its code is not OK.
        model: which model the call was about; may be empty.
        address: the server's, for faults that the server did not tell of itself.
    """
    if isinstance(ended.error, BodyTooLarge):
        error: HloserveError = ended.error
        size = "" if ended.error.got_bytes is None else f" of {ended.error.got_bytes} bytes"
        text = (
            f"the answer{size} is over this client's limit of {ended.error.limit_bytes} bytes;"
            " raise max_message_bytes, or ask for fewer rows or outputs"
        )
    else:
        code = code_of(ended.code)
        text = ended.text or f"the server at {address} gave no reason"
        if code is None:
            code, text = Code.INTERNAL, f"{grpc_name(ended.code)}: {text}"
        if not ended.trailers:
            text = f"{text} (server {address})"
        return error_of(code, model, text)
    error.args = (text,)  # types with fields make a message of their own
    return error
