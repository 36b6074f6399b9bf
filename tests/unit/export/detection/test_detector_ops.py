"""The detector's steps in JAX do what the plain NumPy ones do."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from hloserve.core.tensors import Array
from hloserve.export.detection import detector_ops
from hloserve.hooks import vision

pytestmark = pytest.mark.xla

STRIDES = (4, 8, 16)


def random_boxes(random: np.random.Generator, *shape: int) -> Array:
    """Boxes that overlap one another often, some beyond an image of 64 pixels."""
    corner = random.uniform(-5, 60, (*shape, 2))
    boxes = np.concatenate([corner, corner + random.uniform(0, 40, (*shape, 2))], axis=-1)
    return boxes.astype(np.float32)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_suppression_is_greedy_suppression(threshold: float) -> None:
    """Several sets at once, some boxes absent; chains of suppression are followed to their end."""
    random = np.random.default_rng(0)
    corners, is_there = random_boxes(random, 6, 80), random.uniform(size=(6, 80)) < 0.8
    corners[5] = np.arange(80)[:, None] * [2, 0, 2, 0] + np.array([0, 0, 10, 10])  # one long chain

    kept = np.asarray(jax.jit(detector_ops.suppress)(corners, is_there, threshold))

    for number in range(6):
        there = np.flatnonzero(is_there[number])
        expected = there[vision.nms(corners[number][there], -there, threshold)]
        assert expected.tolist() == np.flatnonzero(kept[number]).tolist()


@pytest.mark.parametrize("score_threshold", [0.0, 0.4])
def test_proposals_are_those_of_the_reference(score_threshold: float) -> None:
    """Levels of different sizes, smaller than the cap and larger; as a set, and in order."""
    random = np.random.default_rng(1)
    levels = []
    for stride, (height, width) in zip(STRIDES, ((12, 16), (6, 8), (2, 3)), strict=True):
        cell = vision.cell_anchors([3.0 * stride], [0.5, 1.0])
        objectness = random.normal(size=(1, 2, height, width)).astype(np.float32)
        deltas = (random.normal(size=(1, 8, height, width)) * 0.4).astype(np.float32)
        levels.append(detector_ops.Level(objectness, deltas, cell, (stride, stride)))
    options: dict[str, Any] = {
        "pre_nms_top": 40,
        "post_nms_top": 30,
        "nms_threshold": 0.5,
        "min_size": 4.0,
        "score_threshold": score_threshold,
    }

    @jax.jit
    def select(predictions: list[tuple[Any, Any]]) -> detector_ops.Boxes:
        traced = [
            level._replace(objectness=objectness, deltas=deltas)
            for level, (objectness, deltas) in zip(levels, predictions, strict=True)
        ]
        return detector_ops.select_proposals(traced, (48, 64), weights=(1, 1, 1, 1), **options)

    got = select([(level.objectness, level.deltas) for level in levels])

    boxes = []
    for level in levels:
        _, _, height, width = level.objectness.shape
        anchors = vision.generate_anchors(height, width, level.stride, level.cell)
        boxes.append(vision.decode_boxes(vision.deltas_matrix(level.deltas), anchors))
    scores = [vision.objectness_flat(level.objectness) for level in levels]
    expected = vision.select_rpn_proposals(boxes, scores, 48, 64, **options).boxes
    assert len(expected) == np.sum(got.is_there)
    np.testing.assert_allclose(got.corners[: len(expected)], expected, atol=1e-3)
    assert not np.asarray(got.corners)[len(expected) :].any()


@pytest.mark.parametrize(("sampling_ratio", "aligned"), [(1, True), (2, False), (3, True)])
def test_regions_are_those_of_the_reference(sampling_ratio: int, aligned: bool) -> None:
    """Each out of its own map, in one table; also beyond the maps, and of empty boxes."""
    random = np.random.default_rng(2)
    maps = [
        detector_ops.FeatureMap(
            random.normal(size=(1, 5, 64 // stride, 96 // stride)).astype(np.float32), stride
        )
        for stride in STRIDES
    ]
    corners = random_boxes(random, 40)
    corners[:3] = 0
    levels = random.integers(0, 3, 40).astype(np.int32)

    got = jax.jit(
        lambda corners, levels: detector_ops.pool_regions(
            maps, corners, levels, pooled_size=3, sampling_ratio=sampling_ratio, aligned=aligned
        )
    )(corners, levels)

    for number, level in enumerate(levels):
        (expected,) = vision.roi_align(
            maps[level].features[0], corners[[number]], 1 / maps[level].stride, 3,
            sampling_ratio, aligned,
        )  # fmt: skip
        np.testing.assert_allclose(got[number], expected, atol=2e-5)


def test_levels_are_those_of_the_reference() -> None:
    """Also where a box is exactly as large as the border between two levels."""
    sizes = np.array([0, 1, 13, 14, 27.9, 28, 55, 56, 100, 112, 224, 448, 5000], np.float32)
    corners = np.stack([sizes * 0, sizes * 0, sizes, sizes], axis=1)

    got = detector_ops.assign_levels(
        corners, 4, min_level=2, canonical_level=4, canonical_size=224.0
    )

    assert vision.assign_level(corners).tolist() == got.tolist()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("max_detections", "max_candidates"), [(10, None), (300, None), (10, 90)])
def test_detections_are_those_of_batched_suppression(
    shared: bool, max_detections: int, max_candidates: int | None
) -> None:
    """The best boxes of each class; also when there are fewer, or enough of a cap."""
    random = np.random.default_rng(3)
    corners = random_boxes(random, 50, 1 if shared else 4)
    scores = random.uniform(size=(50, 4)).astype(np.float32)
    is_there = scores > 0.6

    pick = partial(
        detector_ops.pick_detections, nms_threshold=0.3,
        max_detections=max_detections, max_candidates=max_candidates,
    )  # fmt: skip

    rows, count = jax.jit(pick)(corners, scores, is_there)

    boxes = np.broadcast_to(corners, (50, 4, 4)).reshape(-1, 4)
    there = np.flatnonzero(is_there)
    kept = there[vision.batched_nms(boxes[there], scores.ravel()[there], there % 4, 0.3)]
    kept = kept[:max_detections]
    assert len(kept) == count
    expected = np.column_stack([boxes[kept], scores.ravel()[kept], kept % 4])
    np.testing.assert_array_equal(rows[: len(kept)], expected.astype(np.float32))
    assert not np.asarray(rows)[len(kept) :].any()


def test_cap_of_candidates_drops_the_least_likely() -> None:
    """Beyond the cap, what is dropped is what scores lowest, whatever it would have become."""
    corners = np.array([[[0, 0, 9, 9]], [[0, 0, 9, 8]], [[20, 20, 30, 30]]], np.float32)
    scores = np.array([[0.9], [0.8], [0.7]], np.float32)

    def found(cap: int | None) -> list[float]:
        pick = partial(
            detector_ops.pick_detections, nms_threshold=0.5, max_detections=5, max_candidates=cap
        )
        rows, count = jax.jit(pick)(corners, scores, scores > 0)
        return [round(float(score), 2) for score in rows[: int(count), 4]]

    assert [0.9, 0.7] == found(None)
    assert [0.9, 0.7] == found(3)
    assert [0.9] == found(2)


def test_types_do_not_depend_on_the_settings_of_jax() -> None:
    """With 64-bit types on, everything is float32 and int32 all the same."""
    with jax.enable_x64(True):
        corners = jax.numpy.zeros((3, 1, 4), "float32")
        scores = jax.numpy.ones((3, 2), "float32")
        pick = partial(detector_ops.pick_detections, nms_threshold=0.5, max_detections=2)
        rows, count = jax.eval_shape(pick, corners, scores, scores > 0)
        levels = detector_ops.assign_levels(
            corners[:, 0], 2, min_level=2, canonical_level=4, canonical_size=224.0
        )

    assert ["float32", "int32", "int32"] == [str(x.dtype) for x in (rows, count, levels)]
