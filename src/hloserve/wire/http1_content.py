"""Content codings, gzip and deflate: of request bodies, never larger than a cap, and of answers.

What lives here: what a compressed body may consist of, compression where it is worth it, and which
coding a client accepts. What does not: decompression (`hloserve.wire.inflating`) and transfer
codings (`hloserve.wire.http1`). Stateless; any thread.

Source: RFC 9110 sections 8.4 and 12.5.3.
"""

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from hloserve.core.errors import MalformedBody, UnsupportedMedia
from hloserve.wire.bytes_in_hand import Growth
from hloserve.wire.http1_messages import Body
from hloserve.wire.inflating import Inflater, Source

__all__ = ["Coding", "accepted_coding", "decode_content", "encode_content"]

Coding: TypeAlias = Literal["gzip", "deflate"]

_GZIP_BITS = 16 + zlib.MAX_WBITS
_SLICE_BYTES = 16 * 2**10
"""What one call decompresses. Of its input, what follows a member is copied, so that many members
in one piece would cost the square of their number."""
_SOURCES: Mapping[Coding, Source] = {
    name: Source(
        slice_bytes=_SLICE_BYTES,
        cut_short=f"body is cut short: the {name} data does not end",
        damaged=f"body is not valid {name} data",
    )
    for name in get_args(Coding)
}
_MOST_MEMBERS = 2**16
"""Blocked gzip has one per 64 KiB. An empty one takes 20 bytes, and a microsecond to begin."""
_SUPPORTED = ("gzip", "deflate", "identity")

_LEVEL = 1
"""Higher levels save some percent of text, and take two to five times as long."""
_TRIAL_BYTES = 16 * 2**10
_WORTH_FRACTION = 0.9
"""A body whose start does not shrink below this is sent as it is: random floats do not."""


def decode_content(
    body: Body,
    coding: str,
    max_bytes: int,
    setting: str = "http.max_body_bytes",
    growth: Growth | None = None,
) -> Body:
    """Undo a Content-Encoding.

    Args:
        body: the body as it was sent.
        coding: the header's value; gzip, deflate or identity, in any case, one alone.
        max_bytes: cap of the result.
        setting: the configuration key of the cap, for the message.
        growth: counts what comes out.

    Raises:
        Overloaded: the process has too many bytes in hand.
        UnsupportedMedia: another coding, or several.
        BodyTooLarge: the result would be larger than `max_bytes`.
        MalformedBody: the data is damaged, cut short, or followed by something else.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        return _inflate(body, _GZIP_BITS, "gzip", max_bytes, setting, growth)
    if name == "deflate":
        return _inflate(body, _deflate_bits(body), "deflate", max_bytes, setting, growth)
    raise UnsupportedMedia(f"Content-Encoding {coding.strip()[:64]!r}", _SUPPORTED)


def _deflate_bits(body: Body) -> int:
    """Tell zlib's wrapping, which the RFC means, from the bare stream that some clients send."""
    has_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS


def _inflate(
    body: Body, bits: int, name: Coding, max_bytes: int, setting: str, growth: Growth | None
) -> Body:
    inflater = Inflater(body, _SOURCES[name], max_bytes, setting, growth)
    for _ in range(_MOST_MEMBERS):
        inflater.read_stream(bits)
        rest = inflater.rest_bytes
        if not rest:
            return memoryview(inflater.result).toreadonly()
        if bits != _GZIP_BITS:  # only gzip may have several members
            raise MalformedBody(f"body has {rest} bytes after the end of its {name} data")
    raise MalformedBody(f"body has more than {_MOST_MEMBERS} {name} members")


@lru_cache(maxsize=256)
def accepted_coding(accept_encoding: bytes) -> Coding | None:
    """The coding to answer with, by the client's Accept-Encoding; None for no coding.

    What the client likes best of ours; gzip when it does not say. A field that cannot be read
    accepts nothing.
    """
    weights: dict[str, float] = {}
    for part in accept_encoding.decode("latin-1").lower().split(","):
        name, _, parameter = part.partition(";")
        key, _, value = parameter.partition("=")
        try:
            weights[name.strip()] = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            return None
    others = weights.get("*", 0.0)
    gzip = weights.get("gzip", weights.get("x-gzip", others))
    deflate = weights.get("deflate", others)
    if max(gzip, deflate) <= 0:
        return None
    return "gzip" if gzip >= deflate else "deflate"


def encode_content(body: Body, coding: Coding) -> bytes | None:
    """Apply a content coding; None when the body hardly shrinks."""
    view = memoryview(body)
    bits = _GZIP_BITS if coding == "gzip" else zlib.MAX_WBITS
    if len(view) > 2 * _TRIAL_BYTES:
        trial = zlib.compress(view[:_TRIAL_BYTES], _LEVEL)
        if len(trial) > _TRIAL_BYTES * _WORTH_FRACTION:
            return None
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, bits)
    packed = packer.compress(view) + packer.flush()
    return packed if len(packed) < len(view) * _WORTH_FRACTION else None
