"""What a handler sees of a request, and what errors look like over HTTP."""

import gzip
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

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
from hloserve.core.tickets import Ticket
from hloserve.models.task_threads import TaskThreads
from hloserve.server.rest_exchange import Exchange
from hloserve.wire.bytes_in_hand import BytesInHand
from hloserve.wire.http1_content import decode_content
from hloserve.wire.http1_messages import Body, HttpRequest


class Answers:
    """Keeps what is answered."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes, str, dict[str, str]]] = []
        self.account = BytesInHand(1 << 30).account()

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


_TEXT = b"[" + b"1.5, " * 20_000 + b"0]"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("nbytes", [10_000, 100_000])
def test_large_answer_is_compressed_for_who_accepts_it(coding: str, nbytes: int) -> None:
    """The headers say so, and that the answer depends on what was accepted."""
    exchange, answers = exchange_of(accept_encoding=coding)

    exchange.reply(200, _TEXT[:nbytes], headers=(("X-Other", "1"),))

    (status, body, content_type, headers) = answers.got[0]
    assert (status, content_type) == (200, "application/json")
    assert headers == {"X-Other": "1", "Vary": "Accept-Encoding", "Content-Encoding": coding}
    assert bytes(decode_content(body, coding, nbytes)) == _TEXT[:nbytes]


@pytest.mark.parametrize(
    ("body", "accepted"),
    [
        (_TEXT[:8191], "gzip"),
        (_TEXT, "br"),
        (_TEXT, ""),
        (random.Random(1).randbytes(50_000), "gzip"),
    ],
)
def test_answer_goes_as_it_is_when_compression_is_not_worth_it(body: bytes, accepted: str) -> None:
    """Small ones, ones that do not shrink, and for clients that do not accept it."""
    exchange, answers = exchange_of(accept_encoding=accepted)

    exchange.reply(200, body)

    assert answers.got[0][1] == body
    assert "Content-Encoding" not in answers.got[0][3]


def test_control_body_is_small_also_when_unpacked() -> None:
    """A request that is small by its nature is not unpacked beyond a megabyte."""
    bomb = gzip.compress(bytes(2**21))
    exchange = Exchange(
        HttpRequest("POST", b"/", {b"content-encoding": b"gzip"}, bomb, True), Answers(), 2**30
    )
    plain = Exchange(HttpRequest("POST", b"/", {}, bytes(2**20 + 1), True), Answers(), 2**30)

    for large in (exchange, plain):
        with pytest.raises(BodyTooLarge):
            _ = large.control_body
    assert exchange_of(body=b"{}")[0].control_body == b"{}"


@pytest.mark.parametrize(
    ("size", "headers", "text_bytes", "expected"),
    [
        (65_536, {}, None, False),
        (65_537, {}, None, True),
        (10**6, {}, 200, False),
        (10**6, {}, 100_000, True),
        (1024, {"content_encoding": "gzip"}, None, False),
        (1025, {"content_encoding": "gzip"}, None, True),
    ],
)
def test_what_takes_long_is_told_before_it_is_read(
    size: int, headers: dict[str, str], text_bytes: int | None, expected: bool
) -> None:
    """Long text does, binary tensors do not, and nobody knows of what is compressed."""
    exchange, _ = exchange_of(b"/", bytes(size), **headers)

    assert expected is exchange.takes_long(text_bytes)


class Elsewhere:
    """Threads that a test drives: work waits until `run_all`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Ticket[Any], Callable[[], Any]]] = []

    def run(self, function: Callable[[], Any]) -> Ticket[Any]:
        """Keep the work."""
        ticket: Ticket[Any] = Ticket()
        self.waiting.append((ticket, function))
        return ticket

    def run_all(self) -> None:
        """Do the work, and go on with those who wait for it."""
        for ticket, function in self.waiting:
            if ticket.is_cancelled:
                continue
            try:
                ticket.resolve(function())
            except HloserveError as error:
                ticket.fail(error)


def _apart(**headers: str) -> tuple[Exchange, Answers, Elsewhere]:
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    answers, threads = Answers(), Elsewhere()
    exchange = Exchange(
        HttpRequest("POST", b"/", raw, b"", True), answers, 1000, cast(TaskThreads, threads)
    )
    return exchange, answers, threads


def test_work_is_done_apart_and_then_goes_on() -> None:
    """Nothing is answered before, and the result arrives."""
    exchange, answers, threads = _apart()
    exchange.run_apart(lambda: b"done", lambda value, error: exchange.reply(200, value or b""))

    assert not answers.got
    threads.run_all()

    assert answers.got[0][:2] == (200, b"done")


def test_error_of_work_apart_arrives() -> None:
    """As an error, for the one who goes on."""
    exchange, answers, threads = _apart()

    def fail() -> bytes:
        raise BadRequest("no good")

    exchange.run_apart(fail, lambda value, error: exchange.fail(error or AssertionError()))
    threads.run_all()

    assert answers.got[0][:2] == (400, b'{"error":"no good"}')


def test_what_goes_on_may_fail() -> None:
    """What it raises is the answer."""
    exchange, answers, threads = _apart()

    def go_on(value: bytes | None, error: Exception | None) -> None:
        raise BadRequest("too late")

    exchange.run_apart(lambda: b"", go_on)
    threads.run_all()

    assert answers.got[0][0] == 400


def test_work_for_a_caller_that_has_gone_is_dropped() -> None:
    """It neither runs nor goes on."""
    exchange, answers, threads = _apart()
    exchange.run_apart(lambda: pytest.fail("it ran"), lambda value, error: pytest.fail("went on"))

    exchange.disconnected()
    threads.run_all()

    assert not answers.got


def test_large_answer_is_compressed_apart_and_counts_as_answered() -> None:
    """Later failures do not answer once more; one who leaves meanwhile gets nothing."""
    exchange, answers, threads = _apart(accept_encoding="gzip")
    exchange.reply(200, _TEXT)

    exchange.fail(BadRequest("late"))
    assert exchange.is_answered
    assert not answers.got
    threads.run_all()

    assert answers.got[0][3]["Content-Encoding"] == "gzip"
    gone, nothing, others = _apart(accept_encoding="gzip")
    gone.reply(200, _TEXT)
    gone.disconnected()
    others.run_all()
    assert not nothing.got
