"""What a JPEG or PNG says of itself, and the part of it that holds the pixels.

What lives here: the structure of both formats, down to where the compressed pixels begin. What does
not: decoding them (`hloserve.hooks.vision.images`). Pure; any thread.

Rules.
1. What is wrong with the bytes is the sender's mistake: `InvalidInput`, never another error.
2. The decoder gets pixels alone. Texts, profiles, previews, further frames and EXIF are cut out, so
   that none of its code for them ever runs on what a stranger has sent.
3. Work is bounded by the length of the bytes, before anything is decompressed.
"""

import re
import struct
from typing import NamedTuple

from hloserve.core.errors import InvalidInput

__all__ = ["MOST_SCANS", "ImageBytes", "read_image_bytes"]

MOST_SCANS = 100
"""A JPEG may tell of every pixel again and again, at a few bytes each; encoders do so 10 times."""

_MOST_CHUNKS, _MOST_SEGMENTS = 100_000, 10_000
"""Of a PNG and of a JPEG. A file of 64 MiB that is nothing else would have millions of them."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_JPEG_START = b"\xff\xd8"
_PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")

# Markers of JPEG, second byte.
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # "start of frame", by its compression
_SCAN, _END, _EXIF = 0xDA, 0xD9, 0xE1
_JFIF, _ADOBE = 0xE0, 0xEE  # say how colours are stored
_UNNEEDED = {*range(0xE0, 0xF0), 0xFE} - {_JFIF, _ADOBE}
_ORIENTATION = 0x0112
_FILL = re.compile(rb"\xff+")
_MARKER = re.compile(
    rb"\xff[^\x00\xd0-\xd7\xff]"
)  # compressed data has none; restarts belong to it


class ImageBytes(NamedTuple):
    """An image that has been looked at, but not decoded.

    Attributes:
        format: ``JPEG`` or ``PNG``.
        height: of the stored pixels.
        width: likewise.
        orientation: EXIF's, 1 to 8: how the stored pixels are to be turned; 1 is not at all.
        pixels: the file without what is not needed for its pixels.
    """

    format: str
    height: int
    width: int
    orientation: int
    pixels: bytes


def read_image_bytes(data: bytes) -> ImageBytes:
    """Look at an image.

    Raises:
        InvalidInput: it is neither JPEG nor PNG, is cut off before its pixels begin, has no pixels,
            or has more than `MOST_SCANS` scans, or more parts than any encoder writes.

    Source: ITU-T T.81 annex B; the PNG specification, section 5; EXIF 2.3, section 4.
    """
    if data.startswith(_PNG_START):
        image = _read_png(data)
    elif data.startswith(_JPEG_START):
        image = _read_jpeg(data)
    elif not data:
        raise InvalidInput("the image is empty")
    else:
        raise InvalidInput(f"the image is neither JPEG nor PNG: it begins with {data[:8]!r}")
    if not image.height or not image.width:
        raise InvalidInput(f"the {image.format} has no pixels: {image.height} x {image.width}")
    return image


def _read_png(data: bytes) -> ImageBytes:
    at, kept, exif = len(_PNG_START), [_PNG_START], b""
    for _ in range(_MOST_CHUNKS):
        if at + 12 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if kind in _PNG_PIXELS:
            kept.append(data[at:end])
        elif kind == b"eXIf":
            exif = data[at + 8 : end - 4]
        at = end
    else:
        raise InvalidInput(f"the PNG has more than {_MOST_CHUNKS} chunks")
    if len(kept) < 2 or kept[1][4:8] != b"IHDR" or len(kept[1]) != 25:
        raise InvalidInput("the PNG is cut off or damaged: it does not begin with its size")
    width, height = struct.unpack_from(">II", kept[1], 8)
    return ImageBytes("PNG", height, width, _orientation(exif), b"".join(kept))


def _read_jpeg(data: bytes) -> ImageBytes:
    at, kept, exif, sizes = len(_JPEG_START), [_JPEG_START], b"", []
    for _ in range(_MOST_SEGMENTS):
        marker, at, end = _segment(data, at)
        if marker in _SIZES:
            sizes.append(struct.unpack_from(">HH", data[at:end].ljust(9, b"\0"), 5))
        if marker == _EXIF and data[at + 4 : at + 10] == b"Exif\0\0":
            exif = exif or data[at + 10 : end]
        if marker == _SCAN:
            break
        if marker not in _UNNEEDED:
            kept.append(data[at:end])
        at = end
    else:
        raise InvalidInput(f"the JPEG has more than {_MOST_SEGMENTS} segments")
    if len(sizes) != 1:
        raise InvalidInput(f"the JPEG is damaged: it says its size {len(sizes)} times")
    _check_scans(data, end)
    height, width = sizes[0]
    return ImageBytes("JPEG", height, width, _orientation(exif), b"".join([*kept, data[at:]]))


def _segment(data: bytes, at: int) -> tuple[int, int, int]:
    """The next marker, where its segment begins, and where that ends."""
    fill = _FILL.match(data, at)
    at = fill.end() - 1 if fill else len(data)
    if at + 4 > len(data) or data[at + 1] == _END:
        raise InvalidInput("the JPEG is cut off or damaged before its pixels begin")
    return data[at + 1], at, at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _check_scans(data: bytes, at: int) -> None:
    """Go over the segments behind the beginning of the first scan, to the end of the image."""
    scans = 1
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None or data[found.start() + 1] == _END:
            return
        at = found.start()
        scans += data[at + 1] == _SCAN
        if scans > MOST_SCANS:
            raise InvalidInput(f"the JPEG has more than {MOST_SCANS} scans")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise InvalidInput(f"the JPEG has more than {_MOST_SEGMENTS} segments")


def _orientation(exif: bytes) -> int:
    """The entry of EXIF's first directory; 1 when there is none, or it is damaged."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, start)
        for entry in range(entries):
            tag, value = struct.unpack_from(f"{order}H6xH", exif, start + 2 + 12 * entry)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # it points beyond its end
        pass
    return 1
