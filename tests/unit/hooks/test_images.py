"""Images for hooks: what comes out of every kind of file, and that hostile ones are refused."""

import re
import subprocess
import sys
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.image_files import (
    COLOURS,
    encoded,
    exif_with_orientation,
    insert_segment,
    many_scans,
    png_chunk,
    png_of_size,
    with_orientation,
)

from hloserve.core.errors import InvalidInput
from hloserve.core.tensors import Array, NamedTensor
from hloserve.hooks import vision
from hloserve.hooks.registration import collect_registrations
from hloserve.hooks.tensor_list import TensorList

PNG, JPEG = encoded(COLOURS), encoded(COLOURS, "JPEG", quality=95)


def test_png_is_decoded_exactly() -> None:
    """Rows, columns, red, green and blue, in memory that is the caller's."""
    image = vision.decode_image(PNG)

    np.testing.assert_array_equal(COLOURS, image)
    assert np.uint8 == image.dtype
    image[0] = 1  # it can be written into


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_jpeg_is_decoded_as_pillow_does(options: dict[str, Any]) -> None:
    """Bit for bit, also when it is progressive."""
    file = encoded(COLOURS, "JPEG", **options)

    image = vision.decode_image(file)

    np.testing.assert_array_equal(_by_pillow(file), image)


def test_grey_is_one_channel() -> None:
    """Asked for, of a colour image as of a grey one; else grey is three equal channels."""
    grey = encoded(COLOURS[..., 0])

    assert (24, 32, 1) == vision.decode_image(PNG, channels=1).shape
    np.testing.assert_array_equal(COLOURS[..., :1], vision.decode_image(grey, channels=1))
    np.testing.assert_array_equal(COLOURS[..., [0, 0, 0]], vision.decode_image(grey))


def test_sixteen_bits_become_the_high_eight() -> None:
    """Grey of 16 bits is scaled, not cut off at 255."""
    deep = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16) + 77

    image = vision.decode_image(encoded(deep), channels=1)

    np.testing.assert_array_equal(deep >> 8, image[..., 0])


@pytest.mark.parametrize("transparency", [None, 0, bytes([0, 128, 255, 255])], ids=str)
def test_palettes_become_colours(transparency: Any) -> None:
    """A palette, with any kind of transparency, gives its colours, and no warning."""
    palette = Image.fromarray(COLOURS).quantize(4)
    options = {} if transparency is None else {"transparency": transparency}

    image = vision.decode_image(encoded(palette, **options))

    np.testing.assert_array_equal(np.asarray(palette.convert("RGB")), image)


def test_black_and_white_is_zero_and_255() -> None:
    """One bit per pixel."""
    image = vision.decode_image(encoded(Image.fromarray(COLOURS[..., 0] > 0)))

    assert [0, 255] == np.unique(image).tolist()


def test_transparency_is_left_out() -> None:
    """The colours that are stored come out, whether they can be seen or not."""
    see_through = np.dstack([COLOURS, np.arange(24 * 32).reshape(24, 32) % 256]).astype(np.uint8)

    np.testing.assert_array_equal(COLOURS, vision.decode_image(encoded(see_through)))


def test_cmyk_becomes_rgb() -> None:
    """As Pillow converts it, also where Adobe has stored it inverted."""
    file = encoded(Image.fromarray(COLOURS).convert("CMYK"), "JPEG", quality=95)

    image = vision.decode_image(file)

    np.testing.assert_array_equal(_by_pillow(file), image)
    assert abs(image.astype(int) - COLOURS).mean() < 8


def test_of_an_animation_the_first_picture_is_decoded() -> None:
    """An animated PNG is an image like others."""
    others = [Image.fromarray(COLOURS[::-1]), Image.fromarray(COLOURS[:, ::-1])]
    file = encoded(COLOURS, save_all=True, append_images=others)

    np.testing.assert_array_equal(COLOURS, vision.decode_image(file))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_image_is_turned_as_it_is_to_be_looked_at(format: str, value: int, order: str) -> None:
    """All eight orientations of EXIF, in both byte orders; and not when it is not wanted."""
    turned = _turned(COLOURS, value)
    file = with_orientation(format, value, order)

    image = vision.decode_image(file)
    as_stored = vision.decode_image(file, is_turned=False)

    assert turned.shape == image.shape
    assert abs(image.astype(int) - turned).mean() < (12 if format == "JPEG" else 1e-9)
    np.testing.assert_array_equal(_turned(as_stored, value), image)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"XX*\0" + exif_with_orientation(6)[4:],
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff" + bytes(24),
        exif_with_orientation(0),
        exif_with_orientation(9),
    ],
    ids=range(7),
)
def test_damaged_exif_is_no_orientation(exif: bytes) -> None:
    """What cannot be read does not turn the image, and does not refuse it."""
    file = insert_segment(JPEG, 0xE1, b"Exif\0\0" + exif)

    np.testing.assert_array_equal(vision.decode_image(JPEG), vision.decode_image(file))


@pytest.mark.parametrize("file", [PNG, JPEG, many_scans(0)], ids=["png", "jpeg", "progressive"])
def test_truncated_image_is_the_senders_mistake(file: bytes) -> None:
    """However little of it has arrived."""
    behind_pixels = 24 if file is PNG else 0  # two checksums and a chunk may be missing

    for length in range(len(file) - behind_pixels):
        with pytest.raises(InvalidInput):
            vision.decode_image(file[:length])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the image is empty"),
        (b"GIF89a" + bytes(20), "neither JPEG nor PNG: it begins with b'GIF89a"),
        (b"\xff\xd8\xff\xd9", "cut off or damaged before its pixels begin"),
        (png_of_size(0, 5), "has no pixels: 5 x 0"),
        (png_of_size(4, 4, b"short"), "the PNG cannot be decoded"),
        (PNG[:8] + PNG[33:], "does not begin with its size"),
        (insert_segment(JPEG, 0xC0, b"\x08\x00\x18\x00\x20\x03"), "says its size 2 times"),
        (insert_segment(JPEG, 0xC0, b""), "says its size 2 times"),
        (many_scans(200), "more than 100 scans"),
        (JPEG[:2] + b"\xff\xfe\0\2" * 10_000 + JPEG[2:], "more than 10000 segments"),
        (many_scans(0)[:-2] + b"\xff\xfe\0\2" * 10_000, "more than 10000 segments"),
        (PNG[:33] + png_chunk(b"tEXt", b"") * 100_000 + PNG[33:], "more than 100000 chunks"),
    ],
    ids=range(12),
)
def test_hostile_image_is_refused_with_the_reason(data: bytes, text: str) -> None:
    """The sender learns what is wrong, by an error of its own."""
    with pytest.raises(InvalidInput, match=text):
        vision.decode_image(data)


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bomb_is_refused_before_it_is_unpacked(width: int, height: int) -> None:
    """A small file that says it is huge costs nothing."""
    bomb = png_of_size(width, height, bytes(1_000_000))
    assert len(bomb) < 2000

    tracemalloc.start()
    with pytest.raises(InvalidInput, match=f"is {height} x {width} pixels large, more than"):
        vision.decode_image(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 100_000


def test_authors_limit_is_what_counts() -> None:
    """`max_pixels` may be lower or higher; exactly as many are decoded."""
    assert (24, 32, 3) == vision.decode_image(PNG, max_pixels=24 * 32).shape
    with pytest.raises(InvalidInput, match="more than 767 in all: send a smaller one"):
        vision.decode_image(PNG, max_pixels=24 * 32 - 1)


def test_what_is_no_pixels_is_never_looked_at() -> None:
    """Texts that unpack to gigabytes, profiles, previews and comments do not reach the decoder."""
    bomb = png_chunk(b"zTXt", b"a\0\0" + b"\xff" * 100) + png_chunk(b"iCCP", b"broken")
    chatty = insert_segment(
        insert_segment(JPEG, 0xE2, b"ICC_PROFILE\0broken"), 0xFE, b"\xff\xda" * 99
    )

    np.testing.assert_array_equal(COLOURS, vision.decode_image(PNG[:33] + bomb + PNG[33:]))
    np.testing.assert_array_equal(vision.decode_image(JPEG), vision.decode_image(chatty))


def test_what_follows_the_image_is_no_part_of_it() -> None:
    """Telephones append films, whose bytes may look like anything."""
    film = b"\xff\xda\0\2" * 1000

    np.testing.assert_array_equal(vision.decode_image(JPEG), vision.decode_image(JPEG + film))


def test_text_is_no_image() -> None:
    """An author who passes something else learns it."""
    with pytest.raises(TypeError, match="an image must be bytes, got str"):
        vision.decode_image("cat.jpg")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(24, 32), (24, 32, 1), (24, 32, 3), (24, 32, 4)])
def test_resized_as_pillow_does(shape: tuple[int, ...], method: Any) -> None:
    """Any number of channels, smaller one way and larger the other; the original stays."""
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    filters = Image.Resampling[method.upper()]

    got = vision.resize(image, 11, 40, method)

    planes = image.reshape(24, 32, -1)
    expected = [
        np.asarray(Image.fromarray(planes[..., channel]).resize((40, 11), filters))
        for channel in range(planes.shape[2])
    ]
    assert (11, 40, *shape[2:]) == got.shape
    if shape[2:] != (4,):  # Pillow takes RGBA's colours by their opacity
        np.testing.assert_array_equal(np.stack(expected, axis=2), got.reshape(11, 40, -1))


def test_image_of_the_right_size_is_copied() -> None:
    """So that what comes out may be written into, whatever went in."""
    got = vision.resize(COLOURS, 24, 32)

    np.testing.assert_array_equal(COLOURS, got)
    assert not np.shares_memory(COLOURS, got)


@pytest.mark.parametrize(
    ("size", "inner", "offset"),
    [((64, 64), (48, 64), (8, 0)), ((24, 64), (24, 32), (0, 16)), ((7, 90), (7, 9), (0, 40))],
)
def test_letterbox_fits_the_image_into_the_middle(
    size: tuple[int, int], inner: tuple[int, int], offset: tuple[int, int]
) -> None:
    """With bars above and below, or left and right, of the colour that is asked for."""
    white = np.full((24, 32, 3), 255, np.uint8)

    fitted = vision.letterbox(white, *size, fill=7)

    rows, columns = np.nonzero((fitted.image == 255).all(axis=2))
    assert (*size, 3) == fitted.image.shape
    assert {7, 255} == set(np.unique(fitted.image))
    assert offset == fitted.offset
    assert offset == (int(rows.min()), int(columns.min()))
    assert inner == (int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1)


@pytest.mark.parametrize("size", [(64, 64), (24, 64), (7, 90), (1, 1)])
def test_boxes_of_a_letterbox_go_back_to_the_original(size: tuple[int, int]) -> None:
    """The fitted image's own box is the whole original; what is beyond is clipped."""
    fitted = vision.letterbox(COLOURS, *size)
    top, left = fitted.offset
    down, across = 24 * fitted.scale[0], 32 * fitted.scale[1]
    boxes = np.array([[left, top, left + across, top + down], [-9, -9, 999, 999]])

    got = fitted.original_boxes(boxes)

    np.testing.assert_allclose(got, [[0, 0, 32, 24]] * 2, atol=1e-9)
    assert (0, 4) == fitted.original_boxes([]).shape


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: vision.resize(COLOURS.astype(np.float32), 8, 8), "is float32 of shape"),
        (lambda: vision.resize(COLOURS[None], 8, 8), r"uint8 of shape \(1, 24, 32, 3\)"),
        (lambda: vision.resize(COLOURS[:, :, :2], 8, 8), r"shape \(24, 32, 2\), expected uint8"),
        (lambda: vision.resize(COLOURS[:0], 8, 8), r"shape \(0, 32, 3\)"),
        (lambda: vision.resize(COLOURS, 0, 8), "cannot resize to 0 x 8 pixels"),
        (lambda: vision.letterbox(COLOURS, 8, -1), "cannot letterbox to 8 x -1 pixels"),
    ],
    ids=range(6),
)  # fmt: skip
def test_wrong_shapes_are_named(call: Any, text: str) -> None:
    """A mistake of the author says what came and what was expected."""
    with pytest.raises(ValueError, match=text):
        call()


def test_missing_pillow_is_told_when_the_hook_file_is_run() -> None:
    """With the command that installs it; detection does without."""
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from hloserve.hooks.vision import nms\n"
        "try:\n    from hloserve.hooks.vision import decode_image\n"
        "except ImportError as error:\n    print(error)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "images in hooks need Pillow: pip install 'hloserve[vision]'" in done.stdout


def test_example_of_the_page_makes_a_batch_of_pictures() -> None:
    """Code is taken from docs/hooks.md; each element becomes an image of one size."""
    page = (Path(__file__).parents[3] / "docs" / "hooks.md").read_text()
    (code,) = re.findall(r"```python\n((?:(?!```).)*?decode_image.*?)```", page, re.S)
    pictures = TensorList([NamedTensor("picture", np.array([[PNG], [JPEG]], object))])

    with collect_registrations() as registered:
        exec(code, {})  # our own page
    preprocess = registered.models[0].preprocess
    assert preprocess is not None
    image = preprocess(pictures)["image"]

    assert (2, 3, 224, 224) == image.shape
    assert [200, 0, 0] == image[0, :, 0, 0].tolist()


def test_unknown_name_is_an_attribute_error() -> None:
    """As of any module, and each name that is listed is there."""
    with pytest.raises(AttributeError, match=r"'hloserve\.hooks\.vision' has no attribute 'nsm'"):
        vision.nsm  # noqa: B018  # looking it up is the test
    assert all(getattr(vision, name) is not None for name in vision.__all__)


def _by_pillow(file: bytes) -> Array:
    with Image.open(BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))


def _turned(image: Array, value: int) -> Array:
    """As the EXIF standard puts it: where row 0 and column 0 of the stored image are seen."""
    swapped = image.transpose(1, 0, 2)
    return {
        1: image,
        2: image[:, ::-1],
        3: image[::-1, ::-1],
        4: image[::-1],
        5: swapped,
        6: swapped[:, ::-1],
        7: swapped[::-1, ::-1],
        8: swapped[::-1],
    }[value]
