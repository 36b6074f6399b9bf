"""What a two-stage detector does between and after its networks, in JAX, with fixed shapes.

What lives here: proposals, region pooling and detections as traceable functions. What does not:
their order, and the networks (`hloserve.export.detection.detector`). `hloserve.hooks.vision` has
the same steps in plain NumPy, and tests hold these to them.

Rules.
1. Sizes are fixed: what may be absent is masked, never left out. Nothing is rounded up or down to a
   size, so a mask loses nothing; where a cap can lose something it is an argument, and says so.
2. Suppression is exact and greedy. Equal scores go by position, as in the reference.
3. Everything is float32 and int32, whether JAX's 64-bit types are on or off.
4. No arrays are baked: anchors are computed from their position.

Boxes are corners ``x1, y1, x2, y2`` in pixels. Pure; one thread.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = [
    "Boxes",
    "FeatureMap",
    "Level",
    "assign_levels",
    "clip",
    "decode",
    "is_candidate",
    "pick_detections",
    "pool_regions",
    "select_proposals",
    "suppress",
]

_Traced: TypeAlias = Any
"""An array of JAX, traced or not."""

_LARGEST_LOG_SCALE = np.float32(math.log(1000 / 16))
_LEVEL_SLACK = 1.4e-6
"""torchvision adds 1e-6 to the logarithm of a box's size, so areas may be this share too small."""


class Boxes(NamedTuple):
    """Boxes of which some may be absent.

    Attributes:
        corners: [m, 4]; zeros where absent.
        is_there: [m].
    """

    corners: _Traced
    is_there: _Traced


class Level(NamedTuple):
    """What the first network predicts for the anchors of one feature map.

    Attributes:
        objectness: [1, a, h, w], logits.
        deltas: [1, a * 4, h, w].
        cell: [a, 4], the anchors of the first cell; host values.
        stride: vertical and horizontal, in pixels.
    """

    objectness: _Traced
    deltas: _Traced
    cell: Any
    stride: tuple[float, float]


class FeatureMap(NamedTuple):
    """A feature map that regions are cut from.

    Attributes:
        features: [1, c, h, w].
        stride: in pixels.
    """

    features: _Traced
    stride: float


def decode(deltas: _Traced, boxes: _Traced, weights: Sequence[float]) -> _Traced:
    """Apply predictions to boxes.

    Shapes:
        deltas: [..., 4].
        boxes: [..., 4]; broadcast against `deltas`.
        result: [..., 4].
    """
    codes = deltas / np.asarray(weights, np.float32)
    sizes = boxes[..., 2:] - boxes[..., :2]
    centres = boxes[..., :2] + sizes / 2 + codes[..., :2] * sizes
    halves = jnp.exp(jnp.minimum(codes[..., 2:], _LARGEST_LOG_SCALE)) * sizes / 2
    return jnp.concatenate([centres - halves, centres + halves], axis=-1)


def clip(boxes: _Traced, image_size: tuple[int, int]) -> _Traced:
    """Move corners that lie outside of the image, height and width, to its border."""
    height, width = image_size
    return jnp.clip(boxes, 0, np.array([width, height, width, height], np.float32))


def select_proposals(  # noqa: PLR0913  # keywords, as the reference has them
    levels: Sequence[Level],
    image_size: tuple[int, int],
    *,
    pre_nms_top: int,
    post_nms_top: int,
    nms_threshold: float,
    min_size: float,
    score_threshold: float,
    weights: Sequence[float],
) -> Boxes:
    """Choose proposals as `hloserve.hooks.vision.select_rpn_proposals` does.

    The caps are those of the detector itself, which sorts and cuts at the same places: nothing is
    lost to the fixed sizes.

    Returns:
        The best `post_nms_top`, best first; fewer when there are not as many anchors.
    """
    taken = [_best_anchors(level, pre_nms_top, weights) for level in levels]
    most = max(len(logits) for _, logits in taken)
    corners = jnp.stack([_pad(boxes, most, 0.0) for boxes, _ in taken])
    logits = jnp.stack([_pad(values, most, -jnp.inf) for _, values in taken])
    corners = clip(corners, image_size)
    is_there = (logits > -jnp.inf) & (jax.nn.sigmoid(logits) >= np.float32(score_threshold))
    is_there &= _is_large(corners, min_size)
    kept = suppress(corners, is_there, nms_threshold).ravel()
    ranked = jnp.where(kept, logits.ravel(), -jnp.inf)
    best, at = lax.top_k(ranked, min(post_nms_top, ranked.size))
    found = best > -jnp.inf
    return Boxes(jnp.where(found[:, None], corners.reshape(-1, 4)[at], 0), found)


def _best_anchors(
    level: Level, pre_nms_top: int, weights: Sequence[float]
) -> tuple[_Traced, _Traced]:
    """Decoded boxes and logits of the best anchors; only these are decoded."""
    _, anchors, height, width = level.objectness.shape
    flat = level.objectness[0].transpose(1, 2, 0).ravel()
    logits, at = lax.top_k(flat, min(pre_nms_top, flat.size))
    deltas = level.deltas[0].reshape(anchors, 4, height, width).transpose(2, 3, 0, 1)
    y, x, anchor = at // (width * anchors), at // anchors % width, at % anchors
    vertical, horizontal = level.stride
    shifts = jnp.stack([x * np.float32(horizontal), y * np.float32(vertical)], axis=1)
    cell = jnp.asarray(np.asarray(level.cell, np.float32))
    boxes = jnp.tile(shifts, (1, 2)) + cell[anchor]
    return decode(deltas.reshape(-1, 4)[at], boxes, weights), logits


def suppress(corners: _Traced, is_there: _Traced, threshold: float) -> _Traced:
    """Greedy non-maximum suppression of several sets of boxes at once.

    A box is kept when no kept box before it overlaps it. That is a fixed point: each round is right
    about one more link of every chain of suppressions, and ends when nothing changes any more.

    Args:
        corners: [sets, m, 4], best first.
        is_there: [sets, m].
        threshold: of the overlap above which a box is suppressed.

    Returns:
        Which boxes are kept.

    Shapes:
        result: [sets, m], bool.
    """
    count = corners.shape[1]
    rank = jnp.arange(count, dtype=jnp.int32)
    is_rival = _overlap(corners[:, :, None], corners[:, None, :]) > jnp.float32(threshold)
    is_rival &= rank[:, None] < rank[None, :]

    def is_unsettled(state: tuple[_Traced, _Traced]) -> _Traced:
        before, now = state
        return (before != now).any()

    def settle(state: tuple[_Traced, _Traced]) -> tuple[_Traced, _Traced]:
        _, now = state
        return now, is_there & ~(is_rival & now[:, :, None]).any(axis=1)

    start = jnp.zeros_like(is_there), is_there
    return lax.while_loop(is_unsettled, settle, start)[1]


def assign_levels(
    corners: _Traced, levels: int, *, min_level: int, canonical_level: int, canonical_size: float
) -> _Traced:
    """The feature map that each box is cut from, as `hloserve.hooks.vision.assign_level` has it.

    Shapes:
        corners: [m, 4].
        result: [m], int32.
    """
    area = jnp.maximum(corners[:, 2:] - corners[:, :2], 0).prod(axis=1)
    borders = min_level + np.arange(1, levels) - canonical_level
    # Areas are compared, because the logarithm of an exact power of two may be rounded below it.
    least = (canonical_size * 2.0**borders) ** 2 * (1 - _LEVEL_SLACK)
    return (area[:, None] >= least.astype(np.float32)).sum(axis=1, dtype=jnp.int32)


def pool_regions(
    maps: Sequence[FeatureMap],
    corners: _Traced,
    levels: _Traced,
    *,
    pooled_size: int,
    sampling_ratio: int,
    aligned: bool,
) -> _Traced:
    """Cut each box out of its feature map, as `hloserve.hooks.vision.roi_align` does.

    The maps become one table of cells, so that every sample is one row of it, whichever map it is
    in. The samples of a region are a grid: positions and weights are computed per axis.

    Args:
        maps: of equal numbers of channels.
        corners: [m, 4].
        levels: [m], which map each box is cut from.
        pooled_size: cells of a region, both ways.
        sampling_ratio: samples per cell, both ways; at least 1.
        aligned: see `hloserve.hooks.vision.roi_align`.

    Shapes:
        result: [m, c, pooled_size, pooled_size].
    """
    heights, widths = zip(*(each.features.shape[2:] for each in maps), strict=True)
    cells = [height * width for height, width in zip(heights, widths, strict=True)]
    channels = maps[0].features.shape[1]
    table = jnp.concatenate([each.features[0].reshape(channels, -1).T for each in maps])
    first = jnp.asarray(np.cumsum([0, *cells[:-1]]), jnp.int32)[levels]
    scales = jnp.asarray([1 / each.stride for each in maps], jnp.float32)[levels]
    regions = corners * scales[:, None] - np.float32(0.5 if aligned else 0.0)
    sizes = regions[:, 2:] - regions[:, :2]
    steps = (sizes if aligned else jnp.maximum(sizes, 1)) / np.float32(pooled_size)
    offsets = _sample_offsets(pooled_size, sampling_ratio)
    width = jnp.asarray(widths, jnp.int32)[levels]
    height = jnp.asarray(heights, jnp.int32)[levels]
    columns = _axis_samples(regions[:, 0], steps[:, 0], width, offsets)
    rows = _axis_samples(regions[:, 1], steps[:, 1], height, offsets)
    pooled: _Traced = 0.0
    for y, down in rows:
        for x, across in columns:
            at = first[:, None, None] + y[:, :, None] * width[:, None, None] + x[:, None, :]
            share = down[:, :, None] * across[:, None, :]
            pooled = pooled + table[at] * share[..., None]
    return (pooled / np.float32(sampling_ratio**2)).transpose(0, 3, 1, 2)


def _sample_offsets(pooled_size: int, sampling_ratio: int) -> list[Any]:
    """Per sample of a cell: where it lies in each cell, in cells from the region's start."""
    cells = np.arange(pooled_size, dtype=np.float32)
    return [cells + np.float32((sample + 0.5) / sampling_ratio) for sample in range(sampling_ratio)]


def _axis_samples(
    start: _Traced, step: _Traced, extent: _Traced, offsets: Sequence[Any]
) -> list[tuple[_Traced, _Traced]]:
    """Per sample and per neighbour of it: its cell of the map and its weight, [m, pooled] each."""
    last = extent[:, None] - 1
    found = []
    for offset in offsets:
        at = start[:, None] + step[:, None] * offset
        is_inside = (at >= -1) & (at <= extent[:, None].astype(jnp.float32))
        at = jnp.clip(jnp.where(is_inside, at, 0), 0, last.astype(jnp.float32))
        low = jnp.floor(at).astype(jnp.int32)
        high = jnp.minimum(low + 1, last)
        share = at - low.astype(jnp.float32)
        found.append((low, jnp.where(is_inside, 1 - share, 0)))
        found.append((high, jnp.where(is_inside, share, 0)))
    return found


def is_candidate(
    corners: _Traced, scores: _Traced, *, min_size: float, score_threshold: float
) -> _Traced:
    """Which boxes are likely and large enough: [m, c] of corners [m, c, 4] or [m, 1, 4]."""
    return (scores > np.float32(score_threshold)) & _is_large(corners, min_size)


def pick_detections(
    corners: _Traced,
    scores: _Traced,
    is_there: _Traced,
    *,
    nms_threshold: float,
    max_detections: int,
    max_candidates: int | None = None,
) -> tuple[_Traced, _Traced]:
    """Pick the best candidate, suppress its rivals of the same class, and again.

    That is what greedy suppression keeps first, and it ends after `max_detections` rounds or with
    the last candidate. All of them take part unless `max_candidates` is given.

    Args:
        corners: [m, c, 4] or [m, 1, 4]: a box per proposal and class, or for all classes.
        scores: [m, c].
        is_there: [m, c].
        nms_threshold: of the overlap above which a box is suppressed.
        max_detections: rows of the result.
        max_candidates: look at no more than this many, the most likely ones.

    Returns:
        Rows ``x1, y1, x2, y2, score, column``, best first and zeros after the last; and how many
        there are.

    Shapes:
        result: [max_detections, 6], float32, and [], int32.
    """
    proposals, columns = scores.shape
    corners = jnp.broadcast_to(corners, (proposals, columns, 4)).reshape(-1, 4)
    column = jnp.tile(jnp.arange(columns, dtype=jnp.int32), proposals)
    left = jnp.where(is_there, scores, -jnp.inf).ravel()
    if max_candidates is not None and max_candidates < left.size:
        left, at = lax.top_k(left, max_candidates)
        corners, column = corners[at], column[at]

    def is_unfinished(state: tuple[_Traced, _Traced, _Traced]) -> _Traced:
        left, _, count = state
        return (count < max_detections) & (left.max() > -jnp.inf)

    def pick(state: tuple[_Traced, _Traced, _Traced]) -> tuple[_Traced, _Traced, _Traced]:
        left, rows, count = state
        best = lax.argmax(left, 0, jnp.int32)
        score = left[best][None]
        row = jnp.concatenate([corners[best], score, column[best][None].astype(jnp.float32)])
        rows = lax.dynamic_update_slice_in_dim(rows, row[None], count, axis=0)
        is_rival = _overlap(corners[best], corners) > np.float32(nms_threshold)
        left = jnp.where(is_rival & (column == column[best]), -jnp.inf, left)
        return left.at[best].set(-jnp.inf), rows, count + 1

    start = left, jnp.zeros((max_detections, 6), jnp.float32), jnp.int32(0)
    _, rows, count = lax.while_loop(is_unfinished, pick, start)
    return rows, count


def _overlap(first: _Traced, second: _Traced) -> _Traced:
    """Intersection over union, with broadcasting."""
    low = jnp.maximum(first[..., :2], second[..., :2])
    high = jnp.minimum(first[..., 2:], second[..., 2:])
    shared = jnp.maximum(high - low, 0).prod(axis=-1)
    union = _area(first) + _area(second) - shared
    return jnp.where(union > 0, shared / jnp.where(union > 0, union, 1), 0)


def _area(boxes: _Traced) -> _Traced:
    return jnp.maximum(boxes[..., 2:] - boxes[..., :2], 0).prod(axis=-1)


def _is_large(boxes: _Traced, min_size: float) -> _Traced:
    return (boxes[..., 2:] - boxes[..., :2] >= np.float32(min_size)).all(axis=-1)


def _pad(values: _Traced, count: int, filler: float) -> _Traced:
    missing = [(0, count - len(values))] + [(0, 0)] * (values.ndim - 1)
    return jnp.pad(values, missing, constant_values=np.float32(filler))
