"""HTTP/1.1 messages as data: limits, requests, responses, and the bytes of a response head.

What lives here: plain values and pure formatting. What does not: parsing and connection state
(`hloserve.wire.http1`), sockets (`hloserve.server.rest_transport`). Any thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from typing_extensions import override

from hloserve.core.errors import MalformedBody

__all__ = [
    "Body",
    "Headers",
    "HttpLimits",
    "HttpRequest",
    "HttpResponse",
    "Target",
    "format_error_body",
    "format_request",
    "format_response_head",
    "parse_target",
]

Body: TypeAlias = bytes | memoryview
"""A whole message body in one contiguous buffer."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection may ask for before it is refused.

    Attributes:
        max_body_bytes: cap of a request body, as sent and after decompression. Over it: 413.
        max_target_bytes: cap of the request target. Over it: 414.
        max_header_bytes: cap of all header names and values together. Over it: 431.
        max_headers: cap of the number of header lines. Over it: 431.
        max_pipelined: requests of one connection held at once; reading stops at it.
        body_setting: the configuration key that raises `max_body_bytes`, for the error text.
        grpc_hint: where gRPC clients find their server, for those that connect here.
    """

    max_body_bytes: int = 512 * 2**20
    max_target_bytes: int = 8 * 2**10
    max_header_bytes: int = 64 * 2**10
    max_headers: int = 100
    max_pipelined: int = 64
    body_setting: str = "http.max_body_bytes"
    grpc_hint: str = "this is the HTTP/1.1 port; gRPC is served on another port (default 8001)"


class HttpRequest:
    """One whole request.

    Attributes:
        method: upper-case method.
        target: the request target, undecoded; see `parse_target`.
        headers: values by lower-case name; repeated headers are joined by a comma.
        body: the whole body, unchunked but not decompressed.
        keep_alive: False when the connection must close after the response.
        reply: the response's bytes once it is answered.
        context: the claim on the bytes in hand of a body that has one, until the transport takes it
            and ties something of its own to the request.
    """

    __slots__ = ("body", "context", "headers", "keep_alive", "method", "reply", "target")

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: dict[bytes, bytes],
        body: Body,
        keep_alive: bool,
    ) -> None:
        self.method, self.target, self.headers = method, target, headers
        self.body, self.keep_alive = body, keep_alive
        self.reply: tuple[bytes, bytes] | None = None
        self.context: Any = None


class HttpResponse:
    """One whole response, as the client reads it."""

    __slots__ = ("body", "headers", "keep_alive", "status")

    def __init__(
        self, status: int, headers: dict[bytes, bytes], body: Body, keep_alive: bool
    ) -> None:
        self.status, self.headers = status, headers
        self.body, self.keep_alive = body, keep_alive


class Headers(Mapping[str, str]):
    """Headers by name in any case; values are decoded when they are looked up."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[bytes, bytes]) -> None:
        self._raw = raw

    @override
    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode("latin-1", "replace")].decode("latin-1").strip()

    @override
    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    @override
    def __len__(self) -> int:
        return len(self._raw)


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed request target.

    Attributes:
        path: undecoded, from its first slash.
        segments: the path between slashes, each percent-decoded once, so that a decoded slash
            never separates. One trailing slash is ignored: ``/v2/`` equals ``/v2``.
        query: decoded; of a repeated key the last value.
    """

    path: str
    segments: tuple[str, ...]
    query: Mapping[str, str]


@lru_cache(maxsize=1024)
def parse_target(target: bytes) -> Target:
    """Parse a request target in origin or absolute form.

    Raises:
        MalformedBody: a segment is not UTF-8 after decoding, or a percent sign is not followed
            by two hexadecimal digits.

    Source: RFC 9112 section 3.2.
    """
    text = target.decode("latin-1").partition("#")[0]
    if not text.startswith("/") and "://" in text:
        text = "/" + text.partition("://")[2].partition("/")[2]
    path, _, query = text.partition("?")
    pieces = path.split("/")[1:] if path.startswith("/") else [path]
    if pieces and not pieces[-1]:
        pieces.pop()
    return Target(path, tuple(map(_decode_segment, pieces)), dict(parse_qsl(query, True)))


def _decode_segment(segment: str) -> str:
    if "%" not in segment and segment.isascii():
        return segment
    for piece in segment.split("%")[1:]:
        if len(piece) < 2 or not set(piece[:2]) <= set("0123456789abcdefABCDEF"):
            raise MalformedBody(
                f"path segment {segment!r} has a percent sign that is not followed by two"
                " hexadecimal digits; encode a percent sign as %25"
            )
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise MalformedBody(f"path segment {segment!r} does not decode to UTF-8") from None


_REASONS = {status.value: status.phrase for status in HTTPStatus}
_UNSAFE = frozenset("\r\n\0")


@lru_cache(maxsize=256)
def _head_start(status: int, content_type: str) -> bytes:
    assert not _UNSAFE & set(content_type), f"content type {content_type!r} would split the head"
    lines = f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n"
    if content_type:
        lines += f"Content-Type: {content_type}\r\n"
    return (lines + "Content-Length: ").encode("latin-1")


def format_response_head(
    status: int,
    content_type: str,
    length: int,
    headers: Sequence[tuple[str, str]] = (),
    common: bytes = b"",
    close: bool = False,
) -> bytes:
    """Write the head of a response, its empty line included.

    Args:
        status: 200 to 599.
        content_type: empty for none.
        length: bytes of the body.
        headers: further headers, e.g. ``("Retry-After", "1")``.
        common: whole lines that every response of a server carries.
        close: announce that the connection ends after this response.
    """
    head = b"%b%d\r\n%b" % (_head_start(status, content_type), length, common)
    for name, value in headers:
        assert not _UNSAFE & set(name + value), f"header {name!r} would split the head"
        head += f"{name}: {value}\r\n".encode("latin-1")
    return head + (b"Connection: close\r\n\r\n" if close else b"\r\n")


def format_error_body(message: str) -> bytes:
    """The JSON body of every error: ``{"error": "..."}``."""
    return msgspec.json.encode({"error": message.encode("utf-8", "replace").decode()})


def format_request(
    method: str,
    target: str,
    host: str,
    headers: Sequence[tuple[str, str]] = (),
    body: Body | None = None,
) -> bytes:
    """Write a whole request. `target` is sent as it is: quote names before."""
    assert not (_UNSAFE | {" "}) & set(target), f"target {target!r} must be percent-encoded"
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    for name, value in headers:
        assert not _UNSAFE & set(name + value), f"header {name!r} would split the head"
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if body is None else b"".join((head, body))
