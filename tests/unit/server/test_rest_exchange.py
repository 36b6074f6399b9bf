"""What a handler sees of a request, and what errors look like over HTTP."""

import gzip
import logging
from collections.abc import Sequence

import pytest

from hloserve.core.errors import (
    BadRequest,
    BodyTooLarge,
    Cancelled,
    DeadlineExceeded,
    HloserveError,
    HookFailed,
    MalformedBody,
    ModelNotFound,
    ModelNotReady,
    NotImplementedYet,
    NotPossibleNow,
    QueueFull,
    ShuttingDown,
    UnsupportedMedia,
)
from hloserve.server.rest_exchange import Exchange
from hloserve.wire.http1_messages import Body, HttpRequest


class Answers:
    """Keeps what is answered."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes, str, dict[str, str]]] = []

    def answer(
        self,
        request: HttpRequest,
        status: int,
        body: bytes,
        content_type: str,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        """Keep one answer."""
        self.got.append((status, body, content_type, dict(headers)))


def exchange_of(target: bytes = b"/", body: Body = b"", **headers: str) -> tuple[Exchange, Answers]:
    """An exchange and where its answer goes."""
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    answers = Answers()
    return Exchange(HttpRequest("POST", target, raw, body, True), answers, 1000), answers


def test_request_is_read_lazily() -> None:
    """Path, query and headers are decoded when they are asked for."""
    exchange, _ = exchange_of(b"/v2/a%2Fb?x=1", b"abc", content_type=" text/plain ")

    assert exchange.method == "POST"
    assert exchange.path == "/v2/a%2Fb"
    assert exchange.segments == ("v2", "a/b")
    assert exchange.query == {"x": "1"}
    assert exchange.headers["Content-Type"] == "text/plain"
    assert exchange.header(b"content-type") == "text/plain"
    assert exchange.header(b"accept") is None
    assert exchange.body == b"abc"


def test_compressed_body_is_decompressed() -> None:
    """Handlers see the body without its content coding, bounded by the cap."""
    exchange, _ = exchange_of(body=gzip.compress(b"abc"), content_encoding="gzip")
    assert exchange.body == b"abc"

    exchange, _ = exchange_of(body=gzip.compress(bytes(1001)), content_encoding="gzip")
    with pytest.raises(BodyTooLarge):
        _ = exchange.body


def test_undecodable_path_is_the_callers_fault() -> None:
    """A path that does not decode raises what becomes a 400."""
    exchange, _ = exchange_of(b"/%zz")

    with pytest.raises(MalformedBody):
        _ = exchange.segments


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (BadRequest("no"), 400, False),
        (NotPossibleNow("no"), 400, False),
        (ModelNotFound("m"), 404, False),
        (BodyTooLarge(1, 2, "s"), 413, False),
        (UnsupportedMedia("br", ["gzip"]), 415, False),
        (QueueFull("m", 3), 429, True),
        (Cancelled(), 499, False),
        (NotImplementedYet("x"), 501, False),
        (ModelNotReady("m", "loading"), 503, True),
        (ShuttingDown(), 503, True),
        (DeadlineExceeded("m"), 504, False),
    ],
)
def test_errors_have_their_status_and_text(error: HloserveError, status: int, retry: bool) -> None:
    """The status comes from the error's type, its text is the body, a retry is announced."""
    exchange, answers = exchange_of()

    exchange.fail(error)

    [(got, body, content_type, headers)] = answers.got
    assert got == status
    assert str(error).encode() in body.replace(b'\\"', b'"')
    assert content_type == "application/json"
    assert headers == ({"Retry-After": "1"} if retry else {})


@pytest.mark.parametrize("error", [ValueError("secret"), HookFailed("m", "pre", "secret")])
def test_internal_errors_show_an_id_and_log_the_cause(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller of an internal error gets the id under which its traceback is logged."""
    exchange, answers = exchange_of(b"/v2/x")

    with caplog.at_level(logging.ERROR, "hloserve"):
        exchange.fail(error)

    [(status, body, _, _)] = answers.got
    assert status == 500
    assert body.startswith(b'{"error":"internal error, request id ')
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert record.__dict__["hloserve_fields"]["request_id"].encode() in body


def test_only_the_first_outcome_counts() -> None:
    """A failure after the answer is ignored; a second answer is a defect."""
    exchange, answers = exchange_of()
    exchange.on_disconnect = lambda: pytest.fail("answered exchanges hear of no departure")
    exchange.reply(200, b"{}")
    assert exchange.is_answered

    exchange.fail(ValueError())
    exchange.disconnected()

    assert len(answers.got) == 1
    with pytest.raises(AssertionError, match="twice"):
        exchange.reply(200)
