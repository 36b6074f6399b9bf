"""Feature maps: anchors on their grid, regions cut out of them.

What lives here: what relates boxes to the grid of a feature map. What does not: boxes by
themselves (`hloserve.hooks.vision.boxes`). Pure; any thread. Boxes are corners ``x1, y1, x2, y2``
in pixels, and everything is computed in float64, whatever comes in.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hloserve.hooks.vision.boxes import Floats, Indices, read_boxes

__all__ = ["assign_level", "cell_anchors", "generate_anchors", "roi_align"]


def cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Floats:
    """Anchors around the origin, for `generate_anchors`.

    Args:
        sizes: square roots of the areas, in pixels.
        aspect_ratios: height over width.

    Shapes:
        result: [len(aspect_ratios) * len(sizes), 4], float64; sizes run fastest.

    Source: ``torchvision.models.detection.anchor_utils.AnchorGenerator``, with its rounding.

    Example:
        >>> cell_anchors([32], [0.5, 1.0]).tolist()
        [[-23.0, -11.0, 23.0, 11.0], [-16.0, -16.0, 16.0, 16.0]]
    """
    # In float32, as torchvision does: it decides what is rounded up.
    height_ratios = np.sqrt(np.asarray(aspect_ratios, np.float32))[:, None]
    scales = np.asarray(sizes, np.float32)[None, :]
    heights, widths = (height_ratios * scales).ravel(), (1 / height_ratios * scales).ravel()
    corners = np.stack([-widths, -heights, widths, heights], axis=1) / 2
    return corners.round().astype(np.float64)


def generate_anchors(
    height: int, width: int, stride: float | tuple[float, float], cell: npt.ArrayLike
) -> Floats:
    """Repeat the anchors of one cell over the grid of a feature map.

    Args:
        height: cells of the feature map.
        width: likewise.
        stride: pixels of the image from one cell to the next; or the vertical and the horizontal
            one.
        cell: the anchors of the first cell; see `cell_anchors`.

    Returns:
        Anchors by row, then column, then anchor of the cell, as `objectness_flat` and
        `deltas_matrix` order their predictions.

    Shapes:
        cell: [a, 4].
        result: [height * width * a, 4], float64.
    """
    anchors = read_boxes("cell", cell)
    vertical, horizontal = stride if isinstance(stride, tuple) else (stride, stride)
    y, x = np.meshgrid(np.arange(height) * vertical, np.arange(width) * horizontal, indexing="ij")
    shifts = np.stack([x, y, x, y], axis=2).reshape(-1, 1, 4)
    placed: Floats = (shifts + anchors).reshape(-1, 4)
    return placed


def assign_level(
    boxes: npt.ArrayLike,
    canonical_level: int = 4,
    canonical_size: float = 224.0,
    min_level: int = 2,
    max_level: int = 5,
) -> Indices:
    """Choose the feature map of a pyramid that each box is cut from.

    A box of `canonical_size` squared belongs to `canonical_level`, one of twice the size to the
    next.

    Args:
        boxes: the proposals.
        canonical_level: the level of a box of `canonical_size`.
        canonical_size: in pixels: square root of the area.
        min_level: finest level; its stride is 2 to this power.
        max_level: coarsest level.

    Returns:
        Levels counted from `min_level`, so that they index a list of feature maps.

    Shapes:
        boxes: [m, 4].
        result: [m], int64.

    Source: equation 1 of "Feature Pyramid Networks" (Lin et al., 2017).

    Example:
        >>> assign_level([[0, 0, 224, 224], [0, 0, 10, 10], [0, 0, 448, 448]]).tolist()
        [2, 0, 3]
    """
    corners = read_boxes("boxes", boxes)
    areas = np.maximum(corners[:, 2:] - corners[:, :2], 0).prod(axis=1)
    relative = np.sqrt(areas) / canonical_size + 1e-8
    # Comparing with powers of two is exact where the logarithm need not be.
    borders = 2.0 ** (np.arange(min_level + 1, max_level + 1) - canonical_level)
    levels: Indices = np.sum(relative[:, None] >= borders, axis=1, dtype=np.int64)
    return levels


def roi_align(
    features: npt.ArrayLike,
    boxes: npt.ArrayLike,
    scale: float,
    pooled_size: int = 7,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Floats:
    """Cut regions out of a feature map and bring them to one size, by bilinear sampling.

    Args:
        features: one feature map.
        boxes: the regions, in pixels of the image.
        scale: cells of the feature map per pixel of the image: 1 / stride.
        pooled_size: cells of the result, both ways.
        sampling_ratio: samples per cell of the result, both ways; 0 takes as many as the region
            covers cells of the feature map.
        aligned: let cell 0 lie at coordinate -0.5. torchvision's detectors use False, which also
            makes regions at least one cell large.

    Returns:
        The regions; zeros for a box that is not finite.

    Shapes:
        features: [c, h, w].
        boxes: [m, 4].
        result: [m, c, pooled_size, pooled_size], float64.

    Source: ``torchvision.ops.roi_align``; "Mask R-CNN" (He et al., 2017).

    Example:
        >>> ramp = np.tile(np.arange(8.0), (1, 8, 1))
        >>> roi_align(ramp, [[0, 0, 4, 4]], 1.0, pooled_size=2, aligned=False)[0, 0].tolist()
        [[1.0, 3.0], [1.0, 3.0]]
    """
    maps = np.asarray(features, np.float64)
    if maps.ndim != 3 or 0 in maps.shape[1:]:
        raise ValueError(f"features have shape {maps.shape}, expected (channels, height, width)")
    regions = read_boxes("boxes", boxes) * scale - (0.5 if aligned else 0.0)
    is_finite = np.isfinite(regions).all(axis=1)
    regions[~is_finite] = 0
    smallest = -np.inf if aligned else 1.0
    sizes = np.maximum(regions[:, 2:] - regions[:, :2], smallest)
    columns, rows = (
        _sampling_weights(
            regions[:, axis], sizes[:, axis], maps.shape[2 - axis], pooled_size, sampling_ratio
        )
        for axis in (0, 1)
    )
    pooled = np.zeros((len(regions), len(maps), pooled_size, pooled_size))
    for number, (down, across) in enumerate(zip(rows, columns, strict=True)):
        # Only the cells under the region: multiplying whole maps is many times the work.
        y, x = _covered(down), _covered(across)
        pooled[number] = down[:, y] @ (maps[:, y, x] @ across[:, x].T)
    pooled[~is_finite] = 0
    return pooled


def _sampling_weights(
    starts: Floats, sizes: Floats, extent: int, pooled_size: int, sampling_ratio: int
) -> Floats:
    """How much each cell along one axis counts for each cell of the result: [m, pooled, extent].

    The samples of a cell form a grid, and their mean is the product of one such mean per axis.
    """
    bins = sizes / pooled_size
    counts = np.full(len(starts), sampling_ratio)
    if sampling_ratio <= 0:
        counts = np.maximum(np.ceil(bins), 1).astype(np.int64)
    weights = np.zeros((len(starts), pooled_size, extent))
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        inside_bin = np.arange(pooled_size)[:, None] + (np.arange(count) + 0.5) / count
        at = starts[members, None, None] + bins[members, None, None] * inside_bin
        weights[members] = _bilinear_weights(at, extent).mean(axis=2)
    return weights


def _bilinear_weights(at: Floats, extent: int) -> Floats:
    """Weights of the cells for samples at these coordinates: [..., extent]."""
    is_inside = (at >= -1) & (at <= extent)
    at = np.clip(np.where(is_inside, at, 0), 0, extent - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    share = at - low
    weights = np.zeros((*at.shape, extent))
    # The lower cell comes last: at the border both are the same one, and its share is 1.
    np.put_along_axis(weights, high[..., None], share[..., None], axis=-1)
    np.put_along_axis(weights, low[..., None], 1 - share[..., None], axis=-1)
    return weights * is_inside[..., None]


def _covered(weights: Floats) -> slice:
    """The cells that any weight is on."""
    used = np.flatnonzero(weights.any(axis=0))
    return slice(used[0], used[-1] + 1) if used.size else slice(0, 0)
