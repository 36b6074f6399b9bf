"""HTTP/1.1: any input gives requests and responses in order, or one refusal, never an exception."""

from copy import copy
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rest_wire import chunked, connection, output, post, request, responses

from hloserve.wire.http1 import SLICE_BYTES
from hloserve.wire.http1_messages import HttpLimits, HttpRequest
from hloserve.wire.http1_preface import PREFACE
from hloserve.wire.http1_server import HttpServerConnection

BODIES = st.binary(max_size=40) | st.integers(0, 70_000).map(bytes)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A well-formed request that keeps the connection: its bytes, target and body."""
    kind = draw(st.sampled_from(["get", "post", "chunked", "upgrade"]))
    if kind == "get":
        target = "/" + draw(st.text("abc%2F?=&-._~", max_size=30))
        return request("GET", target), target.encode(), b""
    if kind == "chunked":
        chunks = draw(st.lists(st.binary(min_size=1, max_size=500), max_size=5))
        return chunked(*chunks, trailer=b"T: x\r\n"), b"/c", b"".join(chunks)
    body = draw(BODIES)
    offer = ("Connection: upgrade", "Upgrade: h2c") if kind == "upgrade" else ()
    return post(body, *offer), b"/p", body


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at positions."""
    places = [0, *sorted({place % (len(data) + 1) for place in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def deliver(http: HttpServerConnection, pieces: list[bytes]) -> list[HttpRequest]:
    """Deliver as the transport does: long bodies into their own buffer, answers at once."""
    served: list[HttpRequest] = []

    def answer(requests: object) -> None:
        assert isinstance(requests, (list, tuple))
        for item in requests:
            served.append(copy(item))  # its body is let go with the answer
            http.respond(item, 200, item.target)

    for piece in pieces:
        left = piece
        while left:
            buffer = http.body_buffer()
            if buffer is None:
                answer(http.receive(left))
                left = b""
            else:
                count = min(len(buffer), len(left))
                buffer[:count] = left[:count]
                answer(http.body_received(count))
                left = left[count:]
        while http.has_backlog and not http.is_full:
            answer(http.receive(b""))
    return served


@given(
    st.lists(messages(), max_size=8),
    st.lists(st.integers(0, 10**6), max_size=12),
    st.integers(1, 5),
)
def test_any_cuts_give_the_same_requests_and_answers(
    sent: list[tuple[bytes, bytes, bytes]], cuts: list[int], max_pipelined: int
) -> None:
    """However the bytes are cut, requests and answers are the same, in order."""
    http = HttpServerConnection(HttpLimits(max_pipelined=max_pipelined))

    served = deliver(http, cut(b"".join(data for data, _, _ in sent), cuts))

    assert [(r.target, bytes(r.body)) for r in served] == [(t, b) for _, t, b in sent]
    got = responses(output(http)) if sent else []
    assert [r.body for r in got] == [target for _, target, _ in sent]
    assert not http.should_close
    assert not http.has_pending


SEEDS = [
    request("GET", "/v2/health/live", "Accept: */*"),
    post(b"abcdef", "Content-Type: application/json"),
    chunked(b"abc", b"defg", trailer=b"T: x\r\n"),
    request("POST", "/", "Expect: 100-continue", "Content-Length: 3", body=b"abc"),
    request("GET", "/", "Connection: upgrade", "Upgrade: x"),
    PREFACE + bytes(9),
]
FRAGMENTS = (
    "\r\n|\n| |:|0|5|-|\0|\xff|;|\t|chunked|Content-Length: |Transfer-Encoding: chunked\r\n"
    "|HTTP/1.1|HTTP/2.0|PRI * "
)
PIECES = st.sampled_from(FRAGMENTS.encode("latin-1").split(b"|")) | st.binary(max_size=4)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 6), PIECES), max_size=4),
    st.lists(st.integers(0, 500), max_size=5),
)
def test_mutated_input_never_raises_and_is_refused_at_most_once(
    seeds: list[bytes], edits: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    """Whatever arrives becomes requests, then possibly one refusal, then silence."""
    data = b"".join(seeds)
    for place, removed, added in edits:
        at = place % (len(data) + 1)
        data = data[:at] + added + data[at + removed :]
    http = connection(max_body_bytes=1000, max_header_bytes=400, max_headers=10)

    served = deliver(http, cut(data, cuts))

    sent = output(http).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    if sent[:1] == b"\x00":
        return  # frames of HTTP/2
    answers = responses(sent)
    refusals = [answer for answer in answers if answer.status != 200]
    assert len(refusals) <= 1
    assert len(answers) == len(served) + len(refusals)
    if refusals:
        assert answers[-1] is refusals[0]
        assert http.should_close
    for item in served:
        assert len(item.body) <= 1000
    assert not http.receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") or not http.should_close


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes_never_raise(pieces: list[bytes]) -> None:
    """Noise is refused, not raised."""
    http = connection()

    deliver(http, pieces)
    http.refuse(408, "slow")
    http.abandon()

    assert output(http) == b""


SPELLINGS = (b"", b"\r\n", b" ", b"0", b"+", b"Host: b\r\n", b"Content-Length: 3\r\n", b"x", b"\n")


@st.composite
def nearly_repeated(draw: st.DrawFn) -> bytes:
    """A request of one of two heads, perhaps with something put in, or cut short."""
    body = draw(st.binary(max_size=12))
    data = post(body, *draw(st.sampled_from([(), ("X: 1",)])))
    place = draw(st.integers(0, len(data)))
    if draw(st.booleans()):
        data = data[:place] + draw(st.sampled_from(SPELLINGS)) + data[place:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


def outcome(http: HttpServerConnection, pieces: list[bytes]) -> tuple[object, ...]:
    """What came of some input: requests, whether it was refused, and the answers but their date."""
    served = deliver(http, pieces)
    seen = [(r.method, r.target, r.headers, bytes(r.body), r.keep_alive) for r in served]
    return seen, http.is_refused, http.phase, output(http)


@given(st.lists(nearly_repeated(), max_size=8), st.booleans())
def test_remembered_heads_change_nothing(sent: list[bytes], is_joined: bool) -> None:
    """A reader that knows heads again makes of any input what one makes that parses them all."""
    pieces = [b"".join(sent)] if is_joined else sent
    knowing, parsing = HttpLimits(), HttpLimits(max_header_bytes=SLICE_BYTES - 1)

    expected = outcome(HttpServerConnection(parsing), pieces)

    assert expected == outcome(HttpServerConnection(knowing), pieces)
