"""Detection for hooks does what its definition says, written out slowly."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.tensors import Array
from hloserve.hooks import vision

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
"""Random arrays: what matters here is their geometry, not single values."""

thresholds = st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0])


def random_boxes(random: np.random.Generator, count: int) -> Array:
    """Boxes on a coarse grid, so that many are equal, touch or have no area."""
    corner = random.integers(-4, 20, (count, 2))
    return np.concatenate([corner, corner + random.integers(-1, 12, (count, 2))], axis=1) / 2


def slow_iou(a: Array, b: Array) -> float:
    """The definition for two boxes."""
    inter = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [max(0, box[2] - box[0]) * max(0, box[3] - box[1]) for box in (a, b)]
    union = sum(areas) - inter
    return inter / union if union > 0 else 0.0


def slow_nms(boxes: Array, scores: Array, groups: Array, threshold: float) -> list[int]:
    """Each box against each kept one."""
    kept: list[int] = []
    for box in sorted(range(len(boxes)), key=lambda number: -scores[number]):
        rivals = [other for other in kept if groups[other] == groups[box]]
        if all(slow_iou(boxes[other], boxes[box]) <= threshold for other in rivals):
            kept.append(box)
    return kept


def slow_decode(deltas: Array, box: Array, weights: Sequence[float]) -> Array:
    """One box, one class."""
    width, height = box[2] - box[0], box[3] - box[1]
    dx, dy, dw, dh = (delta / weight for delta, weight in zip(deltas, weights, strict=True))
    x, y = dx * width + box[0] + width / 2, dy * height + box[1] + height / 2
    wide = math.exp(min(dw, math.log(1000 / 16))) * width / 2
    high = math.exp(min(dh, math.log(1000 / 16))) * height / 2
    return np.array([x - wide, y - high, x + wide, y + high])


def slow_sample(image: Array, y: float, x: float) -> float:
    """Bilinear interpolation at one point, 0 outside."""
    height, width = image.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = max(y, 0.0), max(x, 0.0)
    y0, x0 = min(int(y), height - 1), min(int(x), width - 1)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    dy = 0.0 if y0 == height - 1 else y - y0
    dx = 0.0 if x0 == width - 1 else x - x0
    top = image[y0, x0] * (1 - dx) + image[y0, x1] * dx
    bottom = image[y1, x0] * (1 - dx) + image[y1, x1] * dx
    return float(top * (1 - dy) + bottom * dy)


def slow_roi_align(
    image: Array, box: Array, scale: float, pooled: int, ratio: int, aligned: bool
) -> Array:
    """One channel, one box, one sample at a time."""
    offset = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (value * scale - offset for value in box)
    width, height = x2 - x1, y2 - y1
    if not aligned:
        width, height = max(width, 1.0), max(height, 1.0)
    across = ratio or max(1, math.ceil(width / pooled))
    down = ratio or max(1, math.ceil(height / pooled))
    result = np.zeros((pooled, pooled))
    for row, column in np.ndindex(pooled, pooled):
        samples = [
            slow_sample(
                image,
                y1 + row * height / pooled + (i + 0.5) * height / pooled / down,
                x1 + column * width / pooled + (j + 0.5) * width / pooled / across,
            )
            for i in range(down)
            for j in range(across)
        ]
        result[row, column] = np.mean(samples)
    return result


@given(seeds, st.integers(0, 8), st.integers(0, 8))
def test_overlap_is_intersection_over_union(
    random: np.random.Generator, rows: int, columns: int
) -> None:
    """Each pair as the definition has it; every overlap is from 0 to 1."""
    first, second = random_boxes(random, rows), random_boxes(random, columns)

    got = vision.iou(first, second)

    expected = [[slow_iou(a, b) for b in second] for a in first]
    np.testing.assert_allclose(got, np.reshape(expected, (rows, columns)), atol=1e-12)
    assert ((got >= 0) & (got <= 1)).all()


@given(seeds, st.integers(0, 25), thresholds)
def test_suppression_keeps_what_no_better_box_overlaps(
    random: np.random.Generator, count: int, threshold: float
) -> None:
    """With many ties, with one group and with several."""
    boxes = random_boxes(random, count)
    scores, groups = random.integers(0, 6, count) / 5, random.integers(-1, 3, count)

    together = vision.nms(boxes, scores, threshold).tolist()
    apart = vision.batched_nms(boxes, scores, groups, threshold).tolist()

    assert slow_nms(boxes, scores, np.zeros(count), threshold) == together
    assert slow_nms(boxes, scores, groups, threshold) == apart


@given(seeds, st.integers(0, 6), st.integers(1, 3))
def test_decoding_moves_and_scales_each_box(
    random: np.random.Generator, count: int, classes: int
) -> None:
    """Each class by itself, with weights, and with deltas that are cut off."""
    boxes, deltas = random_boxes(random, count), random.normal(size=(count, 4 * classes)) * 4
    weights = (10.0, 10.0, 5.0, 0.5)

    got = vision.decode_boxes(deltas, boxes, weights)

    for row, of_class in np.ndindex(count, classes):
        group = slice(4 * of_class, 4 * of_class + 4)
        expected = slow_decode(deltas[row, group], boxes[row], weights)
        np.testing.assert_allclose(got[row, group], expected, rtol=1e-12, atol=1e-9)


@given(seeds, st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_anchors_and_predictions_have_the_same_order(
    random: np.random.Generator, height: int, width: int, anchors: int
) -> None:
    """By row, column and anchor: so a row of one belongs to the same row of the others."""
    cell = random_boxes(random, anchors)
    objectness = random.normal(size=(1, anchors, height, width))
    deltas = random.normal(size=(1, 4 * anchors, height, width))

    placed = vision.generate_anchors(height, width, 8, cell)
    flat, matrix = vision.objectness_flat(objectness), vision.deltas_matrix(deltas)

    assert height * width * anchors == len(placed) == len(flat) == len(matrix)
    for at, (y, x, a) in enumerate(np.ndindex(height, width, anchors)):
        assert (cell[a] + np.array([x, y, x, y]) * 8).tolist() == placed[at].tolist()
        assert objectness[0, a, y, x] == flat[at]
        assert deltas[0, 4 * a : 4 * a + 4, y, x].tolist() == matrix[at].tolist()


@given(
    seeds,
    st.sampled_from([0.25, 1.0, 2.0]),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)
def test_regions_are_means_of_bilinear_samples(
    random: np.random.Generator, scale: float, pooled: int, ratio: int, aligned: bool
) -> None:
    """Fixed and adaptive sampling, regions beyond the map, maps of one cell."""
    height, width = random.integers(1, 7, 2)
    features = random.normal(size=(2, height, width))
    boxes = random.uniform(-3, 8, (3, 4)) / scale

    got = vision.roi_align(features, boxes, scale, pooled, ratio, aligned)

    for number, channel in np.ndindex(3, 2):
        expected = slow_roi_align(features[channel], boxes[number], scale, pooled, ratio, aligned)
        np.testing.assert_allclose(got[number, channel], expected, atol=1e-9)


@given(st.floats(0.01, 4000), st.integers(0, 6))
def test_levels_follow_the_logarithm_of_the_size(size: float, canonical: int) -> None:
    """Equation 1 of the paper, clamped to the levels that there are."""
    exact = math.log2(size / 224 + 1e-8) + canonical
    expected = min(max(math.floor(exact), 2), 5) - 2

    (level,) = vision.assign_level([[0, 0, size, size]], canonical)

    assert expected == level or abs(exact - round(exact)) < 1e-9


@given(seeds, st.integers(0, 3), thresholds)
def test_proposals_are_the_best_of_each_level(
    random: np.random.Generator, levels: int, threshold: float
) -> None:
    """Best per level, clipped, large and likely enough, suppressed per level, best of all."""
    counts = random.integers(0, 12, levels)
    boxes = [random_boxes(random, count) for count in counts]
    logits = [random.permutation(count) - 4.0 for count in counts]

    got = vision.select_rpn_proposals(
        boxes, logits, 9, 7, pre_nms_top=6, post_nms_top=5, nms_threshold=threshold,
        min_size=0.5, score_threshold=0.1,
    )  # fmt: skip

    candidates = [
        (level, box.clip(0, [7, 9, 7, 9]), logit)
        for level in range(levels)
        for box, logit in sorted(
            zip(boxes[level], logits[level], strict=True), key=lambda pair: -pair[1]
        )[:6]
        if 1 / (1 + math.exp(-logit)) >= 0.1
    ]
    candidates = [c for c in candidates if min(c[1][2:] - c[1][:2]) >= 0.5]
    found = [np.array(column) for column in zip(*candidates, strict=True)] or [np.zeros(0)] * 3
    kept = slow_nms(found[1], found[2], found[0], threshold)[:5]
    assert [candidates[number][1].tolist() for number in kept] == got.boxes.tolist()


@given(seeds, st.integers(0, 6), st.integers(2, 4), st.booleans(), st.booleans(), thresholds)
def test_detections_are_the_best_boxes_of_each_class(
    random: np.random.Generator,
    count: int,
    classes: int,
    background_first: bool,
    shared: bool,
    threshold: float,
) -> None:
    """Decoded, clipped, likely and large enough, suppressed per class, best of all."""
    logits, proposals = random.normal(size=(count, classes)) * 2, random_boxes(random, count)
    groups = 1 if shared else classes - (not background_first)
    deltas = random.normal(size=(count, 4 * groups))

    got = vision.fast_rcnn_inference(
        logits, deltas, proposals, 9, 7, score_threshold=0.2, nms_threshold=threshold,
        max_detections=4, background_first=background_first, min_size=0.1,
    )  # fmt: skip

    candidates = []
    for row in range(count):
        shares = np.exp(logits[row]) / np.exp(logits[row]).sum()
        for label in range(classes)[1:] if background_first else range(classes)[:-1]:
            group = deltas[row, :4] if shared else deltas[row, 4 * label : 4 * label + 4]
            box = slow_decode(group, proposals[row], (10, 10, 5, 5)).clip(0, [7, 9, 7, 9])
            if shares[label] > 0.2 and min(box[2:] - box[:2]) >= 0.1:
                candidates.append((label, box, shares[label]))
    found = [np.array(column) for column in zip(*candidates, strict=True)] or [np.zeros(0)] * 3
    kept = slow_nms(found[1], found[2], found[0], threshold)[:4]
    assert [candidates[number][0] for number in kept] == got.classes.tolist()
    boxes = np.reshape([candidates[number][1] for number in kept], (-1, 4))
    np.testing.assert_allclose(got.boxes, boxes, atol=1e-9)
