"""Boxes: overlap, suppression, decoding.

What lives here: what needs nothing but boxes and scores. What does not: feature maps
(`hloserve.hooks.vision.regions`) and whole stages of a detector
(`hloserve.hooks.vision.two_stage`). Pure; any thread. Boxes are corners ``x1, y1, x2, y2`` in
pixels, and everything is computed in float64, whatever comes in.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "LARGEST_LOG_SCALE",
    "Floats",
    "Indices",
    "batched_nms",
    "clip_boxes",
    "decode_boxes",
    "iou",
    "nms",
    "read_boxes",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]

LARGEST_LOG_SCALE = math.log(1000 / 16)
"""A decoded box is at most 62.5 times as wide and high as its anchor (Detectron's constant)."""


def iou(first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
    """Intersection over union of each box with each other one.

    Boxes without area, and those whose corners are the wrong way round, overlap nothing.

    Shapes:
        first: [m, 4].
        second: [k, 4].
        result: [m, k], float64, 0 to 1.

    Example:
        >>> iou([[0, 0, 2, 2]], [[1, 0, 3, 2], [5, 5, 6, 6]]).round(3).tolist()
        [[0.333, 0.0]]
    """
    a, b = read_boxes("first", first), read_boxes("second", second)
    corner1 = np.maximum(a[:, None, :2], b[None, :, :2])
    corner2 = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.maximum(corner2 - corner1, 0).prod(axis=2)
    union = _areas(a)[:, None] + _areas(b)[None, :] - shared
    overlap: Floats = np.divide(shared, union, out=np.zeros_like(union), where=union > 0)
    return overlap


def nms(boxes: npt.ArrayLike, scores: npt.ArrayLike, threshold: float) -> Indices:
    """Greedy non-maximum suppression.

    Goes through the boxes from the highest score to the lowest, the earlier of two equal ones
    first. A box is kept unless its overlap with one that is kept already is above `threshold`.

    Args:
        boxes: [m, 4].
        scores: [m].
        threshold: of the intersection over union, 0 to 1.

    Returns:
        Positions of the kept boxes, highest score first.

    Shapes:
        result: [kept], int64.

    Source: ``torchvision.ops.nms``.

    Example:
        >>> nms([[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6]], [0.7, 0.9, 0.8], 0.5).tolist()
        [1, 2]
    """
    corners, values = read_boxes("boxes", boxes), _read_per_box("scores", scores, boxes)
    left = np.argsort(-values, kind="stable")
    kept = []
    while left.size:
        best, left = left[0], left[1:]
        kept.append(best)
        left = left[iou(corners[best : best + 1], corners[left])[0] <= threshold]
    return np.array(kept, np.int64)


def batched_nms(
    boxes: npt.ArrayLike, scores: npt.ArrayLike, groups: npt.ArrayLike, threshold: float
) -> Indices:
    """`nms` in which only boxes of the same group suppress each other.

    torchvision moves the groups apart by adding an offset to the coordinates. Here each group goes
    by itself, which gives the same boxes and rounds nothing.

    Args:
        boxes: [m, 4].
        scores: [m].
        groups: [m], any integers: the class or the level of each box.
        threshold: of the intersection over union, 0 to 1.

    Returns:
        Positions of the kept boxes over all groups, highest score first.

    Shapes:
        result: [kept], int64.

    Source: ``torchvision.ops.batched_nms``.
    """
    corners, values = read_boxes("boxes", boxes), _read_per_box("scores", scores, boxes)
    numbers = _read_per_box("groups", groups, boxes)
    kept = np.zeros(len(corners), bool)
    for group in np.unique(numbers):
        members = np.flatnonzero(numbers == group)
        kept[members[nms(corners[members], values[members], threshold)]] = True
    order: Indices = np.argsort(-values, kind="stable")
    return order[kept[order]]


def decode_boxes(
    deltas: npt.ArrayLike,
    boxes: npt.ArrayLike,
    weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    largest_log_scale: float = LARGEST_LOG_SCALE,
) -> Floats:
    """Apply what a detector predicts for boxes to them.

    Args:
        deltas: per box, one group ``dx, dy, dw, dh`` per class.
        boxes: the anchors or proposals.
        weights: the predictions are divided by these four: torchvision's proposals use 1s, its
            box head 10, 10, 5, 5.
        largest_log_scale: dw and dh are cut off here.

    Returns:
        One box per class, in the order of the groups.

    Shapes:
        deltas: [m, 4 * c].
        boxes: [m, 4].
        result: [m, 4 * c], float64.

    Source: ``torchvision.models.detection._utils.BoxCoder.decode``.

    Example:
        >>> decode_boxes([[0.5, 0, 0, 0]], [[0, 0, 10, 20]]).tolist()
        [[5.0, 0.0, 15.0, 20.0]]
    """
    anchors = read_boxes("boxes", boxes)
    codes = np.asarray(deltas, np.float64)
    if codes.ndim != 2 or len(codes) != len(anchors) or codes.shape[1] % 4:
        raise ValueError(f"deltas have shape {codes.shape}, expected ({len(anchors)}, 4 * classes)")
    shape = codes.shape
    codes = codes.reshape(len(anchors), shape[1] // 4, 4) / np.asarray(weights, np.float64)
    sizes = (anchors[:, 2:] - anchors[:, :2])[:, None]
    centres = anchors[:, None, :2] + sizes / 2 + codes[..., :2] * sizes
    halves = np.exp(np.minimum(codes[..., 2:], largest_log_scale)) * sizes / 2
    decoded: Floats = np.concatenate([centres - halves, centres + halves], axis=2)
    return decoded.reshape(shape)


def clip_boxes(boxes: npt.ArrayLike, height: float, width: float) -> Floats:
    """Move corners that lie outside of an image to its border.

    Shapes:
        boxes: [m, 4 * c], one box or several per row.
        result: like `boxes`, float64.
    """
    corners = np.asarray(boxes, np.float64)
    pairs = corners.reshape(*corners.shape[:-1], corners.shape[-1] // 2, 2)
    clipped: Floats = np.clip(pairs, 0, np.array([width, height], np.float64))
    return clipped.reshape(corners.shape)


def read_boxes(name: str, boxes: npt.ArrayLike) -> Floats:
    """`boxes` as float64 of [m, 4]; an empty list is no boxes.

    Raises:
        ValueError: they have another shape.
    """
    corners = np.asarray(boxes, np.float64)
    if corners.size == 0 and corners.ndim <= 2:
        return corners.reshape(0, 4)
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise ValueError(f"{name} have shape {corners.shape}, expected (boxes, 4)")
    return corners


def _read_per_box(name: str, values: npt.ArrayLike, boxes: npt.ArrayLike) -> Floats:
    """One number per box."""
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (len(np.asarray(boxes)),):
        raise ValueError(f"{name} have shape {numbers.shape}, expected one per box")
    return numbers


def _areas(boxes: Floats) -> Floats:
    areas: Floats = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1)
    return areas
