"""Targets, headers and formatting of HTTP messages."""

import pytest

from hloserve.core.errors import MalformedBody
from hloserve.wire.http1_messages import (
    Headers,
    format_error_body,
    format_request,
    parse_target,
)


@pytest.mark.parametrize(
    ("target", "segments"),
    [
        (b"/", ()),
        (b"/v2", ("v2",)),
        (b"/v2/", ("v2",)),
        (b"/v2//x", ("v2", "", "x")),
        (b"/v2/models/a%20b/infer", ("v2", "models", "a b", "infer")),
        (b"/v2/models/a%2Fb/infer", ("v2", "models", "a/b", "infer")),
        (b"/v2/models/%252F", ("v2", "models", "%2F")),
        (b"/v2/models/%66%33%32", ("v2", "models", "f32")),
        ("/m/é".encode("latin-1"), None),
        (b"/m/%C3%A9%E6%A8%A1", ("m", "é模")),
        (b"/a+b", ("a+b",)),
        (b"http://host:80/v2/x?y", ("v2", "x")),
        (b"*", ("*",)),
        (b"/a/../b", ("a", "..", "b")),
        (b"/a#frag", ("a",)),
        (b"/%zz", None),
        (b"/%", None),
        (b"/%4", None),
        (b"/%+1", None),
        (b"/%ff", None),
    ],
)
def test_segments_are_decoded_once(target: bytes, segments: tuple[str, ...] | None) -> None:
    """Each segment is percent-decoded once, after the path was split."""
    if segments is None:
        with pytest.raises(MalformedBody, match="path segment"):
            parse_target(target)
    else:
        assert segments == parse_target(target).segments


def test_query_is_decoded() -> None:
    """The query is a mapping; the last of repeated keys counts."""
    parsed = parse_target(b"/m?a=1&b=x%20y&a=2&c")

    assert {"a": "2", "b": "x y", "c": ""} == parsed.query
    assert parsed.path == "/m"


def test_headers_ignore_case_and_outer_blanks() -> None:
    """Header names match in any case; values lose the blanks around them."""
    headers = Headers({b"content-type": b"application/json ", b"x": b"\xe9"})

    assert headers["Content-TYPE"] == "application/json"
    assert headers["X"] == "é"
    assert headers.get("nope") is None
    assert headers.get("é模") is None
    assert ["content-type", "x"] == list(headers)
    assert len(headers) == 2


def test_request_is_formatted() -> None:
    """A request has a Host, and a length when it has a body."""
    assert format_request("POST", "/x", "h:1", [("A", "b")], b"12") == (
        b"POST /x HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\n12"
    )
    assert format_request("GET", "/x", "h") == b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX: y"])
def test_unquoted_target_is_a_defect(target: str) -> None:
    """A target that would change the request line is never sent."""
    with pytest.raises(AssertionError, match="percent-encoded"):
        format_request("GET", target, "h")


def test_error_body_is_json_whatever_the_text() -> None:
    """An error text with quotes or a broken character is still JSON."""
    assert format_error_body('say "\udcff"') == b'{"error":"say \\"?\\""}'
