"""The server's side of an HTTP/1.1 connection, without sockets."""

from collections.abc import Mapping, Sequence

import pytest
from support.rest_wire import chunked, connection, feed, output, post, refusal, request, responses

from hloserve.core.errors import PermissionDenied, Unauthenticated
from hloserve.wire.http1_messages import HttpLimits, HttpRequest
from hloserve.wire.http1_server import CommonHeaders, HttpServerConnection, Phase


def test_request_arrives_whole() -> None:
    """Method, target, headers and body reach the handler as they were sent."""
    [got] = feed(connection(), post(b"abc", "X-One: 1"))

    assert (got.method, got.target, bytes(got.body)) == ("POST", b"/p", b"abc")
    assert got.headers == {b"host": b"test", b"content-length": b"3", b"x-one": b"1"}
    assert got.keep_alive


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_pieces_make_the_same_requests(step: int) -> None:
    """How the network cuts the bytes changes nothing."""
    data = request() + post(b"x" * 500) + chunked(b"ab", b"c" * 300) + post(b"") + request()

    got = feed(connection(), data, step)

    assert [b"", b"x" * 500, b"ab" + b"c" * 300, b"", b""] == [bytes(r.body) for r in got]
    assert ["GET", "POST", "POST", "POST", "GET"] == [r.method for r in got]


def test_long_body_bypasses_the_parser_into_its_own_buffer() -> None:
    """A body that does not fit one read goes straight into memory of its announced length."""
    http = connection()
    body = bytes(range(256)) * 20_000
    data = post(body)
    assert not http.receive(data[:1000])
    position = 1000
    got: Sequence[HttpRequest] = []
    while not got:
        buffer = http.body_buffer()
        assert buffer is not None
        count = min(len(buffer), 65_536, len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        got = http.body_received(count)

    assert body == got[0].body
    assert position == len(data)
    assert http.body_buffer() is None
    http.respond(got[0], 200, b"")
    assert [b"/"] == [r.target for r in http.receive(request())]


def test_announced_length_alone_allocates_little() -> None:
    """A body gets its whole buffer only after its first mebibyte has come."""
    http = connection()
    http.receive(request("POST", "/p", f"Content-Length: {2**28}"))

    buffer = http.body_buffer()

    assert buffer is not None
    assert 2**20 == len(buffer)


def test_answers_leave_in_the_order_of_the_requests() -> None:
    """A later request that is answered first waits for the earlier one."""
    http = connection()
    first, second = feed(http, request("GET", "/1") + request("GET", "/2"))

    http.respond(second, 200, b"two")
    assert output(http) == b""
    http.respond(first, 200, b"one")

    assert [b"one", b"two"] == [r.body for r in responses(output(http))]
    assert not http.should_close


def test_response_head_is_exact() -> None:
    """The head carries type, length, the server's common lines and the given headers."""
    http = HttpServerConnection(HttpLimits(), CommonHeaders(b"Date: now\r\n"))
    [got] = feed(http, request())

    http.respond(got, 429, b"{}", "application/json", [("Retry-After", "1")])

    assert output(http) == (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nDate: now\r\nRetry-After: 1\r\n\r\n{}"
    )


def test_head_gets_the_length_but_no_body() -> None:
    """HEAD is answered like GET, without the body."""
    http = connection()
    [got] = feed(http, request("HEAD"))

    http.respond(got, 200, b"abc", "text/plain")

    sent = output(http)
    assert b"Content-Length: 3\r\n" in sent
    assert sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("version", "header", "keeps"),
    [
        ("1.1", "X: y", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: Keep-Alive, Close", False),
        ("1.0", "X: y", False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
def test_connection_persists_as_the_client_says(version: str, header: str, keeps: bool) -> None:
    """HTTP/1.1 keeps the connection unless told otherwise, HTTP/1.0 closes it."""
    http = connection()
    got = feed(http, request("GET", "/", header, version=version) + request())

    assert len(got) == (2 if keeps else 1)
    http.respond(got[0], 200)
    assert http.should_close is not keeps
    assert (b"Connection: close" in output(http)) is not keeps


def test_absent_host_is_allowed_by_http_1_0_alone() -> None:
    """HTTP/1.0 needs no Host header."""
    assert feed(connection(), b"GET / HTTP/1.0\r\n\r\n")
    assert refusal(connection(), b"GET / HTTP/1.1\r\n\r\n") == (
        400,
        "header Host is missing; HTTP/1.1 requires it",
    )


def test_expectation_is_met_before_the_body() -> None:
    """A client that waits for 100 Continue gets it as soon as its head is in."""
    http = connection()
    http.receive(request("POST", "/p", "Content-Length: 3", "Expect: 100-continue"))
    assert output(http) == b"HTTP/1.1 100 Continue\r\n\r\n"

    [got] = http.receive(b"abc")

    assert got.body == b"abc"
    assert output(http) == b""


def test_expectation_waits_for_the_earlier_answers() -> None:
    """100 Continue takes its turn behind the answers that are due before it."""
    http = connection()
    [first] = feed(http, request())
    http.receive(request("POST", "/p", "Content-Length: 3", "Expect: 100-continue"))
    assert output(http) == b""

    http.respond(first, 204)

    assert output(http).endswith(b"\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")


def test_expectation_without_need_is_passed_over() -> None:
    """No 100 Continue once the body is there, nor when there is none."""
    http = connection()

    got = feed(http, post(b"abc", "Expect: 100-continue") + post(b"", "Expect: 100-continue"))

    assert 2 == len(got)
    assert output(http) == b""


def test_expectation_of_too_large_a_body_is_refused_before_it_is_sent() -> None:
    """A body over the cap is refused with its head; the client never sends it."""
    http = connection(max_body_bytes=10)

    status, text = refusal(
        http, request("POST", "/p", "Content-Length: 11", "Expect: 100-continue")
    )

    assert status == 413
    assert "11 bytes" in text
    assert "limit of 10 bytes" in text
    assert "http.max_body_bytes" in text


def test_unknown_expectation_fails() -> None:
    """Another expectation than 100-continue is answered 417."""
    assert refusal(connection(), post(b"a", "Expect: miracles"))[0] == 417


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 3, 3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: +3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: -3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 0x3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 3_0\r\n\r\nabc", 400),
        (HEAD + b"Content-Length:\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 99999999999999999999\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: " + b"0" * 5000 + b"3\r\n\r\nabc", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"X: a\r\n folded\r\n\r\n", 400),
        (HEAD + b"X : a\r\n\r\n", 400),
        (HEAD + b"X: a\n\r\n", 400),
        (HEAD + b"X: a\x00b\r\n\r\n", 400),
        (HEAD + b"X: a\rb\r\n\r\n", 400),
        (HEAD + b": a\r\n\r\n", 400),
        (HEAD + b"X\r\n\r\n", 400),
        (HEAD + b"Host: b\r\n\r\n", 400),
        (HEAD + b"Content-Type: a\r\nContent-Type: b\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
        (b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00\x01\x02", 400),
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_ambiguous_or_malformed_requests_end_the_connection(
    data: bytes, status: int, step: int
) -> None:
    """What two HTTP implementations could read differently is refused, and nothing after it."""
    http = connection()

    assert refusal(http, data, step)[0] == status
    assert not http.receive(request())
    assert output(http) == b""
    assert http.is_refused


def test_tls_on_the_plain_port_is_named() -> None:
    """A TLS handshake is told what is wrong."""
    text = refusal(connection(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")[1]

    assert text == "this port speaks plain HTTP, the client began with TLS"


def test_error_waits_for_the_answers_before_it() -> None:
    """Requests before a malformed one are still answered, in order."""
    http = connection()
    [first] = feed(http, request() + b"BAD\r\n\r\n")
    assert output(http) == b""
    assert not http.should_close

    http.respond(first, 200, b"fine")

    assert [200, 400] == [r.status for r in responses(output(http))]
    assert http.should_close


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("limits", "data", "status"),
    [
        ({"max_target_bytes": 20}, request("GET", "/" + "a" * 20), 414),
        ({"max_headers": 3}, request("GET", "/", "A: 1", "B: 2", "C: 3"), 431),
        ({"max_header_bytes": 100}, request("GET", "/", "A: " + "1" * 100), 431),
        ({"max_body_bytes": 5}, post(b"123456"), 413),
        ({"max_body_bytes": 5}, chunked(b"123", b"456"), 413),
        ({}, request("GET", "/", "A: " + "1" * 70_000), 431),
        ({}, b"GET /" + b"a" * 20_000, 414),
        ({}, b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"1" * 100_000, 431),
        ({}, chunked(b"abc", trailer=b"T: " + b"1" * 100_000)[:-4], 431),
        ({"max_headers": 3}, request("GET", "/", "A: 1", "A: 2", "A: 3"), 431),
        ({}, request("POST", "/", "Transfer-Encoding: chunked") + b"3;" + b"e" * 100_000, 431),
    ],
)
def test_limits_are_enforced(limits: dict[str, int], data: bytes, status: int, step: int) -> None:
    """Each limit has its status, however the bytes arrive and before the request ends."""
    assert refusal(connection(**limits), data, step)[0] == status


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        ({"max_target_bytes": 20}, request("GET", "/" + "a" * 19)),
        ({"max_headers": 4}, request("GET", "/", "A: 1", "B: 2", "C: 3")),
        ({"max_header_bytes": 8 + 101}, request("GET", "/", "A: " + "1" * 100)),
        ({"max_body_bytes": 6}, post(b"123456")),
        ({"max_body_bytes": 6}, chunked(b"123", b"456")),
        ({"max_header_bytes": 100}, chunked(*[b"x" * 50] * 1000)),
        ({"max_header_bytes": 64}, post(b"x" * 100_000)),
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_limits_are_reached_exactly(limits: dict[str, int], data: bytes, step: int) -> None:
    """What is just within a limit passes."""
    assert 1 == len(feed(connection(**limits), data, step))


def test_nothing_is_taken_after_a_long_body_until_it_is_answered() -> None:
    """So that a connection holds one of them, not as many as may be pipelined."""
    http = connection()
    long = post(bytes(1_000_000))

    (first,) = feed(http, long + long[:5000])
    assert http.is_full
    assert http.has_backlog
    assert [] == feed(http, long[5000:])
    http.respond(first, 200, b"first")
    (second,) = http.receive(b"")
    assert not http.is_blocked  # else nobody would notice that the peer leaves
    http.respond(second, 200, b"second")

    assert [b"first", b"second"] == [answer.body for answer in responses(output(http))]


def test_nothing_is_taken_after_a_compressed_body_until_it_is_answered() -> None:
    """A few kilobytes of it may be a second of work."""
    http = connection()
    packed = post(b"packed", "Content-Encoding: gzip")

    (first,) = feed(http, packed * 3)
    http.respond(first, 200, b"first")
    (second,) = http.receive(b"")
    assert http.has_backlog
    http.respond(second, 200, b"second")
    (third,) = http.receive(b"")

    assert b"packed" == third.body


def test_pipelining_is_bounded() -> None:
    """Beyond the bound, bytes wait unparsed until answers make room."""
    http = connection(max_pipelined=3)
    data = b"".join(request("GET", f"/{i}") for i in range(2000))

    got: Sequence[HttpRequest] = feed(http, data)
    assert http.is_full
    assert http.has_backlog
    assert len(got) == 3
    answered = 0
    while answered < 2000:
        for item in got:
            http.respond(item, 200, item.target)
        answered += len(got)
        got = http.receive(b"")

    assert [b"/%d" % i for i in range(2000)] == [r.body for r in responses(output(http))]
    assert (http.has_backlog, http.is_full) == (False, False)


def test_error_waits_for_requests_that_are_held_back() -> None:
    """A refusal comes after all requests before it, also those that wait for room."""
    http = connection(max_pipelined=2)
    got = list(feed(http, b"".join(request("GET", f"/{i}") for i in range(7)) + b"BAD\r\n\r\n"))
    while got:
        http.respond(got.pop(0), 200)
        got += http.receive(b"")

    assert [r.status for r in responses(output(http))] == [200] * 7 + [400]
    assert http.should_close


def test_draining_serves_requests_that_are_held_back() -> None:
    """What was received whole is answered before a draining connection ends."""
    http = connection(max_pipelined=1)
    got = list(feed(http, request() * 5))
    http.is_draining = True
    while got:
        http.respond(got.pop(0), 200)
        got += http.receive(b"")

    assert [r.keep_alive for r in responses(output(http))] == [True] * 4 + [False]


def test_upgrade_is_ignored_with_its_body() -> None:
    """A request that offers an upgrade is served as an ordinary one, body and successor too."""
    offer = ("Connection: Upgrade", "Upgrade: h2c")
    data = request("GET", "/1", *offer) + post(b"abc", *offer) + request("GET", "/3")

    got = feed(connection(), data)

    assert [b"/1", b"/p", b"/3"] == [r.target for r in got]
    assert [b"", b"abc", b""] == [bytes(r.body) for r in got]


def test_upgrade_with_chunks_is_refused() -> None:
    """The framing of an upgrade with a chunked body is in doubt."""
    data = request("POST", "/", "Upgrade: x", "Connection: upgrade", "Transfer-Encoding: chunked")

    assert refusal(connection(), data)[0] == 400


def test_draining_closes_after_the_last_pending_answer() -> None:
    """A draining connection announces its end with the last answer, not before."""
    http = connection()
    first, second = feed(http, request("GET", "/1") + request("GET", "/2"))
    http.is_draining = True

    http.respond(first, 200)
    assert b"Connection: close" not in output(http)
    http.respond(second, 200)

    assert b"Connection: close" in output(http)
    assert http.should_close
    assert not http.receive(request())


def test_abandoned_connection_names_the_unanswered() -> None:
    """When the peer leaves, the requests without an answer are handed back once."""
    http = connection()
    first, second, third = feed(http, b"".join(request("GET", f"/{i}") for i in range(3)))
    http.respond(second, 200)

    assert [first, third] == http.abandon()
    assert [] == http.abandon()
    assert output(http) == b""


def test_phase_tells_what_has_arrived() -> None:
    """The phase distinguishes a silent connection from a head or a body on its way."""
    http = connection()
    phases = [http.phase]
    for piece in (b"POST / HT", b"TP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n", b"a", b"b"):
        http.receive(piece)
        phases.append(http.phase)

    assert [Phase.IDLE, Phase.HEAD, Phase.BODY, Phase.BODY, Phase.IDLE] == phases


def test_answering_twice_is_a_defect() -> None:
    """The connection refuses a second answer to one request."""
    http = connection()
    [got] = feed(http, request())
    http.respond(got, 200)

    with pytest.raises(AssertionError, match="twice"):
        http.respond(got, 200)


def test_header_value_cannot_split_a_response() -> None:
    """A line break in a header's value is a defect of ours, never sent."""
    http = connection()
    [got] = feed(http, request())

    with pytest.raises(AssertionError, match="split"):
        http.respond(got, 200, headers=[("X", "a\r\nSet-Cookie: b")])


def test_repeated_headers_are_joined() -> None:
    """Repeated headers read as one list, in order."""
    [got] = feed(connection(), request("GET", "/", "Accept: a", "ACCEPT: b"))

    assert got.headers[b"accept"] == b"a, b"


def _let_in(method: str, target: bytes, headers: Mapping[bytes, bytes]) -> None:
    if headers.get(b"authorization") != b"Bearer good":
        raise Unauthenticated("no token", has_token=b"authorization" in headers)
    if target == b"/admin":
        raise PermissionDenied("admin", "user")


def _guarded() -> HttpServerConnection:
    return HttpServerConnection(HttpLimits(), None, _let_in)


@pytest.mark.parametrize("step", [0, 1, 50])
def test_a_request_that_is_allowed_is_like_any_other(step: int) -> None:
    """Several on one connection, with and without bodies."""
    token = "Authorization: Bearer good"

    got = feed(_guarded(), request("GET", "/", token) + post(b"abc", token), step)

    assert [b"", b"abc"] == [bytes(r.body) for r in got]


def test_a_request_is_refused_by_its_head() -> None:
    """The answer is there before any of the body, instead of 100 Continue, and ends it all."""
    http = _guarded()
    head = request("POST", "/p", "Content-Length: 1000000", "Expect: 100-continue")

    status, text = refusal(http, head)

    assert (401, True) == (status, text.startswith("no token"))
    assert http.is_refused
    assert not feed(http, request("GET", "/", "Authorization: Bearer good"))


@pytest.mark.parametrize(
    ("headers", "target", "challenge"),
    [
        ((), "/", b'Bearer realm="hloserve"'),
        (("Authorization: x",), "/", b'Bearer realm="hloserve", error="invalid_token"'),
        (
            ("Authorization: Bearer good",),
            "/admin",
            b'Bearer realm="hloserve", error="insufficient_scope", scope="admin"',
        ),
        (("Authorization: Bearer good",) * 2, "/", b"invalid_token"),
    ],
)
def test_a_refusal_says_what_is_wanted(
    headers: Sequence[str], target: str, challenge: bytes
) -> None:
    """As RFC 6750 has it; a header that is there twice is not the one that is good."""
    http = _guarded()
    assert not feed(http, request("GET", target, *headers))

    [response] = responses(output(http))

    assert challenge in response.headers[b"www-authenticate"]


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    """Pipelined requests that were allowed are answered first."""
    http = _guarded()
    [first] = feed(http, request("GET", "/", "Authorization: Bearer good") + request())
    assert b"" == output(http)

    http.respond(first, 200, b"first")

    assert [200, 401] == [response.status for response in responses(output(http))]
