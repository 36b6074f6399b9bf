"""How a failed call comes back."""

import pytest

from hloserve.client.failures import failure_of
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
from hloserve.wire.status import grpc_code

TYPES: dict[Code, type[HloserveError]] = {
    Code.INVALID_ARGUMENT: BadRequest,
    Code.NOT_FOUND: ModelNotFound,
    Code.UNIMPLEMENTED: NotImplementedYet,
    Code.FAILED_PRECONDITION: NotPossibleNow,
    Code.RESOURCE_EXHAUSTED: Overloaded,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.CANCELLED: Cancelled,
    Code.UNAVAILABLE: Unavailable,
    Code.INTERNAL: HloserveError,
    Code.UNAUTHENTICATED: Unauthenticated,
    Code.PERMISSION_DENIED: PermissionDenied,
}
TRAILERS = ((b"grpc-status", b"1"),)


@pytest.mark.parametrize("code", Code)
def test_every_code_comes_back_as_its_type_with_the_servers_words(code: Code) -> None:
    """The table is total; code and message are those of the server."""
    ended = RpcEnded(1, grpc_code(code), "what the server said", None, TRAILERS)

    error = failure_of(ended, "m", "host:1")

    assert type(error) is TYPES[code]
    assert error.code is code
    assert str(error) == "what the server said"


def test_fields_that_the_client_knows_are_set() -> None:
    """An error about a model has its name."""
    error = failure_of(RpcEnded(1, 5, "gone", None, TRAILERS), "m", "host:1")

    assert isinstance(error, ModelNotFound)
    assert error.model == "m"


@pytest.mark.parametrize(("number", "name"), [(2, "UNKNOWN"), (10, "ABORTED"), (99, "?")])
def test_codes_that_our_server_never_sends_are_internal_and_named(number: int, name: str) -> None:
    """Another server, or a proxy, may answer with any of gRPC's codes."""
    error = failure_of(RpcEnded(1, number, "why", None, TRAILERS), "m", "host:1")

    assert type(error) is HloserveError
    assert str(error) == f"{'UNKNOWN' if name == '?' else name}: why"


def test_faults_that_the_server_did_not_tell_name_it() -> None:
    """A lost connection has no message of the server, so the address is in ours."""
    error = failure_of(RpcEnded(1, 14, "connection lost: reset"), "m", "host:1")

    assert str(error) == "connection lost: reset (server host:1)"


def test_an_empty_message_says_so() -> None:
    """No error text is empty."""
    error = failure_of(RpcEnded(1, 13, "", None, TRAILERS), "m", "host:1")

    assert "host:1 gave no reason" in str(error)


@pytest.mark.parametrize(("got", "size"), [(2000, " of 2000 bytes"), (None, "")])
def test_a_too_large_answer_is_not_an_overload(got: int | None, size: str) -> None:
    """The code is the same; only the latter may be tried again."""
    fault = BodyTooLarge(1000, got, "max_message_bytes")

    error = failure_of(RpcEnded(1, 8, str(fault), error=fault), "m", "host:1")

    assert isinstance(error, BodyTooLarge)
    assert not error.retryable
    assert f"the answer{size} is over this client's limit of 1000 bytes" in str(error)
