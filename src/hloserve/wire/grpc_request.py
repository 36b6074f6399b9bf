"""What a request's headers say, or how they are refused.

What lives here: the one look at the headers of a call. What does not: messages
(`hloserve.wire.grpc_framing`) and the connection (`hloserve.wire.grpc_server`). Pure; any thread.

Source: gRPC over HTTP2, "Requests".
"""

from collections.abc import Container, Mapping
from hmac import compare_digest
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from hloserve.core.errors import HloserveError, NotImplementedYet, Unauthenticated
from hloserve.wire.grpc_headers import (
    NO_TIMEOUT,
    Header,
    Headers,
    error_headers,
    parse_timeout_ns,
)
from hloserve.wire.status import grpc_code

__all__ = [
    "CallGuard",
    "GuardedHeadReader",
    "HeadReader",
    "NotGrpc",
    "RequestHead",
    "path_and_token",
    "refusal_of",
]

M = TypeVar("M")

_GRPC_TYPE: Final = b"application/grpc"
_GRPC_SUBTYPES: Final = (b"application/grpc+", b"application/grpc;")
_TIMEOUT: Final = b"grpc-timeout"
_AUTHORIZATION: Final = b"authorization"
_NOT_GRPC: Final[list[Header]] = [(b":status", b"415"), (b"content-length", b"0")]
_NOT_POST: Final[list[Header]] = [
    (b":status", b"405"),
    (b"allow", b"POST"),
    (b"content-length", b"0"),
]


class NotGrpc(Exception):
    """An HTTP/2 request that is not gRPC; `headers` is the answer in HTTP's words."""

    def __init__(self, headers: list[Header]) -> None:
        self.headers = headers
        super().__init__("not a gRPC request")


class RequestHead(NamedTuple, Generic[M]):
    """The headers of a call, read, but for the timeout."""

    method: M
    has_coding: bool
    is_streaming: bool


class HeadReader(Generic[M]):
    """Reads the headers of the calls of one connection.

    A client sends the same headers with every call, perhaps with another timeout: they are
    compared with the last ones, which takes a fifth of the time of reading them.

    Args:
        methods: path to whatever the caller wants to get.
        streaming: the paths of streaming methods.
    """

    __slots__ = ("_after", "_before", "_head", "_methods", "_streaming", "_timeout_at")

    def __init__(self, methods: Mapping[bytes, M], streaming: Container[bytes]) -> None:
        self._methods = methods
        self._streaming = streaming
        self._head: RequestHead[M] | None = None
        self._timeout_at = 0
        self._before: Headers = ()
        self._after: Headers = ()

    def read(self, headers: Headers) -> tuple[RequestHead[M], int, Headers]:
        """The head, the timeout in nanoseconds, `NO_TIMEOUT` without one, and the headers.

        The headers that come back are those of an earlier call if they are equal: one object for
        all calls in progress, instead of some twenty for each.

        Raises:
            NotGrpc: it is some other HTTP/2 request.
            BadRequest: the timeout cannot be read.
            NotImplementedYet: the method or the encoding is unknown.
        """
        head, at = self._head, self._timeout_at
        if head is not None and headers[:at] == self._before and headers[at + 1 :] == self._after:
            if at == len(headers):
                return head, NO_TIMEOUT, self._before
            name, value = headers[at]
            if name == _TIMEOUT:
                return head, parse_timeout_ns(value), headers
        return self._read_anew(headers)

    def _read_anew(self, headers: Headers) -> tuple[RequestHead[M], int, Headers]:
        fields = dict(headers)
        if fields.get(b":method") != b"POST":
            raise NotGrpc(_NOT_POST)
        content_type = fields.get(b"content-type", b"")
        if content_type != _GRPC_TYPE and not content_type.startswith(_GRPC_SUBTYPES):
            raise NotGrpc(_NOT_GRPC)
        path = fields.get(b":path", b"")
        method = self._methods.get(path)
        if method is None:
            raise NotImplementedYet(f"method {path[:200].decode('ascii', 'replace')}")
        timeout = fields.get(_TIMEOUT)
        timeout_ns = NO_TIMEOUT if timeout is None else parse_timeout_ns(timeout)
        has_coding = _is_coding(fields.get(b"grpc-encoding", b"identity"))
        head = RequestHead(method, has_coding, path in self._streaming)
        names = [name for name, _ in headers]
        at = len(names) if timeout is None else names.index(_TIMEOUT)
        self._head, self._timeout_at = head, at
        self._before, self._after = headers[:at], headers[at + 1 :]
        return head, timeout_ns, headers


class CallGuard(Protocol):
    """Says who may make which call.

    Attributes:
        rules: another object whenever earlier answers no longer hold.
    """

    @property
    def rules(self) -> object: ...

    def check(self, path: bytes, header: bytes | None) -> bool:
        """Look at the path of a call and its `authorization` header.

        Returns:
            True when calls with equal headers need not be looked at.

        Raises:
            HloserveError: the call may not be made; the error is its answer.
        """
        ...


class GuardedHeadReader(HeadReader[M]):
    """A reader of the headers of calls that somebody must allow.

    Calls with equal headers are looked at once, until the rules change. Tokens are compared in
    constant time before the rest is, because a proxy may bring callers together on a connection.
    """

    __slots__ = ("_guard", "_rules", "_token", "_token_at")

    def __init__(
        self, methods: Mapping[bytes, M], streaming: Container[bytes], guard: CallGuard
    ) -> None:
        super().__init__(methods, streaming)
        self._guard = guard
        self._rules: object = None
        self._token: bytes | None = None
        self._token_at = 0

    @override
    def read(self, headers: Headers) -> tuple[RequestHead[M], int, Headers]:
        token, at = self._token, self._token_at
        if self._guard.rules is not self._rules or (
            token is not None and not (at < len(headers) and compare_digest(headers[at][1], token))
        ):
            self._head = None
        return HeadReader.read(self, headers)

    @override
    def _read_anew(self, headers: Headers) -> tuple[RequestHead[M], int, Headers]:
        found = super()._read_anew(headers)
        head, self._head = self._head, None  # remembered only when it is allowed
        rules = self._guard.rules
        path, token, at = b"", None, 0
        for index, (name, value) in enumerate(headers):
            if name == b":path":
                path = value
            elif name == _AUTHORIZATION:
                if token is not None:
                    raise Unauthenticated(
                        "the header `authorization` is given twice", has_token=True
                    )
                token, at = value, index
        if self._guard.check(path, token):
            self._head, self._rules, self._token, self._token_at = head, rules, token, at
        return found


def path_and_token(headers: Headers) -> tuple[bytes, bytes | None]:
    """What a guard looks at in the headers of a call that was let in."""
    fields = dict(headers)
    return fields.get(b":path", b""), fields.get(_AUTHORIZATION)


def refusal_of(error: HloserveError) -> list[Header]:
    """The header block that answers a call with an error."""
    return error_headers(grpc_code(error.code), str(error))


def _is_coding(encoding: bytes) -> bool:
    """True for gzip and deflate, False for identity.

    Raises:
        NotImplementedYet: any other; the answer's grpc-accept-encoding lists ours.
    """
    if encoding == b"identity":
        return False
    if encoding in (b"gzip", b"deflate"):
        return True
    raise NotImplementedYet(f"grpc-encoding {encoding[:40].decode('ascii', 'replace')!r}")
