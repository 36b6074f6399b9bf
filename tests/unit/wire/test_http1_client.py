"""The client's side of an HTTP/1.1 connection, without sockets."""

import pytest

from hloserve.core.errors import MalformedBody
from hloserve.wire.http1_client import HttpClientConnection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def client(requests: int = 1, **options: int) -> HttpClientConnection:
    """A client with that many requests under way."""
    http = HttpClientConnection("test", **options)
    for _ in range(requests):
        http.request("GET", "/")
    return http


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_responses_come_in_order(step: int) -> None:
    """Pipelined responses are read however they are cut."""
    http = client(3)
    data = OK + CHUNKED + b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

    got = [r for i in range(0, len(data), step) for r in http.receive(data[i : i + step])]

    assert [(200, b"abc"), (200, b"abcde"), (404, b"")] == [(r.status, bytes(r.body)) for r in got]
    assert got[0].headers[b"x-a"] == b"b"
    assert http.waiting == 0
    assert http.receive_end() == []


def test_interim_responses_are_passed_over() -> None:
    """100 Continue is not the answer."""
    [got] = client().receive(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)

    assert got.status == 200


def test_body_may_end_with_the_connection() -> None:
    """Without length or chunks, the end of the stream ends the body."""
    http = client()
    assert http.receive(b"HTTP/1.0 200 OK\r\n\r\nab") == []
    assert http.receive(b"c") == []

    [got] = http.receive_end()

    assert bytes(got.body) == b"abc"
    assert not got.keep_alive


@pytest.mark.parametrize("cut", range(len(OK)))
def test_end_inside_a_response_is_an_error(cut: int) -> None:
    """A response that the server did not finish is never taken for a whole one."""
    http = client()
    assert http.receive(OK[:cut]) == []

    with pytest.raises(MalformedBody, match="unanswered"):
        http.receive_end()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"),
        (OK + OK, "answers no request"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", "longer than 8"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n5\r\n", None),
    ],
)
def test_wrong_answers_are_refused(data: bytes, match: str | None) -> None:
    """What is not an answer, or too long, raises our error."""
    http = client(max_body_bytes=8)
    if match is None:
        http.receive(data)
        data, match = b"67890\r\n", "longer than 8"

    with pytest.raises(MalformedBody, match=match):
        http.receive(data)


def test_methods_with_odd_framing_are_a_defect() -> None:
    """HEAD is not for this client."""
    with pytest.raises(AssertionError, match="HEAD"):
        HttpClientConnection("test").request("HEAD", "/")
