"""Sizes and durations as text."""

import pytest

from hloserve.core.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (0, "0"),
        (77, "77"),
        (77, "77B"),
        (536870912, "512MiB"),
        (536870912, " 512 mib "),
        (2_000_000_000, "2GB"),
        (1536, "1.5KiB"),
        (1500, "1.5kB"),
        (2**40, "1TiB"),
        (10**19, "10000000TB"),
    ],
)
def test_size_is_a_number_with_an_optional_unit(expected: int, text: str) -> None:
    """A size is a number of bytes, or carries a decimal or a binary unit, in any case."""
    assert expected == parse_bytes(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MiB",
        "-1",
        "+1",
        "1e3",
        "1_000",
        "0x10",
        "12 34",
        "1.5",
        "0.1KiB",
        "5MM",
        "\u0661",
        "1" * 21,
    ],
)
def test_size_that_is_no_whole_number_of_bytes_is_refused(text: str) -> None:
    """A size is never rounded or guessed."""
    with pytest.raises(ValueError, match=r"is not a (size|whole number)"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("expected", "text"),
    [(30.0, "30"), (30.0, "30s"), (0.25, "250ms"), (90.0, "1.5m"), (300.0, "5min"), (3600.0, "1h")],
)
def test_duration_is_seconds_unless_it_has_a_unit(expected: float, text: str) -> None:
    """A duration is in seconds, or carries a unit."""
    assert expected == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "s", "-1s", "1S", "1 d", "nan", "inf", "1h30m", "1e9"])
def test_duration_that_is_not_one_is_refused(text: str) -> None:
    """A duration has one number and one unit; M is not guessed to be minutes."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        ("0 B", 0),
        ("1023 B", 1023),
        ("1 KiB", 1024),
        ("1.46 KiB", 1500),
        ("512 MiB", 2**29),
        ("999 MiB", 999 * 2**20),
        ("0.977 GiB", 1000 * 2**20),
        ("2 TiB", 2**41),
    ],
)
def test_size_is_written_in_three_digits(expected: str, count: int) -> None:
    """A size for people has three digits and a binary unit."""
    assert expected == format_bytes(count)


@pytest.mark.parametrize(
    ("expected", "seconds"),
    [
        ("0s", 0.0),
        ("20us", 2e-5),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
    ],
)
def test_duration_is_written_in_the_unit_that_keeps_it_short(expected: str, seconds: float) -> None:
    """A duration for people has the largest unit that needs no fraction."""
    assert expected == format_duration(seconds)
