"""The status of every error on both transports: one table.

What lives here: `Code` to gRPC number and HTTP status, and what an error may say to a caller.
What does not: the errors (`hloserve.core.errors`). Pure data; any thread.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hloserve.core.causes import causes
from hloserve.core.errors import (
    BackendFailed,
    BodyTooLarge,
    Code,
    HloserveError,
    PermissionDenied,
    Unauthenticated,
    UnsupportedMedia,
)

__all__ = [
    "GRPC_CODES",
    "GRPC_OK",
    "STATUS",
    "Status",
    "challenge_headers",
    "code_of",
    "forget_frames",
    "grpc_code",
    "grpc_name",
    "http_status",
    "public_text",
]

GRPC_OK = 0


class Status(NamedTuple):
    """One code on the wire: gRPC's number and HTTP's status."""

    grpc: int
    http: int


STATUS: Mapping[Code, Status] = {
    Code.INVALID_ARGUMENT: Status(grpc=3, http=400),
    Code.NOT_FOUND: Status(grpc=5, http=404),
    Code.UNIMPLEMENTED: Status(grpc=12, http=501),
    Code.FAILED_PRECONDITION: Status(grpc=9, http=400),
    Code.RESOURCE_EXHAUSTED: Status(grpc=8, http=429),
    Code.DEADLINE_EXCEEDED: Status(grpc=4, http=504),
    Code.CANCELLED: Status(grpc=1, http=499),
    Code.UNAVAILABLE: Status(grpc=14, http=503),
    Code.INTERNAL: Status(grpc=13, http=500),
    Code.UNAUTHENTICATED: Status(grpc=16, http=401),
    Code.PERMISSION_DENIED: Status(grpc=7, http=403),
}

GRPC_CODES: Mapping[int, str] = dict(
    enumerate(
        (
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        )
    )
)
"""Every gRPC status by number: a peer may send codes that this server never does."""

_MOST_CHARACTERS = 4096

_BY_GRPC: Mapping[int, Code] = {status.grpc: code for code, status in STATUS.items()}


def grpc_code(code: Code) -> int:
    """The number in `grpc-status`."""
    return STATUS[code].grpc


def grpc_name(number: int) -> str:
    """The name of a `grpc-status` number; a number that gRPC does not define is UNKNOWN."""
    return GRPC_CODES.get(number, "UNKNOWN")


def code_of(number: int) -> Code | None:
    """Our code for a `grpc-status` number; None for OK and for codes that we do not have."""
    return _BY_GRPC.get(number)


def http_status(error: HloserveError) -> int:
    """The HTTP status of an error: its code's, but for the two that HTTP has its own words for."""
    if isinstance(error, BodyTooLarge):
        return 413
    if isinstance(error, UnsupportedMedia):
        return 415
    return STATUS[error.code].http


def challenge_headers(error: HloserveError) -> Sequence[tuple[str, str]]:
    """What HTTP wants beside 401 and 403; nothing for other errors. Source: RFC 6750 section 3."""
    if isinstance(error, Unauthenticated):
        fault = ', error="invalid_token"' if error.has_token else ""
    elif isinstance(error, PermissionDenied):
        fault = f', error="insufficient_scope", scope="{error.scope}"'
    else:
        return ()
    return (("WWW-Authenticate", f'Bearer realm="hloserve"{fault}'),)


def public_text(error: BaseException, request_id: str) -> str:
    """What the caller is told: the message, or for an internal error only where to look it up.

    A message is cut to 4096 characters: it may name what the caller sent, which may be long.

    Args:
        error: anything that ended a request.
        request_id: the id under which the traceback is logged; used for internal errors alone.
    """
    if isinstance(error, HloserveError) and error.code is not Code.INTERNAL:
        text = str(error)
        return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return f"internal error, request id {request_id}"


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that has been answered, and of its causes.

    A frame with a variable that leads to its own error is a cycle: the tensors of a request that
    was refused, and what a hook had in hand when it failed, stayed until the collector's next
    round, which thousands of requests can come before. An internal error has been logged by now.
    `BackendFailed` keeps its own, as those who shared a batch log the same one.
    """
    for each in causes(error):
        if isinstance(each, BackendFailed):
            break
        each.__traceback__ = None
