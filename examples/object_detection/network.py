"""A detector of two stages that is small enough to train in a minute: its networks, its constants.

What lives here: both networks as functions of JAX, and the weights that `training.py` has made.
What does not: everything between and after them, which `hloserve.export` compiles and
`hloserve.hooks.vision` computes in NumPy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax

from examples.object_detection.shapes import CLASSES, MOST_ROWS
from hloserve.export import DetectorConfig, TwoStageDetector
from hloserve.hooks.vision import cell_anchors

__all__ = [
    "CHANNELS",
    "CONFIG",
    "SIDE",
    "WEIGHTS_FILE",
    "Weights",
    "init_weights",
    "load_detector",
    "stage1",
    "stage2",
]

SIDE = 128
"""Height and width of the images, in pixels."""

CHANNELS = 24
HIDDEN = 48
WEIGHTS_FILE = Path(__file__).with_name("weights.npz")

CONFIG = DetectorConfig(
    cell_anchors=[cell_anchors([size], [0.5, 1.0, 2.0]) for size in (20, 36)],
    anchor_strides=(8, 16),
    pre_nms_top=100,
    post_nms_top=32,
    roi_strides=(8, 16),
    pooled_size=4,
    canonical_level=4,
    canonical_size=32.0,
    score_threshold=0.5,
    nms_threshold=0.3,
    max_detections=MOST_ROWS,
)

Weights: TypeAlias = Mapping[str, Any]


def stage1(image: Any, weights: Weights) -> tuple[list[Any], list[Any], list[Any]]:
    """Feature maps, and per map the objectness and the box predictions.

    Shapes:
        image: [1, 3, 128, 128], float32, 0 to 1.
        feature maps: [1, 24, 16, 16] and [1, 24, 8, 8].
        objectness: [1, 3, h, w] each.
        box predictions: [1, 12, h, w] each.
    """
    x = image * 4 - 1
    for name in ("conv1", "conv2", "conv3"):
        x = jax.nn.relu(_convolve(x, weights, name, stride=2))
    fine = x
    for name, stride in (("conv4", 2), ("conv5", 1)):
        x = jax.nn.relu(_convolve(x, weights, name, stride=stride))
    coarse = _convolve(x, weights, "lateral4")
    fine = _convolve(fine, weights, "lateral3") + coarse.repeat(2, axis=2).repeat(2, axis=3)
    features = [fine, coarse]
    hidden = [jax.nn.relu(_convolve(each, weights, "rpn")) for each in features]
    objectness = [_convolve(each, weights, "objectness") for each in hidden]
    deltas = [_convolve(each, weights, "anchor_deltas") for each in hidden]
    return features, objectness, deltas


def stage2(regions: Any, weights: Weights) -> tuple[Any, Any]:
    """Logits of the classes, background first, and box predictions of each.

    Shapes:
        regions: [m, 24, 4, 4], float32.
        logits: [m, 4].
        box predictions: [m, 16].
    """
    flat = regions.reshape(regions.shape[0], -1)
    hidden = jax.nn.relu(flat @ weights["head"] + weights["head_bias"])
    logits = hidden @ weights["classes"] + weights["classes_bias"]
    return logits, hidden @ weights["box_deltas"] + weights["box_deltas_bias"]


def _convolve(x: Any, weights: Weights, name: str, stride: int = 1) -> Any:
    kernel = weights[name]
    padding = kernel.shape[-1] // 2
    around = ((padding, padding), (padding, padding))
    moved = lax.conv_general_dilated(x, kernel, (stride, stride), around)
    return moved + weights[f"{name}_bias"][:, None, None]


def init_weights(random: np.random.Generator) -> dict[str, Any]:
    """Random weights to begin with."""
    kernels = {
        "conv1": (16, 3, 3, 3),
        "conv2": (CHANNELS, 16, 3, 3),
        "conv3": (CHANNELS, CHANNELS, 3, 3),
        "conv4": (CHANNELS, CHANNELS, 3, 3),
        "conv5": (CHANNELS, CHANNELS, 3, 3),
        "lateral3": (CHANNELS, CHANNELS, 1, 1),
        "lateral4": (CHANNELS, CHANNELS, 1, 1),
        "rpn": (CHANNELS, CHANNELS, 3, 3),
        "objectness": (3, CHANNELS, 1, 1),
        "anchor_deltas": (12, CHANNELS, 1, 1),
    }
    pooled = CHANNELS * CONFIG.pooled_size**2
    matrices = {
        "head": (pooled, HIDDEN),
        "classes": (HIDDEN, len(CLASSES)),
        "box_deltas": (HIDDEN, 4 * len(CLASSES)),
    }
    weights: dict[str, Any] = {}
    for name, shape in kernels.items():
        weights[name] = random.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape)
        weights[f"{name}_bias"] = np.zeros(shape[0])
    for name, matrix in matrices.items():
        weights[name] = random.normal(0, (2 / matrix[0]) ** 0.5, matrix)
        weights[f"{name}_bias"] = np.zeros(matrix[1])
    return {name: value.astype(np.float32) for name, value in weights.items()}


def load_detector() -> TwoStageDetector:
    """The trained detector."""
    with np.load(WEIGHTS_FILE) as stored:  # float16, to be small
        weights = {name: stored[name].astype(np.float32) for name in stored.files}
    return TwoStageDetector(stage1=stage1, stage2=stage2, weights=weights, config=CONFIG)
