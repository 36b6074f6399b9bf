"""Detection for hooks: what torchvision computes, and what happens at the edges."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloserve.hooks import vision

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "torchvision_detection.json").read_text()
)
STAGES: dict[str, Any] = REFERENCE["stages"]
CORNERS = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]], np.float32)


def test_overlaps_are_those_of_torchvision() -> None:
    """Every pair of boxes overlaps as `torchvision.ops.box_iou` says."""
    got = vision.iou(REFERENCE["boxes"], REFERENCE["others"])

    np.testing.assert_allclose(got, REFERENCE["iou"], atol=2e-6)


def test_suppression_is_that_of_torchvision() -> None:
    """The same boxes in the same order, with and without groups."""
    boxes, scores, groups = (REFERENCE[name] for name in ("boxes", "scores", "groups"))

    assert REFERENCE["nms"] == vision.nms(boxes, scores, 0.3).tolist()
    assert REFERENCE["batched_nms"] == vision.batched_nms(boxes, scores, groups, 0.3).tolist()


def test_decoded_boxes_are_those_of_torchvision() -> None:
    """Two classes per box, with the weights of torchvision's box head."""
    got = vision.decode_boxes(REFERENCE["deltas"], REFERENCE["boxes"], (10, 10, 5, 5))

    np.testing.assert_allclose(got, REFERENCE["decoded"], atol=1e-3)


def test_anchors_are_those_of_torchvision() -> None:
    """By row, column and anchor; strides may differ by direction."""
    cell = vision.cell_anchors((16, 32), (0.5, 1.0, 2.0))

    assert REFERENCE["cell_anchors"] == cell.tolist()
    assert REFERENCE["anchors"] == vision.generate_anchors(2, 3, (8, 4), cell).tolist()


def test_levels_are_those_of_torchvision() -> None:
    """Also for boxes whose size is exactly the border between two levels."""
    assert REFERENCE["levels"] == vision.assign_level(REFERENCE["squares"]).tolist()


@pytest.mark.parametrize("case", REFERENCE["roi_align"]["cases"], ids=lambda case: case["scale"])
def test_regions_are_those_of_torchvision(case: dict[str, Any]) -> None:
    """With fixed and adaptive sampling, aligned or not, inside and outside of the map."""
    regions = REFERENCE["roi_align"]
    options = {name: value for name, value in case.items() if name != "result"}

    got = vision.roi_align(regions["features"], regions["boxes"], **options)

    np.testing.assert_allclose(got, case["result"], atol=2e-5)


def test_proposals_are_those_of_torchvision() -> None:
    """Best per level, clipped, large and likely enough, suppressed, best of all."""
    got = vision.select_rpn_proposals(
        [level["boxes"] for level in STAGES["levels"]],
        [level["objectness"] for level in STAGES["levels"]],
        REFERENCE["height"],
        REFERENCE["width"],
        pre_nms_top=12,
        post_nms_top=15,
        nms_threshold=0.5,
        score_threshold=0.3,
    )

    np.testing.assert_allclose(got.boxes, STAGES["chosen"], atol=1e-4)
    assert (np.diff(got.scores) <= 0).all()


def test_detections_are_those_of_torchvision() -> None:
    """Boxes, scores and classes, in order."""
    got = vision.fast_rcnn_inference(
        STAGES["class_logits"],
        STAGES["box_deltas"],
        STAGES["proposals"],
        REFERENCE["height"],
        REFERENCE["width"],
        score_threshold=0.1,
        nms_threshold=0.4,
        max_detections=8,
        background_first=True,
        min_size=0.01,
    )

    assert STAGES["classes"] == got.classes.tolist()
    np.testing.assert_allclose(got.boxes, STAGES["boxes"], atol=1e-3)
    np.testing.assert_allclose(got.scores, STAGES["scores"], atol=1e-5)


def test_background_may_be_the_last_class() -> None:
    """Detectron2's order: boxes for the foreground alone, and a class is its own column."""
    logits = np.array([[0.0, 9.0, 0.0]])
    deltas = np.array([[9.0, 9, 9, 9, 0, 0, 0, 0]])

    found = vision.fast_rcnn_inference(logits, deltas, CORNERS[:1], 50, 50)

    assert [1] == found.classes.tolist()
    assert CORNERS[:1].tolist() == found.boxes.tolist()


def test_one_box_may_serve_all_classes() -> None:
    """Four deltas per proposal, whatever the number of classes."""
    found = vision.fast_rcnn_inference(
        [[0.0, 4.0, 4.0]], np.zeros((1, 4)), CORNERS[:1], 50, 50, background_first=True
    )

    assert [1, 2] == found.classes.tolist()
    assert 2 * CORNERS[:1].tolist() == found.boxes.tolist()


def test_negative_limit_returns_every_detection() -> None:
    """`max_detections` below 0 is no limit; 0 is none at all."""
    logits, deltas = np.zeros((3, 2)), np.zeros((3, 4))

    def count(limit: int) -> int:
        found = vision.fast_rcnn_inference(
            logits, deltas, CORNERS, 50, 50, max_detections=limit, nms_threshold=1.0
        )
        return len(found.scores)

    assert [3, 2, 0] == [count(-1), count(2), count(0)]


def test_rows_put_box_score_and_class_beside_each_other() -> None:
    """Six columns, or five without the class; float32 for clients."""
    found = vision.Detections(CORNERS[:1].astype(float), np.array([0.5]), np.array([3]))

    assert [[0, 0, 10, 10, 0.5, 3]] == found.rows().tolist()
    assert [[0, 0, 10, 10, 0.5]] == found.rows(5).tolist()
    assert np.float32 == found.rows().dtype


def test_nothing_gives_nothing() -> None:
    """Each function takes no boxes, as a list or as an array, and gives none."""
    none = np.zeros((0, 4), np.float32)

    assert (0, 3) == vision.iou([], CORNERS).shape
    assert (3, 0) == vision.iou(CORNERS, none).shape
    assert [] == vision.nms([], [], 0.5).tolist()
    assert [] == vision.batched_nms(none, [], [], 0.5).tolist()
    assert (0, 8) == vision.decode_boxes(np.zeros((0, 8)), none).shape
    assert (0, 4) == vision.generate_anchors(0, 3, 8, CORNERS).shape
    assert (0, 4) == vision.generate_anchors(2, 3, 8, none).shape
    assert [] == vision.assign_level([]).tolist()
    assert (0, 2, 7, 7) == vision.roi_align(np.ones((2, 3, 3)), none, 1.0).shape
    assert (0,) == vision.objectness_flat(np.zeros((1, 3, 0, 2))).shape
    assert (0, 4) == vision.deltas_matrix(np.zeros((1, 12, 0, 2))).shape


def test_no_proposals_give_no_detections() -> None:
    """Neither levels without boxes nor no levels at all are an error."""
    none = np.zeros((0, 4))

    assert (0, 4) == vision.select_rpn_proposals([], [], 9, 9).boxes.shape
    assert (0, 4) == vision.select_rpn_proposals([none, none], [[], []], 9, 9).boxes.shape
    found = vision.fast_rcnn_inference(np.zeros((0, 3)), np.zeros((0, 8)), none, 9, 9)
    assert (0, 6) == found.rows().shape
    assert np.int64 == found.classes.dtype


def test_boxes_without_area_overlap_nothing() -> None:
    """Also not themselves, and neither do boxes with their corners the wrong way round."""
    boxes = [[1, 1, 1, 5], [4, 4, 2, 2], [0, 0, 0, 0]]

    assert not vision.iou(boxes, boxes).any()
    assert not vision.iou(boxes, CORNERS).any()


def test_overlap_of_exactly_the_threshold_is_kept() -> None:
    """Only an overlap above it suppresses."""
    boxes = [[0, 0, 2, 2], [0, 0, 2, 1]]

    assert [0, 1] == vision.nms(boxes, [1, 0.5], 0.5).tolist()
    assert [0] == vision.nms(boxes, [1, 0.5], 0.4999).tolist()


def test_earlier_of_two_equal_scores_wins() -> None:
    """Ties are broken by position, so that results repeat."""
    assert [0, 2] == vision.nms(CORNERS, [0.5, 0.5, 0.5], 0.5).tolist()
    assert [1, 2] == vision.nms(CORNERS[[1, 0, 2]][[1, 0, 2]], [0.4, 0.5, 0.4], 0.5).tolist()


def test_small_and_unlikely_proposals_are_dropped() -> None:
    """What torchvision checks and its ports often leave out."""
    boxes = [np.array([[0, 0, 5, 5], [60, 0, 70, 9], [10, 10, 15, 10.5], [20, 20, 25, 25]])]
    logits = [np.array([0.0, 3, 2, -3])]

    default = vision.select_rpn_proposals(boxes, logits, 40, 60)
    strict = vision.select_rpn_proposals(boxes, logits, 40, 60, min_size=1.0, score_threshold=0.5)

    assert [2, 0, -3] == default.scores.tolist()
    assert [0] == strict.scores.tolist()


def test_wide_deltas_are_cut_off() -> None:
    """A box grows at most to 62.5 times its anchor, whatever is predicted."""
    (box,) = vision.decode_boxes([[0, 0, 99, 0]], [[0, 0, 2, 2]])

    assert 125 == pytest.approx(box[2] - box[0])
    assert 2 == pytest.approx(box[3] - box[1])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: vision.iou(np.zeros((2, 5)), CORNERS), r"first have shape \(2, 5\)"),
        (lambda: vision.nms(CORNERS, [1, 2], 0.5), r"scores have shape \(2,\)"),
        (lambda: vision.batched_nms(CORNERS, [1, 2, 3], [0], 0.5), r"groups have shape \(1,\)"),
        (lambda: vision.decode_boxes(np.zeros((3, 6)), CORNERS), r"expected \(3, 4 \* classes\)"),
        (lambda: vision.decode_boxes(np.zeros((2, 4)), CORNERS), r"deltas have shape \(2, 4\)"),
        (lambda: vision.roi_align(np.zeros((3, 3)), CORNERS, 1.0), r"\(channels, height, width\)"),
        (lambda: vision.roi_align(np.zeros((1, 0, 3)), CORNERS, 1.0), r"shape \(1, 0, 3\)"),
        (lambda: vision.objectness_flat(np.zeros((2, 3, 4, 4))), r"objectness have shape"),
        (lambda: vision.deltas_matrix(np.zeros((1, 6, 4, 4))), r"expected \(1, anchors \* 4"),
        (
            lambda: vision.fast_rcnn_inference(np.zeros((2, 4)), np.zeros((3, 8)), CORNERS, 9, 9),
            r"class_logits have shape \(2, 4\), expected \(3, classes\)",
        ),
        (
            lambda: vision.fast_rcnn_inference(np.zeros((3, 4)), np.zeros((2, 8)), CORNERS, 9, 9),
            r"box_deltas have shape \(2, 8\), expected \(3, 4 \* classes\)",
        ),
        (
            lambda: vision.fast_rcnn_inference(np.zeros((3, 4)), np.zeros((3, 8)), CORNERS, 9, 9),
            "box_deltas hold 2 boxes per proposal, expected 3 or 1",
        ),
    ],
)  # fmt: skip
def test_wrong_shapes_are_named(call: Any, text: str) -> None:
    """A mistake says which argument has which shape."""
    with pytest.raises(ValueError, match=text):
        call()


def test_infinite_boxes_and_features_do_not_warn() -> None:
    """A diverged network gives strange boxes, not a failing hook."""
    boxes = [[np.nan, 0, 4, 4], [0, 0, np.inf, 4], [-np.inf, 0, 2, 2]]

    pooled = vision.roi_align(np.ones((1, 4, 4)), boxes, 1.0, 2, 2)

    assert (3, 1, 2, 2) == pooled.shape


def test_it_loads_nothing_but_numpy() -> None:
    """A `model.py` that imports it pays for NumPy alone."""
    program = (
        "import sys, numpy; before = set(sys.modules); import hloserve.hooks.vision;"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert {"hloserve", "numpy"} >= set(done.stdout.split())
