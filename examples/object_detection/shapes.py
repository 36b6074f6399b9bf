"""Pictures of circles, rectangles and triangles, and where they are.

What lives here: drawing them at random, for training, for tests and for the picture of the README.
What does not: the detector (`examples.object_detection.network`).
"""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["CLASSES", "MOST_ROWS", "Picture", "draw_picture"]

CLASSES = ("background", "circle", "rectangle", "triangle")
"""By number, as the detector gives them."""

MOST_ROWS = 12
"""How many shapes the detector tells of in one picture."""

_TRIES = 400
_GAP = 2.0


class Picture(NamedTuple):
    """A picture and the shapes in it.

    Attributes:
        pixels: [height, width, 3], uint8.
        boxes: [shapes, 4], float64: corners ``x1, y1, x2, y2``, in pixels.
        classes: [shapes], int64: positions in `CLASSES`.
    """

    pixels: Any
    boxes: Any
    classes: Any


def draw_picture(
    random: np.random.Generator,
    shapes: int,
    *,
    height: int = 128,
    width: int = 128,
    sizes: tuple[float, float] = (16, 40),
    margin: int = 0,
    noise: float = 6.0,
) -> Picture:
    """Draw shapes that do not touch each other on a background that fades from colour to colour.

    Args:
        random: decides everything.
        shapes: how many.
        height: in pixels.
        width: likewise.
        sizes: the least and the largest extent of a shape, in pixels.
        margin: rows that are black at the top and at the bottom, as bars of a wide picture.
        noise: standard deviation of what is added to each pixel.

    Raises:
        ValueError: so many shapes of this size do not fit.
    """
    image = Image.fromarray(_background(random, height, width))
    draw = ImageDraw.Draw(image)
    boxes: list[tuple[int, int, int, int]] = []
    classes = random.integers(1, len(CLASSES), shapes)
    for number in classes:
        box = _free_place(random, CLASSES[number], (margin, height - margin, width), sizes, boxes)
        colour = _bright_colour(random)
        _draw_shape(draw, random, CLASSES[number], box, colour)
        boxes.append(box)
    pixels: Any = np.asarray(image, np.float32)
    if noise:
        pixels = pixels + random.normal(0, noise, pixels.shape)
    pixels = pixels.clip(0, 255).astype(np.uint8)
    pixels[:margin], pixels[height - margin :] = 0, 0
    return Picture(pixels, np.array(boxes, np.float64).reshape(-1, 4), classes)


def _background(random: np.random.Generator, height: int, width: int) -> Any:
    """Dark, from one colour to another in any direction: [height, width, 3], uint8."""
    angle = random.uniform(0, 2 * np.pi)
    across, down = np.linspace(-0.5, 0.5, width), np.linspace(-0.5, 0.5, height)
    ramp = (np.cos(angle) * across + np.sin(angle) * down[:, None]) / 1.5 + 0.5
    first, second = random.uniform(10, 90, (2, 3))
    return (first + ramp[..., None] * (second - first)).astype(np.uint8)


def _bright_colour(random: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = random.uniform(40, 255, 3)
    brightest = max(red, green, blue)
    return int(red * 230 / brightest), int(green * 230 / brightest), int(blue * 230 / brightest)


def _free_place(
    random: np.random.Generator,
    kind: str,
    room: tuple[int, int, int],
    sizes: tuple[float, float],
    taken: list[tuple[int, int, int, int]],
) -> tuple[int, int, int, int]:
    """A box within rows `room[0]` to `room[1]` that no other one touches."""
    top, bottom, width = room
    for _ in range(_TRIES):
        tall, wide = random.uniform(*sizes, 2)
        if kind == "circle" or max(tall, wide) > 2 * min(tall, wide):
            tall = wide
        x, y = random.uniform(1, width - wide - 1), random.uniform(top + 1, bottom - tall - 1)
        box = (round(x), round(y), round(x) + round(wide), round(y) + round(tall))
        if all(_is_apart(box, other) for other in taken):
            return box
    raise ValueError(f"{len(taken) + 1} shapes of {sizes} pixels do not fit")


def _is_apart(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return any(
        first[axis] > second[axis + 2] + _GAP or second[axis] > first[axis + 2] + _GAP
        for axis in (0, 1)
    )


def _draw_shape(
    draw: ImageDraw.ImageDraw,
    random: np.random.Generator,
    kind: str,
    box: tuple[int, int, int, int],
    colour: tuple[int, int, int],
) -> None:
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1  # Pillow's are inclusive
    if kind == "circle":
        draw.ellipse((left, top, right, bottom), colour)
    elif kind == "rectangle":
        draw.rectangle((left, top, right, bottom), colour)
    else:
        apex = left + (right - left) * random.uniform(0.2, 0.8)
        draw.polygon([(left, bottom), (right, bottom), (apex, top)], colour)
