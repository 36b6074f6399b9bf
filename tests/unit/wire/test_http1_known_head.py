"""Heads that came before: which are remembered, and what is taken for the same."""

import pytest

from hloserve.core.errors import Unauthenticated
from hloserve.wire.http1 import GuardedReader, Refused, RequestReader
from hloserve.wire.http1_known_head import KnownHead
from hloserve.wire.http1_messages import HttpLimits, HttpRequest

MANY = 1 << 20


def message(body: bytes = b"abc", *lines: bytes, start: bytes = b"POST /x HTTP/1.1") -> bytes:
    """A whole request."""
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((start, b"Host: a", *lines, length, b"Accept: */*", b"", body))


def read(text: bytes, reader: RequestReader | None = None) -> HttpRequest:
    """What the parser makes of a request."""
    reader = reader or RequestReader(HttpLimits())
    reader.read(text)
    return reader.ready.pop()


def learn(text: bytes) -> KnownHead | None:
    """Remember the head of a request."""
    return KnownHead.learn(text, read(text))


def test_same_head_gives_the_same_request() -> None:
    """A request of the same head is what the parser would have made of it."""
    known = learn(message())
    assert known is not None

    request = known.match(message(b"xyz"), MANY)

    assert request is not None
    assert (request.method, request.target, request.body) == ("POST", b"/x", b"xyz")
    assert read(message(b"xyz")).headers == request.headers
    assert request.keep_alive


def test_length_may_differ() -> None:
    """The length of the body is the one thing that may change, and the headers tell the new one."""
    known = learn(message())
    assert known is not None

    request = known.match(message(b"a longer body"), MANY)

    assert request is not None
    assert request.body == b"a longer body"
    assert request.headers[b"content-length"] == b"13"


@pytest.mark.parametrize(
    "text",
    [
        message(b"abc", b"X: 1"),
        message(start=b"POST /y HTTP/1.1"),
        message()[:-1],
        message() + b"P",
        message().replace(b"Length: 3", b"Length: +3"),
        message().replace(b"Length: 3", b"Length: 3 "),
        message().replace(b"Length: 3", b"Length:  3"),
        message().replace(b"Length: 3", b"Length: "),
        message().replace(b"Length: 3", b"Length: 3\r\nContent-Length: 3"),
        message().replace(b"Length: 3", b"Length: 0000000003"),
        message().replace(b"Accept", b"accept"),
    ],
)
def test_anything_else_is_left_to_the_parser(text: bytes) -> None:
    """A head that differs in one byte, and a body that is short or has company, are not matched."""
    known = learn(message())
    assert known is not None

    assert known.match(text, MANY) is None


def test_body_over_the_limit_is_left_to_the_parser() -> None:
    """A body that is too large is refused by whoever refuses all of them."""
    known = learn(message())
    assert known is not None

    assert known.match(message(b"12345"), 4) is None


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        message(b"abc", b"Expect: 100-continue"),
        message(b"abc", b"Connection: close"),
        message(b"abc", b"Connection: upgrade", b"Upgrade: x"),
        message(b"abc", start=b"POST /x HTTP/1.0"),
        message(b"abc", b"X: " + b"y" * 5000),
        message().replace(b"Length: 3", b"Length: 3 "),
    ],
)
def test_heads_that_mean_more_are_not_remembered(text: bytes) -> None:
    """A head without a body, with an expectation, an end, an upgrade or great length is parsed."""
    reader = RequestReader(HttpLimits())
    reader.read(text)
    if not reader.ready:  # the body of an upgrade is taken apart from it
        reader.read(text[text.index(b"\r\n\r\n") + 4 :])

    assert KnownHead.learn(text, reader.ready[0]) is None


def test_length_in_another_header_is_not_taken_for_the_length() -> None:
    """The digits that change are those of Content-Length, wherever else they stand."""
    known = learn(message(b"abc", b"X-3: 3", b"Other-Content-Length: 3"))
    assert known is not None

    request = known.match(message(b"abcd", b"X-3: 3", b"Other-Content-Length: 3"), MANY)

    assert request is not None
    assert request.headers[b"other-content-length"] == b"3"
    assert request.headers[b"content-length"] == b"4"


def test_guard_is_asked_about_every_request() -> None:
    """A token that is taken back counts at once, on a connection whose head is known as well."""
    asked: list[bytes] = []

    def check(method: str, target: bytes, headers: object) -> None:
        asked.append(target)
        if len(asked) > 2:
            raise Unauthenticated("the token is not known", has_token=True)

    reader = GuardedReader(HttpLimits(), check)
    for _ in range(2):
        read(message(), reader)

    with pytest.raises(Refused) as refused:
        reader.read(message())

    assert refused.value.status == 401
    assert asked == [b"/x"] * 3
    assert not reader.ready
