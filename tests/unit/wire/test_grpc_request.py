"""Reading a request's headers, the first time and again."""

import pytest

from hloserve.core.errors import BadRequest, NotImplementedYet
from hloserve.wire.grpc_headers import NO_TIMEOUT, Headers
from hloserve.wire.grpc_request import HeadReader, NotGrpc, RequestHead

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
