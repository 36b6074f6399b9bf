"""What can be wrong with a detector and the options of its export, found before it is traced.

What lives here: findings about images, options, and what the networks return. What does not: those
about the constants (`hloserve.export.detection.config`). The networks are not run, only their
shapes are computed. One thread.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hloserve.core.tensors import Array
from hloserve.export.detection.config import DetectorConfig
from hloserve.export.options import ExportOptions

__all__ = ["option_findings", "read_images", "stage_findings"]


def option_findings(options: ExportOptions) -> list[str]:
    """Options that make no sense for a detector."""
    findings = [
        f"{name}: a detector takes one image per call; leave it out"
        for name in ("batch_sizes", "input_batch_axes", "output_batch_axes")
        if options.get(name) is not None
    ]
    findings += [
        f"{name}: follows from the images and the detector; leave it out"
        for name in ("shape_variants", "output_select")
        if options.get(name) is not None
    ]
    for name, count in (("input_names", 1), ("output_names", 2)):
        names: Any = options.get(name)
        if names is not None and (isinstance(names, str) or len(names) != count):
            findings.append(f"{name}: must be {count} of them, got {names!r}")
    if options.get("hook_file") is None:
        findings += [
            f"{name}: needs a hook_file that makes {what}"
            for name, what in (
                ("client_inputs", "the image of them"),
                ("client_outputs", "them of DETECTIONS and NUM_DETECTIONS"),
            )
            if options.get(name) is not None
        ]
    return findings


def read_images(images: Array | Sequence[Array], findings: list[str]) -> list[Array]:
    """The example images with their batch axis; appends what is wrong with them."""
    given = [images] if hasattr(images, "shape") else list(images)
    read = [np.asarray(image) for image in given]
    read = [image[None] if image.ndim == 3 else image for image in read]
    findings += [
        f"images[{index}]: is {image.dtype.name} of shape {image.shape}, expected uint8 or float32"
        " of (3, height, width)"
        for index, image in enumerate(read)
        if image.ndim != 4
        or image.shape[:2] != (1, 3)
        or image.dtype not in (np.uint8, np.float32)
        or not image.size
    ]
    if not read:
        findings.append("images: is empty; give one example per image size")
    if len({image.dtype for image in read}) > 1:
        findings.append("images: are of different types; all must be uint8, or all float32")
    if len({image.shape for image in read}) < len(read):
        findings.append("images: two have the same size; give one example per image size")
    return read


def stage_findings(
    stage1: Callable[..., Any],
    stage2: Callable[..., Any],
    weights: Any,
    config: DetectorConfig,
    image: Array,
) -> list[str]:
    """What the networks return for an image of this size that does not fit."""
    size = f"{image.shape[2]}x{image.shape[3]}"
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), weights
    )
    pixels = jax.ShapeDtypeStruct(image.shape, np.float32)
    try:
        features, objectness, deltas = jax.eval_shape(stage1, pixels, abstract)
    except Exception as error:  # noqa: BLE001  # a network of others may raise anything
        return [f"stage1 at {size}: fails, or does not return three lists: {_told(error)}"]
    findings = _count_findings(config, features, objectness, deltas, size)
    findings = findings or _map_findings(config, objectness, deltas, size)
    if findings:
        return findings
    anchors = sum(min(config.pre_nms_top, math.prod(level.shape)) for level in objectness)
    count = min(config.post_nms_top, anchors)
    shape = (count, features[0].shape[1], config.pooled_size, config.pooled_size)
    try:
        logits, boxes = jax.eval_shape(stage2, jax.ShapeDtypeStruct(shape, np.float32), abstract)
    except Exception as error:  # noqa: BLE001  # likewise
        return [f"stage2 for {shape}: fails, or does not return two arrays: {_told(error)}"]
    return _head_findings(config, count, logits, boxes)


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _count_findings(
    config: DetectorConfig,
    features: Sequence[Any],
    objectness: Sequence[Any],
    deltas: Sequence[Any],
    size: str,
) -> list[str]:
    levels = len(config.cell_anchors)
    findings = []
    if len(features) < len(config.roi_strides):
        findings.append(
            f"stage1 at {size}: returns {len(features)} feature maps for"
            f" {len(config.roi_strides)} roi_strides"
        )
    if len(objectness) != levels or len(deltas) != levels:
        findings.append(
            f"stage1 at {size}: returns objectness of {len(objectness)} and box predictions of"
            f" {len(deltas)} maps for {levels} cell_anchors"
        )
    return findings


def _map_findings(
    config: DetectorConfig, objectness: Sequence[Any], deltas: Sequence[Any], size: str
) -> list[str]:
    findings = []
    for index, cell in enumerate(config.cell_anchors):
        anchors, grid = len(np.asarray(cell)), tuple(objectness[index].shape[2:])
        for what, got, channels in (
            ("objectness", objectness[index].shape, anchors),
            ("box predictions", deltas[index].shape, 4 * anchors),
        ):
            if tuple(got) != (1, channels, *grid):
                findings.append(
                    f"stage1 at {size}: {what} of map {index} have shape {tuple(got)}, expected"
                    f" {(1, channels, *grid)} for {anchors} anchors per cell"
                )
    return findings


def _head_findings(config: DetectorConfig, count: int, logits: Any, boxes: Any) -> list[str]:
    if len(logits.shape) != 2 or logits.shape[0] != count or logits.shape[1] < 2:
        return [f"stage2: logits have shape {logits.shape}, expected ({count}, classes)"]
    classes = logits.shape[1]
    groups = {1, classes} if config.background_first else {1, classes, classes - 1}
    if tuple(boxes.shape) not in {(count, 4 * group) for group in groups}:
        sizes = " or ".join(str((count, 4 * group)) for group in sorted(groups))
        return [f"stage2: box predictions have shape {boxes.shape}, expected {sizes}"]
    return []
