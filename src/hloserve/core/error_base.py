"""The root of all errors, and the codes that decide their statuses.

What lives here: what `hloserve.core.errors` is built on, and gives out again; everybody imports it
from there.
"""

from enum import Enum

__all__ = ["Code", "HloserveError"]


class Code(Enum):
    """Canonical status codes; values are gRPC's names."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"


class HloserveError(Exception):
    """Root of the tree.

    Attributes:
        code: decides the status. Fixed per class, but for `SubCallFailed`, which passes one on.
        retryable: the same call may succeed unchanged; fixed likewise.
    """

    code: Code = Code.INTERNAL
    retryable: bool = False
