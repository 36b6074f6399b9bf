"""Decompression in bounded pieces."""

import gzip
import zlib

import pytest

from hloserve.core.errors import BodyTooLarge, MalformedBody, Overloaded
from hloserve.wire.bytes_in_hand import BytesInHand, Growth
from hloserve.wire.inflating import Inflater, Source

ZLIB, GZIP = zlib.MAX_WBITS, 16 + zlib.MAX_WBITS
TEXT = b"0123456789" * 1000
MIB = 2**20


def _inflater(
    packed: bytes, limit: int = MIB, slice_bytes: int = 100, growth: Growth | None = None
) -> Inflater:
    source = Source(slice_bytes, cut_short="it ends too early", damaged="it cannot be read")
    return Inflater(packed, source, limit, "the.setting", growth)


@pytest.mark.parametrize("slice_bytes", [1, 7, MIB])
def test_streams_come_out_one_behind_the_other(slice_bytes: int) -> None:
    """Each on its own, whatever coding it has and wherever slices end."""
    first, second = gzip.compress(TEXT), zlib.compress(TEXT[::-1])
    inflater = _inflater(first + second + b"rest", slice_bytes=slice_bytes)

    inflater.read_stream(GZIP)
    assert (TEXT, len(second) + 4) == (bytes(inflater.result), inflater.rest_bytes)
    inflater.read_stream(ZLIB)

    assert (TEXT + TEXT[::-1], 4) == (bytes(inflater.result), inflater.rest_bytes)


def test_every_cut_is_told() -> None:
    """A stream that does not end is never taken for whole, not even an empty one."""
    packed = zlib.compress(TEXT)
    for cut in range(len(packed)):
        with pytest.raises(MalformedBody, match="it ends too early"):
            _inflater(packed[:cut]).read_stream(ZLIB)


def test_damage_is_told_with_its_reason() -> None:
    """In the words of who asked, and in those of zlib."""
    with pytest.raises(MalformedBody, match=r"it cannot be read: .*incorrect header check"):
        _inflater(b"not compressed").read_stream(ZLIB)


def test_result_may_reach_the_limit_and_no_more() -> None:
    """All streams have one limit together; one byte over it is refused, and decompressed alone."""
    packed = zlib.compress(TEXT) * 2
    exact, over = (_inflater(packed, 2 * len(TEXT) - less) for less in (0, 1))

    for inflater in (exact, over):
        inflater.read_stream(ZLIB)
    exact.read_stream(ZLIB)
    with pytest.raises(BodyTooLarge, match=rf"limit is {2 * len(TEXT) - 1} bytes.*the\.setting"):
        over.read_stream(ZLIB)

    assert TEXT * 2 == exact.result == over.result


def test_who_counts_is_asked_before_each_piece() -> None:
    """What there is no room for is not decompressed, and what had come is let go."""
    budget = BytesInHand(8 * MIB)
    packed = zlib.compress(bytes(64 * MIB), 1)
    account = budget.account()
    with Growth(account) as growth:
        inflater = _inflater(packed, 64 * MIB, MIB, growth)

        with pytest.raises(Overloaded):
            inflater.read_stream(ZLIB)

        assert 0 < account.held_bytes <= 9 * MIB  # the budget, and an eighth
    assert b"" == inflater.result
