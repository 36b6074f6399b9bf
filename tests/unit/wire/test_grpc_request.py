"""Reading a request's headers, the first time and again."""

import pytest

from hloserve.core.errors import BadRequest, NotImplementedYet, Unauthenticated
from hloserve.wire.grpc_headers import NO_TIMEOUT, Headers
from hloserve.wire.grpc_request import GuardedHeadReader, HeadReader, NotGrpc, RequestHead

_START: Headers = (
    (b":method", b"POST"),
    (b":path", b"/a/Unary"),
    (b"content-type", b"application/grpc"),
)
_END: Headers = ((b"user-agent", b"test"), (b"x-name", b"value"))


def _timeout(value: bytes) -> Headers:
    return ((b"grpc-timeout", value),)


@pytest.fixture
def reader() -> HeadReader[str]:
    """Knows one unary and one streaming method."""
    return HeadReader({b"/a/Unary": "unary", b"/a/Stream": "stream"}, {b"/a/Stream"})


def test_repeated_headers_give_the_same_head(reader: HeadReader[str]) -> None:
    """With or without a timeout, at its place or at another, each call has its own."""
    plain, timed = _START + _END, _START + _timeout(b"1S") + _END
    calls = [
        (plain, NO_TIMEOUT),
        (plain, NO_TIMEOUT),
        (timed, 10**9),
        (timed, 10**9),
        (_START + _timeout(b"2S") + _END, 2 * 10**9),
        (plain, NO_TIMEOUT),
        (plain + _timeout(b"3S"), 3 * 10**9),
        (plain, NO_TIMEOUT),
        (_timeout(b"4S") + plain, 4 * 10**9),
    ]

    for headers, timeout_ns in calls:
        assert reader.read(headers) == (RequestHead("unary", False, False), timeout_ns, headers)


def test_any_other_change_is_read_anew(reader: HeadReader[str]) -> None:
    """What looks like the last call in all but one header is not taken for it."""
    headers = _START + _timeout(b"1S") + _END
    reader.read(headers)

    other = tuple((k, b"/a/Stream" if k == b":path" else v) for k, v in headers)
    assert reader.read(other)[0] == RequestHead("stream", False, True)
    zipped = tuple(
        (b"grpc-encoding", b"gzip") if k == b"grpc-timeout" else (k, v) for k, v in headers
    )
    assert reader.read(zipped) == (RequestHead("unary", True, False), NO_TIMEOUT, zipped)
    assert reader.read(headers[:3] + headers[4:])[0] == RequestHead("unary", False, False)


def test_a_call_after_one_without_timeout_may_add_any_header(reader: HeadReader[str]) -> None:
    """A further header at the end is looked at."""
    reader.read(_START)

    with pytest.raises(NotImplementedYet):
        reader.read((*_START, (b"grpc-encoding", b"snappy")))


def test_a_fault_is_found_in_repeated_headers(reader: HeadReader[str]) -> None:
    """A bad timeout is refused the first time and every time."""
    for _ in range(2):
        with pytest.raises(BadRequest):
            reader.read(_START + _timeout(b"soon") + _END)
        reader.read(_START + _timeout(b"1S") + _END)
        with pytest.raises(BadRequest):
            reader.read(_START + _timeout(b"soon") + _END)


def test_headers_of_another_protocol_are_answered_in_its_words(reader: HeadReader[str]) -> None:
    """An empty block, a GET and a JSON body are no gRPC."""
    for headers in ((), ((b":method", b"GET"),), (*_START[:2], (b"content-type", b"text/plain"))):
        with pytest.raises(NotGrpc) as caught:
            reader.read(headers)
        assert caught.value.headers[0][0] == b":status"


class _Guard:
    """Lets one token in, and counts how often it is asked."""

    def __init__(self) -> None:
        self.rules: object = object()
        self.good: bytes | None = b"Bearer good"
        self.may_remember = True
        self.asked = 0

    def check(self, path: bytes, header: bytes | None) -> bool:
        self.asked += 1
        if header != self.good:
            raise Unauthenticated("no", has_token=header is not None)
        return self.may_remember


def _token(value: bytes) -> Headers:
    return ((b"authorization", value),)


@pytest.fixture
def guard() -> _Guard:
    """Knows the token `good`."""
    return _Guard()


@pytest.fixture
def guarded(guard: _Guard) -> GuardedHeadReader[str]:
    """The reader of above, with a guard."""
    return GuardedHeadReader({b"/a/Unary": "unary", b"/a/Stream": "stream"}, {b"/a/Stream"}, guard)


def _outcome(reader: HeadReader[str], headers: Headers) -> str:
    try:
        return reader.read(headers)[0].method
    except Unauthenticated:
        return "refused"


def test_equal_headers_are_looked_at_once(guarded: GuardedHeadReader[str], guard: _Guard) -> None:
    """With other timeouts too; the answer is that of a reader without a guard."""
    for timeout in (b"1S", b"2S", b"3S"):
        headers = _START + _timeout(timeout) + _token(b"Bearer good") + _END
        assert ("unary", False, False) == tuple(guarded.read(headers)[0])

    assert 1 == guard.asked


def test_every_other_token_is_looked_at(guarded: GuardedHeadReader[str], guard: _Guard) -> None:
    """In any order, at any place, and without a token, nobody profits from an earlier caller."""
    good, bad, none = _token(b"Bearer good"), _token(b"Bearer evil"), ()
    for token, expected in (
        (good, "unary"), (bad, "refused"), (good, "unary"), (none, "refused"), (bad, "refused"),
        (good, "unary"), (good, "unary"),
    ):  # fmt: skip
        for headers in (_START + token + _END, token + _START + _END, _START + _END + token):
            assert expected == _outcome(guarded, headers)


def test_new_rules_end_what_was_remembered(guarded: GuardedHeadReader[str], guard: _Guard) -> None:
    """The token that was good a moment ago is asked for again."""
    headers = _START + _token(b"Bearer good") + _END
    assert "unary" == _outcome(guarded, headers)

    guard.good, guard.rules = b"Bearer other", object()

    assert "refused" == _outcome(guarded, headers)


def test_what_may_not_be_remembered_is_asked_each_time(
    guarded: GuardedHeadReader[str], guard: _Guard
) -> None:
    """So that each such call is logged."""
    guard.may_remember = False
    for _ in range(3):
        guarded.read(_START + _token(b"Bearer good"))

    assert 3 == guard.asked


def test_calls_without_a_token_are_remembered_where_none_is_needed(
    guarded: GuardedHeadReader[str], guard: _Guard
) -> None:
    """Health calls; a token that is added to one is looked at."""
    guard.good = None
    for _ in range(3):
        guarded.read(_START + _END)

    assert 1 == guard.asked
    assert "refused" == _outcome(guarded, _START + _token(b"x") + _END)


def test_two_tokens_are_none(guarded: GuardedHeadReader[str]) -> None:
    """Which of them a proxy has looked at is not known."""
    with pytest.raises(Unauthenticated, match="given twice"):
        guarded.read(_START + _token(b"Bearer good") * 2)
