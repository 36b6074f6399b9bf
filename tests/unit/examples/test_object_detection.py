"""The pieces of the object detection example: its pictures, and how detections are compared."""

import math
import runpy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.object_detection.compare import COUNTS, difference, picture_of
from examples.object_detection.make_bundle import constants_text
from examples.object_detection.network import CHANNELS, CONFIG, SIDE
from examples.object_detection.shapes import CLASSES, draw_picture
from hloserve.core.tensors import NamedTensor
from hloserve.hooks.registration import collect_registrations
from hloserve.hooks.tensor_list import TensorList
from hloserve.hooks.vision import iou

HOOKS = Path(__file__).parents[3] / "examples" / "object_detection" / "hooks"
ROWS = np.array([[0, 0, 9, 9, 0.9, 1], [20, 20, 30, 30, 0.9, 1]], np.float32)


@pytest.mark.parametrize("shapes", COUNTS)
def test_picture_has_its_shapes_where_it_says(shapes: int) -> None:
    """As many as asked for, apart from each other, bright inside and dark between."""
    picture = picture_of(shapes)

    brightest = picture.pixels.max(axis=2)
    is_inside = np.zeros(brightest.shape, bool)
    for x1, y1, x2, y2 in picture.boxes.astype(int):
        is_inside[y1:y2, x1:x2] = True
        assert brightest[y2 - 3, (x1 + x2) // 2] > 150
    assert shapes == len(picture.boxes) == len(picture.classes)
    assert shapes == np.count_nonzero(iou(picture.boxes, picture.boxes))
    assert set(picture.classes) <= set(range(1, len(CLASSES)))
    assert brightest[~is_inside].max() < 150


def test_shapes_that_do_not_fit_are_told() -> None:
    """Rather than drawn over each other."""
    with pytest.raises(ValueError, match=r"shapes of .* pixels do not fit"):
        draw_picture(np.random.default_rng(0), 50, sizes=(40, 60))


def test_bars_are_black() -> None:
    """As they are beside a picture that was fitted in."""
    picture = draw_picture(np.random.default_rng(0), 3, margin=20)

    assert not picture.pixels[:20].any()
    assert not picture.pixels[-20:].any()
    assert (picture.boxes[:, 1] >= 20).all()


def test_same_detections_in_another_order_differ_by_nothing() -> None:
    """Equal scores may come in any order."""
    moved = ROWS[::-1] + np.array([0.25, 0, 0, 0, -0.125, 0], np.float32)

    assert (0, 0) == difference(ROWS, ROWS[::-1])
    assert (0.25, 0.125) == difference(ROWS, moved)
    assert (0, 0) == difference(ROWS[:0], ROWS[:0])


def test_other_detections_differ_without_limit() -> None:
    """One more, one less, or one of another class is no rounding."""
    other = ROWS.copy()
    other[0, 5] = 2

    assert (math.inf, math.inf) == difference(ROWS, ROWS[:1])
    assert (math.inf, math.inf) == difference(ROWS[:1], ROWS)
    assert (math.inf, math.inf) == difference(ROWS, other)


def test_no_proposals_are_no_rows_and_no_call(tmp_path: Path) -> None:
    """The second network is not asked about regions that there are none of."""
    hook = Path(shutil.copy(HOOKS / "two_stage.py", tmp_path))
    strict = replace(CONFIG, proposal_score_threshold=0.9)
    (tmp_path / "detector.json").write_text(constants_text(strict))
    with collect_registrations() as registered:
        runpy.run_path(str(hook))
    called = []

    def call(name: str, inputs: Any) -> dict[str, Any]:
        called.append(name)
        return {
            f"{kind}_{level}": np.zeros((1, channels, SIDE // stride, SIDE // stride), np.float32)
            for kind, channels in (("feat", CHANNELS), ("obj", 3), ("delta", 12))
            for level, stride in enumerate((8, 16))
        }

    image = np.zeros((1, 3, SIDE, SIDE), np.uint8)
    answer = registered.metas[0].run(TensorList([NamedTensor("INPUT__0", image)]), call)

    assert ["shapes_stage1"] == called
    assert (0, 6) == answer["OUTPUT__0"].shape
