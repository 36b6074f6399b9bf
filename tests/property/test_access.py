"""Who may call what, whatever is sent."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.errors import MalformedBody, PermissionDenied, Unauthenticated
from hloserve.server.access import Access, GrpcGuard, HttpGuard, scope_of_call, scope_of_rest
from hloserve.server.tokens import Scope, parse_tokens
from hloserve.wire.grpc_headers import Headers
from hloserve.wire.grpc_request import GuardedHeadReader, HeadReader
from hloserve.wire.http1_messages import HttpLimits
from hloserve.wire.http1_server import HttpServerConnection

USER, OPS = b"u" * 16, b"o" * 16
SERVICE = b"/inference.GRPCInferenceService/"
METHODS = {SERVICE + name: name for name in (b"ServerLive", b"ModelInfer", b"LogSettings")}

some_headers = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from([b"Bearer " + USER, b"bearer  " + OPS, b"Bearer " + b"x" * 16, b"Basic dTpw"]),
)
some_segments = st.sampled_from(
    ["v2", "models", "m", "versions", "1", "infer", "load", "unload", "repository", "index",
     "trace", "setting", "logging", "systemsharedmemory", "register", "health", "live", "%6Coad",
     "%2F", "", ".", ".."]
)  # fmt: skip


def _access() -> Access:
    return Access(parse_tokens(b"user infer %s\nops admin %s" % (USER, OPS), "tokens"))


@given(st.sampled_from(["GET", "POST", "HEAD", "DELETE"]), st.binary(max_size=60), some_headers)
def test_any_request_is_allowed_or_refused(
    method: str, target: bytes, header: bytes | None
) -> None:
    """A guard raises our errors and nothing else."""
    headers = {} if header is None else {b"authorization": header}
    with suppress(Unauthenticated, PermissionDenied, MalformedBody):
        HttpGuard(_access(), scope_of_rest)(method, target, headers)


@given(st.lists(some_segments, max_size=8))
def test_no_path_that_changes_the_server_is_less_than_admin(segments: list[str]) -> None:
    """However a path is made, one that ends in a change needs `admin`, or leads nowhere."""
    target = "/" + "/".join(["v2", *segments])

    scope = scope_of_rest("POST", target.encode())

    last = segments[-1].replace("%6C", "l") if segments else ""
    if last in ("load", "unload", "register", "setting", "logging") and segments[0] != "models":
        assert scope is Scope.ADMIN


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(METHODS)),
            st.lists(some_headers.filter(lambda h: h is not None), max_size=2),
            st.integers(0, 3),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_a_connection_answers_each_call_as_if_it_were_the_first(
    calls: list[tuple[bytes, list[bytes], int, bool]],
) -> None:
    """Nothing that a connection remembers lets a call in, or keeps one out."""
    access = _access()
    reader = GuardedHeadReader(METHODS, (), GrpcGuard(access))
    for path, tokens, place, has_timeout in calls:
        fields = [(b":method", b"POST"), (b":path", path), (b"content-type", b"application/grpc")]
        fields[place:place] = [(b"authorization", token) for token in tokens]
        if has_timeout:
            fields.append((b"grpc-timeout", b"1S"))
        headers: Headers = tuple(fields)
        fresh = GuardedHeadReader(METHODS, (), GrpcGuard(access))
        assert _outcome(fresh, headers) == _outcome(reader, headers)


def _outcome(reader: HeadReader[bytes], headers: Headers) -> str:
    try:
        return reader.read(headers)[0].method.decode()
    except (Unauthenticated, PermissionDenied) as error:
        return type(error).__name__


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_on_a_guarded_connection_are_answered(pieces: list[bytes]) -> None:
    """What is no request is refused as without a guard, and no request gets through."""
    http = HttpServerConnection(HttpLimits(), None, HttpGuard(_access(), scope_of_rest))
    for piece in pieces:
        assert not http.receive(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n" + piece)


def test_the_methods_of_these_tests_have_different_scopes() -> None:
    """Else the properties would say little."""
    assert {None, Scope.INFER, Scope.ADMIN} == set(map(scope_of_call, METHODS))
