"""A two-stage detector small enough to compile in a second, and what it detects, in plain NumPy.

Three feature maps of eight channels, of which the first two are cut into regions; three anchors per
cell; four classes and the background. The weights are random, but scaled and centred by what one
image makes of them, so that scores and classes spread out: without that all are nearly equal, and
no test says anything.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hloserve.core.tensors import Array
from hloserve.export.detection.config import DetectorConfig
from hloserve.export.detection.detector import TwoStageDetector
from hloserve.hooks import vision

CHANNELS, CLASSES, POOLED = 8, 5, 4
STRIDES = (4, 8, 16)
CONFIG = DetectorConfig(
    cell_anchors=[vision.cell_anchors([3.0 * stride], [0.5, 1.0, 2.0]) for stride in STRIDES],
    roi_strides=STRIDES[:2],
    pre_nms_top=60,
    post_nms_top=50,
    pooled_size=POOLED,
    canonical_level=3,
    canonical_size=24.0,
    max_detections=20,
    image_mean=(0.485, 0.456, 0.406),
    image_std=(0.229, 0.224, 0.225),
)


def stage1(image: Any, weights: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Feature maps, and per map the objectness and the box predictions."""
    features, objectness, deltas = [], [], []
    x = _convolve(image, weights["stem"], stride=2)
    for stride in STRIDES:
        x = _convolve(x, weights[f"down{stride}"], stride=2)
        features.append(x)
        hidden = _convolve(x, weights["rpn"])
        objectness.append(_per_cell(hidden, weights["objectness"]))
        deltas.append(_per_cell(hidden, weights["anchor_deltas"]))
    return features, objectness, deltas


def stage2(regions: Any, weights: Mapping[str, Any]) -> tuple[Any, Any]:
    """Logits of the classes and box predictions of each."""
    hidden = jax.nn.relu(regions.reshape(len(regions), -1) @ weights["head"])
    return hidden @ weights["classes"] - weights["class_means"], hidden @ weights["box_deltas"]


def _convolve(x: Any, kernel: Any, stride: int = 1) -> Any:
    return jax.nn.relu(lax.conv_general_dilated(x, kernel, (stride, stride), ((1, 1), (1, 1))))


def _per_cell(x: Any, matrix: Any) -> Any:
    return jnp.einsum("nchw,ck->nkhw", x, matrix)


def make_detector(seed: int = 0, *, score_scale: float = 2.0, **changes: Any) -> TwoStageDetector:
    """A tiny detector with random weights.

    Args:
        seed: of the weights.
        score_scale: standard deviation of the classes' logits.
        **changes: of its `DetectorConfig`.
    """
    random = np.random.default_rng(seed)
    config = replace(CONFIG, **changes)

    def normal(*shape: int, fan_in: int) -> Array:
        values: Array = random.normal(size=shape) * (2 / fan_in) ** 0.5
        return values.astype(np.float32)

    conv = {
        f"down{stride}": normal(CHANNELS, CHANNELS, 3, 3, fan_in=9 * CHANNELS) for stride in STRIDES
    }
    weights = conv | {
        "stem": normal(CHANNELS, 3, 3, 3, fan_in=27),
        "rpn": normal(CHANNELS, CHANNELS, 3, 3, fan_in=9 * CHANNELS),
        "objectness": normal(CHANNELS, 3, fan_in=CHANNELS),
        "anchor_deltas": normal(CHANNELS, 12, fan_in=CHANNELS),
        "head": normal(CHANNELS * POOLED**2, 32, fan_in=CHANNELS * POOLED**2),
        "classes": normal(32, CLASSES, fan_in=32),
        "class_means": np.zeros(CLASSES, np.float32),
        "box_deltas": normal(32, 4 * CLASSES, fan_in=32),
    }
    image = random.normal(size=(1, 3, 64, 64)).astype(np.float32)
    features, objectness, deltas = jax.jit(stage1)(image, weights)
    weights["objectness"] *= 2 / np.std(objectness[0])
    weights["anchor_deltas"] *= 0.3 / np.std(deltas[0])
    patches = np.asarray(features[0])[0].reshape(CHANNELS, 4, 4, 4, 4).transpose(1, 3, 0, 2, 4)
    logits, boxes = jax.jit(stage2)(patches.reshape(16, CHANNELS, 4, 4), weights)
    scale = score_scale / np.std(logits, axis=0)
    weights["classes"] *= scale
    weights["class_means"] = np.asarray(scale * np.mean(logits, axis=0))  # no class wins everywhere
    weights["box_deltas"] *= 1 / np.std(boxes)
    return TwoStageDetector(stage1=stage1, stage2=stage2, weights=weights, config=config)


def make_image(seed: int, height: int = 64, width: int = 64) -> Array:
    """Blobs of several sizes and colours on noise: [1, 3, height, width], uint8."""
    random = np.random.default_rng(seed)
    image = random.uniform(0, 60, (3, height, width))
    for _ in range(12):
        top, left = random.integers(0, height - 8), random.integers(0, width - 8)
        tall, wide = random.integers(6, 40, 2)
        image[:, top : top + tall, left : left + wide] += random.uniform(-80, 160, (3, 1, 1))
    return image.clip(0, 255).astype(np.uint8)[None]


def reference_detections(detector: TwoStageDetector, image: Array) -> vision.Detections:
    """What the detector finds: its networks on JAX, everything else by `hloserve.hooks.vision`.

    Lists have the length they have here, and all is computed in float64.
    """
    config, (height, width) = detector.config, image.shape[2:]
    assert config.image_mean is not None
    assert config.image_std is not None
    pixels = image.astype(np.float32) / (255 if image.dtype == np.uint8 else 1)
    pixels = (pixels - np.reshape(config.image_mean, (3, 1, 1))) / np.reshape(
        config.image_std, (3, 1, 1)
    )
    features, objectness, deltas = jax.jit(detector.stage1)(
        pixels.astype(np.float32), detector.weights
    )
    boxes = []
    for cell, stride, delta in zip(config.cell_anchors, STRIDES, deltas, strict=True):
        rows, columns = delta.shape[2:]
        anchors = vision.generate_anchors(rows, columns, stride, cell)
        codes = vision.deltas_matrix(delta)
        boxes.append(vision.decode_boxes(codes, anchors, config.proposal_weights))
    proposals = vision.select_rpn_proposals(
        boxes,
        [vision.objectness_flat(level) for level in objectness],
        height,
        width,
        pre_nms_top=config.pre_nms_top,
        post_nms_top=config.post_nms_top,
        nms_threshold=config.proposal_nms_threshold,
        min_size=config.proposal_min_size,
        score_threshold=config.proposal_score_threshold,
    ).boxes
    regions = np.zeros((config.post_nms_top, CHANNELS, POOLED, POOLED), np.float32)
    regions[: len(proposals)] = _regions(config, features, proposals)  # one size to compile for
    logits, codes = jax.jit(detector.stage2)(regions, detector.weights)
    return vision.fast_rcnn_inference(
        logits[: len(proposals)],
        codes[: len(proposals)],
        proposals,
        height,
        width,
        score_threshold=config.score_threshold,
        nms_threshold=config.nms_threshold,
        max_detections=config.max_detections,
        weights=config.box_weights,
        background_first=config.background_first,
        min_size=config.min_size,
    )


def _regions(config: DetectorConfig, features: Any, proposals: Array) -> Array:
    regions = np.zeros((len(proposals), CHANNELS, POOLED, POOLED), np.float32)
    levels = vision.assign_level(
        proposals, config.canonical_level, config.canonical_size, min_level=2, max_level=3
    )
    for level, stride in enumerate(config.roi_strides):
        regions[levels == level] = vision.roi_align(
            features[level][0],
            proposals[levels == level],
            1 / stride,
            POOLED,
            config.sampling_ratio,
            config.aligned,
        )
    return regions


def assert_same_detections(wanted: Array, got: Array) -> None:
    """The rows are the same ones, in any order: class exactly, scores to 1e-4, boxes to 0.01."""
    assert wanted.shape == got.shape, f"{len(got)} detections, expected {len(wanted)}"
    left = list(got)
    for row in wanted:
        near = [
            at
            for at, other in enumerate(left)
            if abs(other[:4] - row[:4]).max() < 0.01
            and abs(other[4] - row[4]) < 1e-4
            and (other[5:] == row[5:]).all()
        ]
        assert near, f"no detection is {row}; left are {np.array(left)}"
        left.pop(near[0])
