"""Content codings of request bodies."""

import gzip
import random
import time
import zlib

import pytest

from hloserve.core.errors import BodyTooLarge, MalformedBody, UnsupportedMedia
from hloserve.wire.http1_content import Coding, accepted_coding, decode_content, encode_content

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


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"", None),
        (b"gzip", "gzip"),
        (b"GZIP", "gzip"),
        (b"x-gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate, br, zstd", "gzip"),
        (b"deflate, gzip;q=0.5", "deflate"),
        (b"gzip;q=0, deflate;q=0.1", "deflate"),
        (b"gzip;q=0", None),
        (b"br", None),
        (b"identity", None),
        (b"*", "gzip"),
        (b"*;q=0", None),
        (b"gzip;q=0, *", "deflate"),
        (b"gzip; q=1.0", "gzip"),
        (b"gzip;level=1", "gzip"),
        (b"gzip;q=often", None),
    ],
)
def test_answer_has_the_coding_that_the_client_likes_best(
    accepted: bytes, coding: str | None
) -> None:
    """Of those that are served; gzip when it does not care."""
    assert coding == accepted_coding(accepted)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("nbytes", [1, 10_000, 1_000_000])
def test_encoded_content_is_decoded_again(coding: Coding, nbytes: int) -> None:
    """By our own reader, and small text is not made larger."""
    body = (b"1.5,2.25," * nbytes)[:nbytes]

    packed = encode_content(body, coding)

    if packed is None:
        assert nbytes == 1
    else:
        assert len(packed) < nbytes
        assert bytes(decode_content(packed, coding, nbytes)) == body


def test_content_that_does_not_shrink_is_left_alone() -> None:
    """Random bytes are found out by their start."""
    assert encode_content(random.Random(1).randbytes(1_000_000), "gzip") is None


def test_many_members_cost_what_they_weigh() -> None:
    """A body of empty gzip members takes no longer than its length, and has an end."""
    member = gzip.compress(b"")

    began_s = time.process_time()
    assert bytes(decode_content(member * 50_000 + gzip.compress(TEXT), "gzip", CAP)) == TEXT
    with pytest.raises(MalformedBody, match="more than 65536 gzip members"):
        decode_content(member * 70_000, "gzip", CAP)
    took_s = time.process_time() - began_s

    assert took_s < 10  # 3 minutes, when each member copied those that followed


@pytest.mark.parametrize("nbytes", [16 * 2**10 - 1, 16 * 2**10, 16 * 2**10 + 1, 100_000])
def test_data_of_any_length_is_decompressed(nbytes: int) -> None:
    """Also when it ends at a slice, or has several members around one."""
    data = random.Random(1).randbytes(nbytes)
    packed = gzip.compress(data)

    assert bytes(decode_content(packed, "gzip", nbytes)) == data
    assert bytes(decode_content(packed * 2, "gzip", 2 * nbytes)) == data * 2
    assert bytes(decode_content(zlib.compress(data), "deflate", nbytes)) == data
