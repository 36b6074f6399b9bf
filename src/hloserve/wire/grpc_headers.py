"""gRPC's headers and trailers: timeouts, status messages, prepared header lists.

What lives here: header fields as values and back. What does not: messages
(`hloserve.wire.grpc_framing`) and HTTP/2 (`hloserve.wire.http2`). Pure functions; any thread.

Source: gRPC over HTTP2, "Requests" and "Responses".
"""

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from hloserve.core.errors import BadRequest

__all__ = [
    "NO_TIMEOUT",
    "OK_HEADERS",
    "OK_TRAILERS",
    "Header",
    "Headers",
    "decode_text",
    "encode_metadata",
    "error_headers",
    "error_trailers",
    "format_timeout",
    "metadata_value",
    "parse_timeout_ns",
]

Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = tuple[Header, ...]

NO_TIMEOUT = -1
"""`parse_timeout_ns` of a request without a deadline."""

_ACCEPTED = (b"grpc-accept-encoding", b"identity,deflate,gzip")
OK_HEADERS: Final[list[Header]] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS: Final[list[Header]] = [(b"grpc-status", b"0")]

# Peers bound all headers of a response together, by default to 8 KiB.
_MAX_TEXT_BYTES = 2_048
# RFC 3986 unreserved plus what gRPC allows bare: every printable ASCII character but the percent.
_BARE = "".join(chr(c) for c in range(0x20, 0x7F) if c != 0x25)

_UNIT_NS: Mapping[int, int] = {
    ord("H"): 3_600_000_000_000,
    ord("M"): 60_000_000_000,
    ord("S"): 1_000_000_000,
    ord("m"): 1_000_000,
    ord("u"): 1_000,
    ord("n"): 1,
}
_MAX_TIMEOUT_DIGITS = 8
_TIMEOUT_END = 10**_MAX_TIMEOUT_DIGITS


def parse_timeout_ns(value: bytes) -> int:
    """Read `grpc-timeout` as nanoseconds.

    Raises:
        BadRequest: it is not one to eight digits and a unit.
    """
    digits, unit = value[:-1], _UNIT_NS.get(value[-1]) if value else None
    if unit is None or not digits.isdigit() or len(digits) > _MAX_TIMEOUT_DIGITS:
        raise BadRequest(
            f"grpc-timeout is {_printable(value)!r},"
            " expected one to eight digits and one of H M S m u n"
        )
    return int(digits) * unit


def format_timeout(timeout_s: float) -> bytes:
    """Write `grpc-timeout` in the finest unit from microseconds on that fits eight digits.

    Never less than given, to the microsecond.
    """
    microseconds = max(0, math.ceil(timeout_s * 1e6))
    if microseconds < _TIMEOUT_END:
        return b"%du" % microseconds
    for unit, letter in ((1_000, b"m"), (1_000_000, b"S")):
        count = -(-microseconds // unit)
        if count < _TIMEOUT_END:
            return b"%d%s" % (count, letter)
    return b"%dH" % min(-(-microseconds // 3_600_000_000), _TIMEOUT_END - 1)


def error_trailers(code: int, text: str) -> list[Header]:
    """Trailers of a failed call; the text is cut to what every peer accepts."""
    encoded = quote(text[:_MAX_TEXT_BYTES], safe=_BARE, errors="replace").encode("ascii")
    if len(encoded) > _MAX_TEXT_BYTES:
        encoded = _cut(encoded)
    # HTTP/2 forbids spaces at the ends of a value.
    encoded = encoded.strip(b" ")
    return [(b"grpc-status", b"%d" % code), (b"grpc-message", encoded)]


def _cut(encoded: bytes) -> bytes:
    """Cut between two characters: peers show a text that is no UTF-8 as something else."""
    encoded = encoded[:_MAX_TEXT_BYTES]
    cut = encoded.rfind(b"%", -2)  # a %XX that lost its end
    whole = unquote_to_bytes(encoded[:cut] if cut >= 0 else encoded)
    return quote(whole.decode("utf-8", "ignore"), safe=_BARE).encode("ascii")


def error_headers(code: int, text: str) -> list[Header]:
    """The one header block of a call that fails before it has sent anything."""
    return [*OK_HEADERS, _ACCEPTED, *error_trailers(code, text)]


def decode_text(value: bytes) -> str:
    """Read `grpc-message`; what is not valid is shown as it came."""
    return unquote_to_bytes(value).decode("utf-8", "replace")


def metadata_value(headers: Iterable[Header], name: str) -> str | bytes | None:
    """The first field of that name; bytes for names that end in ``-bin``, None when absent.

    A binary value that is not base64 is given as it came.
    """
    wanted = name.encode("ascii", "replace").lower()
    for key, value in headers:
        if key == wanted:
            return _decode_binary(value) if wanted.endswith(b"-bin") else value.decode("latin-1")
    return None


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> list[Header]:
    """Metadata as header fields: names in lower case, ``-bin`` values in base64."""
    fields: list[Header] = []
    for name, value in metadata:
        raw = value.encode("latin-1") if isinstance(value, str) else value
        key = name.lower().encode("ascii")
        fields.append((key, base64.b64encode(raw).rstrip(b"=") if key.endswith(b"-bin") else raw))
    return fields


def _decode_binary(value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value


def _printable(value: bytes) -> str:
    return value[:32].decode("ascii", "replace")
