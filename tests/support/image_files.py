"""Image files for tests: ordinary ones, rare ones, hostile ones."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from hloserve.core.tensors import Array

__all__ = [
    "COLOURS",
    "encoded",
    "exif_with_orientation",
    "insert_segment",
    "many_scans",
    "png_chunk",
    "png_of_size",
    "with_orientation",
]

COLOURS: Array = np.zeros((24, 32, 3), np.uint8)
"""Top left red, top right green, bottom left blue, bottom right grey."""
COLOURS[:12, :16], COLOURS[:12, 16:] = (200, 0, 0), (0, 200, 0)
COLOURS[12:, :16], COLOURS[12:, 16:] = (0, 0, 200), (90, 90, 90)


def encoded(image: Any, format: str = "PNG", **options: Any) -> bytes:
    """A file of an array, or of an image of Pillow."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    file = BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def exif_with_orientation(value: int, order: str = ">") -> bytes:
    """EXIF data of one entry, without the six bytes that stand before it in a JPEG."""
    start = b"MM\0*" if order == ">" else b"II*\0"
    entry = struct.pack(f"{order}IHHHIHH", 8, 1, 0x0112, 3, 1, value, 0)
    return start + entry + bytes(4)


def with_orientation(format: str, value: int, order: str = ">") -> bytes:
    """`COLOURS`, stored to be looked at otherwise."""
    exif = exif_with_orientation(value, order)
    if format == "PNG":
        return encoded(COLOURS, exif=exif)
    return insert_segment(encoded(COLOURS, "JPEG", quality=95), 0xE1, b"Exif\0\0" + exif)


def insert_segment(jpeg: bytes, marker: int, body: bytes) -> bytes:
    """The JPEG with another segment right behind its beginning."""
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body + jpeg[2:]


def many_scans(times: int) -> bytes:
    """A progressive JPEG whose last scan is there so many times more."""
    jpeg = encoded(COLOURS, "JPEG", progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    return jpeg[:-2] + jpeg[last:-2] * times + jpeg[-2:]


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of_size(width: int, height: int, pixels: bytes = b"") -> bytes:
    """A grey PNG that says it is so large; `pixels` is what its data unpacks to."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", zlib.compress(pixels, 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + png_chunk(b"IEND", b"")
