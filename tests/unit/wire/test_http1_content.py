"""Content codings of request bodies."""

import gzip
import zlib

import pytest

from hloserve.core.errors import BodyTooLarge, MalformedBody, UnsupportedMedia
from hloserve.wire.http1_content import decode_content

TEXT = b'{"inputs": []}' * 50
CAP = 10_000


def bare_deflate(data: bytes) -> bytes:
    """A deflate stream without zlib's wrapping."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(TEXT)),
        (" GZip ", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", bare_deflate(TEXT)),
        ("identity", TEXT),
        ("", TEXT),
    ],
)
def test_supported_codings_are_undone(coding: str, body: bytes) -> None:
    """Gzip and both readings of deflate give the original back."""
    assert decode_content(memoryview(body), coding, CAP) == TEXT


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, deflate", "compress", "é"])
def test_other_codings_are_refused(coding: str) -> None:
    """What the server does not read is named, with what it does."""
    with pytest.raises(UnsupportedMedia, match="use gzip or deflate or identity"):
        decode_content(TEXT, coding, CAP)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [b"", b"not compressed", b"\x1f\x8b\x08"])
def test_damaged_data_is_refused(coding: str, body: bytes) -> None:
    """Damaged data is the caller's fault and says so."""
    with pytest.raises(MalformedBody, match="body is"):
        decode_content(body, coding, CAP)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_every_cut_is_noticed(coding: str) -> None:
    """Compressed data that ends early is never taken for whole."""
    body = gzip.compress(TEXT) if coding == "gzip" else zlib.compress(TEXT)
    for cut in range(1, len(body)):
        with pytest.raises(MalformedBody):
            decode_content(body[:cut], coding, CAP)


def test_result_is_capped() -> None:
    """A small body that grows over the cap is refused while it grows."""
    bomb = gzip.compress(bytes(50_000_000))

    with pytest.raises(BodyTooLarge, match=r"limit is 10000 bytes.*http\.max_body_bytes"):
        decode_content(bomb, "gzip", CAP)
    assert len(decode_content(gzip.compress(bytes(CAP)), "gzip", CAP)) == CAP


def test_members_share_the_cap() -> None:
    """Several gzip members together stay under the cap."""
    with pytest.raises(BodyTooLarge):
        decode_content(gzip.compress(bytes(6000)) * 2, "gzip", CAP)


def test_bytes_after_the_data_are_refused() -> None:
    """Nothing may follow on compressed data."""
    with pytest.raises(MalformedBody, match="after the end"):
        decode_content(zlib.compress(TEXT) + b"x", "deflate", CAP)
