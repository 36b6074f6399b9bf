"""Sizes and spans of time as people write them, and back.

What lives here: ``"512MiB"`` to bytes and ``"30s"`` to seconds, for the edges (configuration,
command line); inside there are plain numbers with the unit in their name. Pure; any thread.
"""

import math
import re

__all__ = ["format_bytes", "format_duration", "parse_bytes", "parse_duration"]

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]{0,3})\s*", re.ASCII)


def parse_bytes(text: str) -> int:
    """Read a number of bytes.

    Raises:
        ValueError: it is not one; the message is for users.

    Example:
        >>> parse_bytes("512MiB"), parse_bytes("1.5 kB"), parse_bytes("77")
        (536870912, 1500, 77)
    """
    match = _QUANTITY.fullmatch(text)
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError("is not a size; write a number of bytes, or like 512MiB or 2GB")
    if "." not in match[1]:
        return int(match[1]) * unit
    whole, fraction = match[1].split(".")
    denominator: int = 10 ** len(fraction)
    scaled, rest = divmod(int(whole + fraction) * unit, denominator)
    if rest:
        raise ValueError("is not a whole number of bytes")
    return scaled


def format_bytes(count: int) -> str:
    """Write a number of bytes for people, in powers of 1024 and three digits.

    Example:
        >>> format_bytes(512), format_bytes(536870912), format_bytes(1500)
        ('512 B', '512 MiB', '1.46 KiB')
    """
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1000:
            return f"{value:.3g} {unit}"
    return f"{value / 1024:.4g} TiB"


def parse_duration(text: str) -> float:
    """Read a span of time in seconds; without a unit it is seconds.

    Raises:
        ValueError: it is not one; the message is for users.

    Example:
        >>> parse_duration("30s"), parse_duration("1.5m"), parse_duration("250ms")
        (30.0, 90.0, 0.25)
    """
    match = _QUANTITY.fullmatch(text)
    unit = _SECONDS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError("is not a duration; write seconds, or like 250ms, 30s, 5m or 1h")
    return float(match[1]) * unit


def format_duration(seconds: float) -> str:
    """Write a span of time for people, in the unit that keeps it short.

    Example:
        >>> format_duration(30), format_duration(0.25), format_duration(7200), format_duration(90)
        ('30s', '250ms', '2h', '90s')
    """
    if not math.isfinite(seconds) or seconds == 0:
        return f"{seconds:g}s"
    size = abs(seconds)
    if size < 1e-3:
        return f"{seconds * 1e6:.4g}us"
    if size < 1:
        return f"{seconds * 1e3:.4g}ms"
    for unit, width in (("h", 3600), ("m", 60)):
        if size >= 2 * width and seconds % width == 0:
            return f"{seconds / width:g}{unit}"
    return f"{seconds:.6g}s"
