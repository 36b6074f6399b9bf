"""gRPC's header values."""

import pytest

from hloserve.core.errors import BadRequest
from hloserve.wire.grpc_headers import (
    decode_text,
    encode_metadata,
    error_trailers,
    format_timeout,
    metadata_value,
    parse_timeout_ns,
)


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        (b"1H", 3_600 * 10**9),
        (b"2M", 120 * 10**9),
        (b"3S", 3 * 10**9),
        (b"4m", 4 * 10**6),
        (b"5u", 5 * 10**3),
        (b"6n", 6),
        (b"0n", 0),
        (b"00000001S", 10**9),
        (b"99999999H", 99_999_999 * 3_600 * 10**9),
    ],
)
def test_timeouts_are_read_in_every_unit(value: bytes, nanoseconds: int) -> None:
    """One to eight digits and a unit."""
    assert nanoseconds == parse_timeout_ns(value)


@pytest.mark.parametrize(
    "value", [b"", b"S", b"1", b"-1S", b"1.5S", b"1s", b"123456789n", b"1 S", b"\xb2S", b"S1"]
)
def test_a_malformed_timeout_is_a_bad_request(value: bytes) -> None:
    """The message shows the value and the form."""
    with pytest.raises(BadRequest, match="grpc-timeout"):
        parse_timeout_ns(value)


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        (-1.0, b"0u"),
        (0.0, b"0u"),
        (1e-9, b"1u"),
        (0.0999, b"99900u"),
        (99.9, b"99900000u"),
        (1.0, b"1000000u"),
        (1000.0, b"1000000m"),
        (1e6, b"1000000S"),
        (1e9, b"277778H"),
        (1e15, b"99999999H"),
    ],
)
def test_timeouts_are_written_in_the_finest_unit_that_fits(seconds: float, value: bytes) -> None:
    """Never more than eight digits, never less than asked for."""
    assert value == format_timeout(seconds)


def _text(trailers: list[tuple[bytes, bytes]]) -> bytes:
    return dict(trailers)[b"grpc-message"]


def test_a_status_text_is_percent_encoded() -> None:
    """Printable ASCII stays readable; the rest and the percent sign are encoded."""
    trailers = error_trailers(5, "größe 100% 'x'\n")

    assert trailers[0] == (b"grpc-status", b"5")
    assert _text(trailers) == b"gr%C3%B6%C3%9Fe 100%25 'x'%0A"
    assert decode_text(_text(trailers)) == "größe 100% 'x'\n"


@pytest.mark.parametrize("letter", ["x", "ß", "%", " ", "\ud800", "\U0001d518"], ids=ascii)
def test_a_long_status_text_is_cut(letter: str) -> None:
    """What peers would refuse is cut, between two characters, never ending in a space."""
    value = _text(error_trailers(3, "'" + letter * 10_000))

    assert len(value) <= 2_048
    assert set(decode_text(value)) <= {"'", "?" if letter == "\ud800" else letter}
    assert value == value.strip()


def test_metadata_is_found_by_name() -> None:
    """The first field counts, names are case-insensitive, binary values are decoded."""
    headers = ((b":path", b"/x"), (b"key", b"v\xe9"), (b"key", b"w"), (b"data-bin", b"AP8"))

    assert metadata_value(headers, "KEY") == "vé"
    assert metadata_value(headers, "data-bin") == b"\x00\xff"
    assert metadata_value(headers, "other") is None
    assert metadata_value(((b"data-bin", b"!"),), "data-bin") == b"!"


def test_metadata_is_written_as_it_is_read() -> None:
    """Binary values travel as base64."""
    fields = encode_metadata([("Key", "v"), ("data-bin", b"\x00\xff")])

    assert fields == [(b"key", b"v"), (b"data-bin", b"AP8")]
