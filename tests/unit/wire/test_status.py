"""The status table."""

import pytest

from hloserve.core.errors import (
    BodyTooLarge,
    Code,
    HloserveError,
    InvalidInput,
    ModelNotFound,
    NotImplementedYet,
    PermissionDenied,
    QueueFull,
    Unauthenticated,
    UnsupportedMedia,
)
from hloserve.wire.status import (
    GRPC_CODES,
    GRPC_OK,
    STATUS,
    code_of,
    forget_frames,
    grpc_code,
    grpc_name,
    http_status,
    public_text,
)


def test_every_code_has_a_status() -> None:
    """A new error code cannot ship without a status on both transports."""
    assert set(Code) == set(STATUS)


@pytest.mark.parametrize("code", list(Code))
def test_grpc_numbers_and_names_agree(code: Code) -> None:
    """Our code's name is gRPC's name for its number, and the number leads back to the code."""
    assert code.value == grpc_name(grpc_code(code))
    assert code is code_of(grpc_code(code))


def test_foreign_numbers_have_a_name_but_no_code() -> None:
    """A peer may send codes that this server never sends, and numbers that nobody defines."""
    assert len(GRPC_CODES) == 17
    assert code_of(GRPC_OK) is None
    assert code_of(10) is None
    assert grpc_name(16) == "UNAUTHENTICATED"
    assert grpc_name(99) == "UNKNOWN"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("x"), 400),
        (ModelNotFound("m"), 404),
        (NotImplementedYet("x"), 501),
        (Unauthenticated("the call has no token", has_token=False), 401),
        (PermissionDenied("admin", "alice"), 403),
        (QueueFull("m", 3), 429),
        (BodyTooLarge(1, 2, "http.max_body_bytes"), 413),
        (UnsupportedMedia("content type x", ["application/json"]), 415),
        (HloserveError("x"), 500),
    ],
)
def test_http_status_is_decided_by_type(error: HloserveError, status: int) -> None:
    """HTTP has words of its own for a large body and for a foreign media type."""
    assert status == http_status(error)


def test_a_text_that_repeats_what_was_sent_is_cut() -> None:
    """A name of megabytes does not come back as an answer of megabytes."""
    text = public_text(ModelNotFound("m" * 10_000_000), "")

    assert len(text) < 5_000
    assert text.startswith("model 'mmm")
    assert text.endswith("...")


def test_only_internal_errors_hide_their_text() -> None:
    """The caller reads what it can fix, and for the rest gets the id of the log entry."""
    assert public_text(ModelNotFound("m"), "") == str(ModelNotFound("m"))
    assert public_text(ZeroDivisionError("secret"), "ab12") == "internal error, request id ab12"
    assert public_text(HloserveError("secret"), "ab12") == "internal error, request id ab12"


def test_error_that_is_its_own_cause_is_forgotten_like_any_other() -> None:
    """A hook may ``raise error from error``; the loop that answers it must not go round with it."""
    refused = InvalidInput("upside down")
    with pytest.raises(InvalidInput):
        raise refused from refused

    forget_frames(refused)

    assert refused.__traceback__ is None
