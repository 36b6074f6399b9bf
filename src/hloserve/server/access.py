"""Who may call what: the scope that each call needs, and the checks at the transports' doors.

What lives here: the tables of scopes, and the guards of the three ports. What does not: tokens
(`hloserve.server.tokens`) and where in a request the guards are asked (`wire.http1`,
`wire.grpc_request`). Loop thread, but for `scope_of_*`, which are pure.

Rules.
1. Health needs no token: probes cannot have one. What is not listed needs `admin`, so that a call
   that is forgotten here is closed, not open.
2. A guard looks at the head of a request, before its body is read.
3. A connection remembers its last token that was good, so that the next request with it costs one
   comparison; when tokens change, nothing that was remembered counts.
"""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from hmac import compare_digest
from typing import TypeAlias

from hloserve.core.errors import PermissionDenied, Unauthenticated
from hloserve.core.logging import log_event
from hloserve.server.tokens import Grant, Keyring, Scope, token_of
from hloserve.wire.control_protobuf import CONTROL_SERVICE
from hloserve.wire.http1_messages import parse_target

__all__ = [
    "Access",
    "GrpcGuard",
    "HttpGuard",
    "scope_of_admin",
    "scope_of_call",
    "scope_of_rest",
]

log = logging.getLogger(__name__)

_SERVICE = "/inference.GRPCInferenceService/"
_REFLECTION = "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo"

_CALLS: Mapping[bytes, Scope | None] = {
    path.encode(): scope
    for scope, paths in (
        (
            None,
            (
                _SERVICE + "ServerLive",
                _SERVICE + "ServerReady",
                "/grpc.health.v1.Health/Check",
                "/grpc.health.v1.Health/List",
                "/grpc.health.v1.Health/Watch",
            ),
        ),
        (
            Scope.INFER,
            (
                _SERVICE + "ModelInfer",
                _SERVICE + "ModelStreamInfer",
                _SERVICE + "ModelReady",
                _SERVICE + "ServerMetadata",
                _SERVICE + "ModelMetadata",
                _SERVICE + "ModelConfig",
                _SERVICE + "ModelStatistics",
                _SERVICE + "RepositoryIndex",
                _SERVICE + "IsSameIPCNamespace",
                f"/{CONTROL_SERVICE}/ModelControlStatus",
                _REFLECTION % "v1",
                _REFLECTION % "v1alpha",
            ),
        ),
    )
    for path in paths
}
_OF_MODEL = frozenset(
    {(), ("ready",), ("infer",), ("config",), ("stats",), ("generate",), ("generate_stream",)}
)
_OPEN = frozenset({("v2", "health", "live"), ("v2", "health", "ready"), ("v2", "openapi.json")})
_PROBES = frozenset({("healthz",), ("readyz",)})
_READING = frozenset({"GET", "HEAD"})

ScopeOf: TypeAlias = Callable[[str, bytes], Scope | None]
"""The scope that a method and a target need; None when no token is needed."""


def scope_of_call(path: bytes) -> Scope | None:
    """The scope that a gRPC method needs."""
    return _CALLS.get(path, Scope.ADMIN)


@lru_cache(maxsize=1024)
def scope_of_rest(method: str, target: bytes) -> Scope | None:
    """The scope that a request to the REST port needs.

    What is outside of ``/v2`` there are pages that come with the package.

    Raises:
        MalformedBody: the target cannot be read.
    """
    segments = parse_target(target).segments
    if method in _READING and (segments in _OPEN or segments[:1] != ("v2",)):
        return None
    if segments == ("v2",) or (segments[:2] == ("v2", "repository") and segments[-1] == "index"):
        return Scope.INFER
    if segments[:2] == ("v2", "models"):
        rest = segments[5:] if segments[3:4] == ("versions",) else segments[3:]
        return Scope.INFER if rest in _OF_MODEL else Scope.ADMIN
    return Scope.ADMIN


@lru_cache(maxsize=64)
def scope_of_admin(method: str, target: bytes) -> Scope | None:
    """The scope that a request to the admin port needs.

    Raises:
        MalformedBody: the target cannot be read.
    """
    segments = parse_target(target).segments
    if method in _READING and segments in _PROBES:
        return None
    return Scope.INFER if segments == ("metrics",) else Scope.ADMIN


class Access:
    """The tokens that are valid, and how many calls were refused for want of one.

    Attributes:
        keyring: replaced when the file changes.
        unauthenticated: calls without a valid token.
        denied: calls whose token lacks the scope.
    """

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.unauthenticated = 0
        self.denied = 0

    def identify(self, header: bytes | None) -> Grant:
        """Find out whose token an `authorization` header carries.

        Raises:
            Unauthenticated: it has none, or one that is not valid.
        """
        try:
            grant = self.keyring.find(token_of(header))
            if grant is None:
                raise Unauthenticated("the token is not valid here", has_token=True)
        except Unauthenticated:
            self.unauthenticated += 1
            raise
        return grant

    def admit(self, grant: Grant, scope: Scope, call: str) -> None:
        """Check the scope of a call; those that change the server are logged with the name.

        Raises:
            PermissionDenied: the token is not for that.
        """
        if not grant.may(scope):
            self.denied += 1
            raise PermissionDenied(scope.value, grant.name)
        if scope is Scope.ADMIN:
            log_event(log, "admin_call", call=call[:200], token_name=grant.name)


class GrpcGuard:
    """Guards the gRPC port; one for all its connections, which remember for themselves."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def rules(self) -> object:
        """The keyring: another one when tokens have changed."""
        return self._access.keyring

    def check(self, path: bytes, header: bytes | None) -> bool:
        """Look at a call; True when an equal one need not be looked at again.

        Raises:
            Unauthenticated: there is no valid token.
            PermissionDenied: it is not for this call.
        """
        scope = scope_of_call(path)
        if scope is None:
            return True
        self._access.admit(self._access.identify(header), scope, path.decode("latin-1"))
        return scope is not Scope.ADMIN


class HttpGuard:
    """Guards one HTTP connection.

    Args:
        access: the tokens.
        scope_of: what the port's requests need.
    """

    __slots__ = ("_access", "_grant", "_header", "_keyring", "_scope_of")

    def __init__(self, access: Access, scope_of: ScopeOf) -> None:
        self._access = access
        self._scope_of = scope_of
        self._keyring: Keyring | None = None
        self._header = b""
        self._grant: Grant | None = None

    def __call__(self, method: str, target: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Look at the head of a request.

        Raises:
            Unauthenticated: there is no valid token.
            PermissionDenied: it is not for this request.
            MalformedBody: the target cannot be read.
        """
        scope = self._scope_of(method, target)
        if scope is None:
            return
        header = headers.get(b"authorization")
        grant = self._grant
        if (
            grant is None
            or header is None
            or self._keyring is not self._access.keyring
            or not compare_digest(header, self._header)  # a proxy may bring callers together
        ):
            self._grant = None
            grant = self._access.identify(header)
            assert header is not None, "a call without a header was identified"
            self._grant, self._header, self._keyring = grant, header, self._access.keyring
        if scope is Scope.ADMIN or not grant.may(scope):
            self._access.admit(grant, scope, f"{method} {parse_target(target).path}")
