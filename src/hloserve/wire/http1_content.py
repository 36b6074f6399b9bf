"""Content codings of request bodies: gzip and deflate, never larger than a cap.

What lives here: decompression that stops at the cap. What does not: transfer codings
(`hloserve.wire.http1`). Stateless; any thread.

Source: RFC 9110 section 8.4.
"""

import zlib

from hloserve.core.errors import BodyTooLarge, MalformedBody, UnsupportedMedia
from hloserve.wire.http1_messages import Body

__all__ = ["decode_content"]

_GZIP_BITS = 16 + zlib.MAX_WBITS
_SUPPORTED = ("gzip", "deflate", "identity")


def decode_content(
    body: Body, coding: str, max_bytes: int, setting: str = "http.max_body_bytes"
) -> Body:
    """Undo a Content-Encoding.

    Args:
        body: the body as it was sent.
        coding: the header's value; gzip, deflate or identity, in any case, one alone.
        max_bytes: cap of the result.
        setting: the configuration key of the cap, for the message.

    Raises:
        UnsupportedMedia: another coding, or several.
        BodyTooLarge: the result would be larger than `max_bytes`.
        MalformedBody: the data is damaged, cut short, or followed by something else.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        return _inflate(body, _GZIP_BITS, "gzip", max_bytes, setting)
    if name == "deflate":
        return _inflate(body, _deflate_bits(body), name, max_bytes, setting)
    raise UnsupportedMedia(f"Content-Encoding {coding.strip()[:64]!r}", _SUPPORTED)


def _deflate_bits(body: Body) -> int:
    """Tell zlib's wrapping, which the RFC means, from the bare stream that some clients send."""
    has_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS


def _inflate(body: Body, bits: int, name: str, max_bytes: int, setting: str) -> Body:
    pieces: list[bytes] = []
    size, rest = 0, bytes(body)
    while True:
        inflater = zlib.decompressobj(bits)
        try:
            piece = inflater.decompress(rest, max_bytes - size + 1)
        except zlib.error as error:
            raise MalformedBody(f"body is not valid {name} data: {error}") from error
        size += len(piece)
        if size > max_bytes:
            raise BodyTooLarge(max_bytes, None, setting)
        pieces.append(piece)
        if not inflater.eof:
            raise MalformedBody(f"body is cut short: the {name} data does not end")
        rest = inflater.unused_data
        if not rest:
            return b"".join(pieces)
        if bits != _GZIP_BITS:  # only gzip may have several members
            raise MalformedBody(f"body has {len(rest)} bytes after the end of its {name} data")
