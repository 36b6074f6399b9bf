"""Images: from what clients send to pixels of the size that a network takes.

What lives here: decoding, resizing, letterboxing. What does not: boxes by themselves
(`hloserve.hooks.vision.boxes`). It needs Pillow, which lets other threads run while it decodes and
resizes. Any thread.
"""

from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hloserve.core.errors import InvalidInput
from hloserve.hooks.vision.boxes import Floats, clip_boxes, read_boxes
from hloserve.hooks.vision.image_bytes import ImageBytes, read_image_bytes

try:
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
except ImportError as error:
    raise ImportError(
        "images in hooks need Pillow: pip install 'hloserve[vision]', where the server runs"
    ) from error

__all__ = ["MAX_PIXELS", "Letterbox", "Pixels", "decode_image", "letterbox", "resize"]

Pixels: TypeAlias = npt.NDArray[np.uint8]
Filter: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]

MAX_PIXELS = 1 << 25
"""Of the largest image that is decoded: 33.5 million, those of a good camera."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Letterbox(NamedTuple):
    """An image that was fitted into another shape, with bars beside it.

    Attributes:
        image: [height, width, c] as asked for, uint8.
        scale: pixels of `image` per pixel of the original: vertically, horizontally. They differ by
            the rounding to whole pixels.
        offset: where the original begins in `image`: rows from the top, columns from the left.
        original_size: height and width of the original.
    """

    image: Pixels
    scale: tuple[float, float]
    offset: tuple[int, int]
    original_size: tuple[int, int]

    def original_boxes(self, boxes: npt.ArrayLike) -> Floats:
        """Boxes found in `image` as boxes of the original, clipped to it.

        Shapes:
            boxes: [m, 4].
            result: [m, 4], float64.
        """
        offset, scale = (np.tile(pair[::-1], 2) for pair in (self.offset, self.scale))
        return clip_boxes((read_boxes("boxes", boxes) - offset) / scale, *self.original_size)


def decode_image(
    data: bytes,
    *,
    channels: Literal[1, 3] = 3,
    is_turned: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Decode a JPEG or PNG, such as an element of a `BYTES` tensor.

    What comes out is RGB, or grey, of 8 bits, whatever the file holds: of 16 bits the high 8 are
    taken, palettes and CMYK are converted, transparency and colour profiles are left out. Of an
    animation it is the first picture. Damage inside of a JPEG that its decoder can get over is got
    over.

    Args:
        data: the file. Not copied where it need not be.
        channels: 3 for RGB, 1 for grey.
        is_turned: turn and mirror it as its EXIF data says that it is to be looked at; photos of
            telephones often lie on their side without.
        max_pixels: refuse larger images before they are decoded. A pixel takes 10 bytes of memory
            meanwhile, whatever the length of the file: at the default, up to 340 MB.

    Returns:
        Pixels that may be written into.

    Shapes:
        result: [height, width, channels], uint8.

    Raises:
        InvalidInput: it is neither, is damaged or cut off, or is too large.
        TypeError: `data` is not bytes.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"an image must be bytes, got {type(data).__name__}")
    image = read_image_bytes(data)
    if image.height * image.width > max_pixels:
        raise InvalidInput(
            f"the {image.format} is {image.height} x {image.width} pixels large, more than"
            f" {max_pixels} in all: send a smaller one"
        )
    decoded = _as_bits8(_decode(image)).convert("L" if channels == 1 else "RGB")
    if is_turned and image.orientation in _TURNS:
        decoded = decoded.transpose(_TURNS[image.orientation])
    return np.array(decoded).reshape(decoded.height, decoded.width, channels)


def resize(image: Pixels, height: int, width: int, method: Filter = "bilinear") -> Pixels:
    """Stretch an image to a size, as Pillow does: several pixels that become one are averaged.

    OpenCV and `jax.image.resize(antialias=False)` look at a few of them instead: take what the
    network was trained with.

    Args:
        image: what `decode_image` gives.
        height: in pixels, at least 1.
        width: likewise.
        method: the filter.

    Shapes:
        image: [h, w], or [h, w, c] of 1, 3 or 4 channels; uint8.
        result: [height, width] or [height, width, c], uint8.

    Raises:
        ValueError: the image is of another shape or type, or a size is below 1.
    """
    pixels = _read_pixels(image)
    if min(height, width) < 1:
        raise ValueError(f"cannot resize to {height} x {width} pixels")
    if pixels.shape[:2] == (height, width):
        return pixels.copy()
    flat = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    resized = np.array(Image.fromarray(flat).resize((width, height), _FILTERS[method]))
    return resized.reshape(height, width, *pixels.shape[2:])


def letterbox(
    image: Pixels, height: int, width: int, method: Filter = "bilinear", fill: int = 0
) -> Letterbox:
    """Fit an image into a size without distorting it, in the middle between two bars.

    Args:
        image: what `decode_image` gives.
        height: in pixels, at least 1.
        width: likewise.
        method: the filter, see `resize`.
        fill: what the bars are filled with, 0 to 255.

    Shapes:
        image: as for `resize`.

    Raises:
        ValueError: as `resize` does.

    Example:
        >>> fitted = letterbox(np.full((100, 200, 3), 9, np.uint8), 64, 64)
        >>> fitted.image.shape, fitted.offset, fitted.image[:, 0, 0].nonzero()[0].tolist()[::31]
        ((64, 64, 3), (16, 0), [16, 47])
        >>> fitted.original_boxes([[0, 16, 32, 48]]).tolist()
        [[0.0, 0.0, 100.0, 100.0]]
    """
    pixels = _read_pixels(image)
    if min(height, width) < 1:
        raise ValueError(f"cannot letterbox to {height} x {width} pixels")
    tall, wide = pixels.shape[:2]
    share = min(height / tall, width / wide)
    inner = max(1, round(tall * share)), max(1, round(wide * share))
    offset = (height - inner[0]) // 2, (width - inner[1]) // 2
    boxed = np.full((height, width, *pixels.shape[2:]), fill, np.uint8)
    rows, columns = (slice(at, at + extent) for at, extent in zip(offset, inner, strict=True))
    boxed[rows, columns] = resize(pixels, *inner, method)
    return Letterbox(boxed, (inner[0] / tall, inner[1] / wide), offset, (tall, wide))


def _decode(image: ImageBytes) -> Any:
    """The image as Pillow has it.

    Source: the classes are those that `PIL.Image.open` picks from. It also warns about large images
    by a limit of the whole process, and is not used for that.
    """
    kind: Any = JpegImageFile if image.format == "JPEG" else PngImageFile
    try:
        decoded = kind(BytesIO(image.pixels))
        if decoded.size != (image.width, image.height):
            raise ValueError(
                f"it says two sizes, {image.width} x {image.height} and {decoded.size}"
            )
        decoded.load()
    except MemoryError:
        raise
    except Exception as error:  # a decoder may raise anything, given a stranger's bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(f"the {image.format} cannot be decoded: {reason}") from error
    return decoded


def _as_bits8(decoded: Any) -> Any:
    """The image in a mode that Pillow converts from without warning, of 8 bits per channel."""
    if decoded.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(decoded) >> 8).astype(np.uint8))
    decoded.info.pop("transparency", None)
    return decoded


def _read_pixels(image: Pixels) -> Pixels:
    pixels = np.asarray(image)
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4))
    if not is_image or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(
            f"the image is {pixels.dtype} of shape {pixels.shape}, expected uint8 of"
            " (height, width, 3)"
        )
    return pixels
