"""What a request's headers say, or how they are refused.

What lives here: the one look at the headers of a call. What does not: messages
(`hloserve.wire.grpc_framing`) and the connection (`hloserve.wire.grpc_server`). Pure; any thread.

Source: gRPC over HTTP2, "Requests".
"""

from collections.abc import Container, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from hloserve.core.errors import HloserveError, NotImplementedYet
from hloserve.wire.grpc_headers import (
    NO_TIMEOUT,
    Header,
    Headers,
    error_headers,
    parse_timeout_ns,
)
from hloserve.wire.status import grpc_code

__all__ = ["RequestHead", "read_head", "refusal_of"]

M = TypeVar("M")

_GRPC_TYPE: Final = b"application/grpc"
_GRPC_SUBTYPES: Final = (b"application/grpc+", b"application/grpc;")
_NOT_GRPC: Final[list[Header]] = [(b":status", b"415"), (b"content-length", b"0")]
_NOT_POST: Final[list[Header]] = [
    (b":status", b"405"),
    (b"allow", b"POST"),
    (b"content-length", b"0"),
]


class RequestHead(NamedTuple, Generic[M]):
    """The headers of a call, read."""

    method: M
    timeout_ns: int
    has_gzip: bool
    is_streaming: bool


def read_head(
    headers: Headers, methods: Mapping[bytes, M], streaming: Container[bytes]
) -> RequestHead[M] | list[Header]:
    """Read the headers of a request; a list is the header block that refuses it."""
    fields = dict(headers)
    if fields.get(b":method") != b"POST":
        return _NOT_POST
    content_type = fields.get(b"content-type", b"")
    if content_type != _GRPC_TYPE and not content_type.startswith(_GRPC_SUBTYPES):
        return _NOT_GRPC
    path = fields.get(b":path", b"")
    method = methods.get(path)
    timeout = fields.get(b"grpc-timeout")
    try:
        if method is None:
            raise NotImplementedYet(f"method {path[:200].decode('ascii', 'replace')}")
        timeout_ns = NO_TIMEOUT if timeout is None else parse_timeout_ns(timeout)
        has_gzip = _is_gzip(fields.get(b"grpc-encoding", b"identity"))
    except HloserveError as error:
        return refusal_of(error)
    return RequestHead(method, timeout_ns, has_gzip, path in streaming)


def refusal_of(error: HloserveError) -> list[Header]:
    """The header block that answers a call with an error."""
    return error_headers(grpc_code(error.code), str(error))


def _is_gzip(encoding: bytes) -> bool:
    """True for gzip, False for identity.

    Raises:
        NotImplementedYet: any other; the answer's grpc-accept-encoding lists ours.
    """
    if encoding == b"identity":
        return False
    if encoding == b"gzip":
        return True
    raise NotImplementedYet(f"grpc-encoding {encoding[:40].decode('ascii', 'replace')!r}")
