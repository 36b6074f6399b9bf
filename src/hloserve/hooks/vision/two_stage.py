"""The two stages of a detector of the Faster R-CNN family, after their networks have run.

What lives here: from the first network's predictions to proposals, and from the second one's to
detections. What does not: the networks. `hloserve.export.export_two_stage_detector` compiles the
same steps into one program and is tested against these. Pure; any thread. Boxes are corners
``x1, y1, x2, y2`` in pixels, and everything is computed in float64, whatever comes in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hloserve.hooks.vision.boxes import (
    Floats,
    Indices,
    batched_nms,
    clip_boxes,
    decode_boxes,
    read_boxes,
)

__all__ = [
    "Detections",
    "Proposals",
    "deltas_matrix",
    "fast_rcnn_inference",
    "objectness_flat",
    "select_rpn_proposals",
]


class Proposals(NamedTuple):
    """What may be an object, best first.

    Attributes:
        boxes: [m, 4], float64.
        scores: [m], float64: the objectness as it came in.
    """

    boxes: Floats
    scores: Floats


class Detections(NamedTuple):
    """What was found, best first.

    Attributes:
        boxes: [m, 4], float64.
        scores: [m], float64, 0 to 1.
        classes: [m], int64.
    """

    boxes: Floats
    scores: Floats
    classes: Indices

    def rows(self, columns: int = 6) -> npt.NDArray[np.float32]:
        """One row ``x1, y1, x2, y2, score, class`` per detection.

        Args:
            columns: 6, or 5 for rows without the class.

        Shapes:
            result: [m, columns], float32.
        """
        parts = (self.boxes, self.scores[:, None], self.classes[:, None])
        return np.concatenate(parts, axis=1)[:, :columns].astype(np.float32)


def objectness_flat(objectness: npt.ArrayLike) -> Floats:
    """Bring one level's objectness into the order of `generate_anchors`.

    Shapes:
        objectness: [1, a, h, w] or [a, h, w].
        result: [h * w * a], float64.
    """
    return _per_anchor("objectness", objectness, 1).ravel()


def deltas_matrix(deltas: npt.ArrayLike) -> Floats:
    """Bring one level's box predictions into the order of `generate_anchors`.

    Shapes:
        deltas: [1, a * 4, h, w] or [a * 4, h, w].
        result: [h * w * a, 4], float64.
    """
    return _per_anchor("deltas", deltas, 4)


def _per_anchor(name: str, values: npt.ArrayLike, size: int) -> Floats:
    maps = np.asarray(values, np.float64)
    if maps.ndim == 4 and len(maps) == 1:
        maps = maps[0]
    if maps.ndim != 3 or len(maps) % size:
        raise ValueError(f"{name} have shape {maps.shape}, expected (1, anchors * {size}, h, w)")
    _, height, width = maps.shape
    split = maps.reshape(len(maps) // size, size, height, width)
    return split.transpose(2, 3, 0, 1).reshape(-1, size)


def select_rpn_proposals(  # noqa: PLR0913  # keywords with defaults, as torchvision has them
    boxes: Sequence[npt.ArrayLike],
    objectness: Sequence[npt.ArrayLike],
    height: float,
    width: float,
    *,
    pre_nms_top: int = 1000,
    post_nms_top: int = 1000,
    nms_threshold: float = 0.7,
    min_size: float = 1e-3,
    score_threshold: float = 0.0,
) -> Proposals:
    """Choose proposals among the decoded anchors of all levels.

    Per level the best `pre_nms_top`; of these, clipped to the image, those that are large and
    likely enough; suppressed per level; over all levels the best `post_nms_top`.

    Args:
        boxes: per level, the decoded anchors.
        objectness: per level, their logits.
        height: of the image, in pixels.
        width: likewise.
        pre_nms_top: taken per level before suppression.
        post_nms_top: taken over all levels after it.
        nms_threshold: overlap above which a box is suppressed.
        min_size: smaller boxes are dropped, in pixels.
        score_threshold: boxes of a lower probability (the logistic function of the logit) are
            dropped.

    Shapes:
        boxes: [m, 4] each.
        objectness: [m] each, logits.

    Source: ``torchvision.models.detection.rpn.RegionProposalNetwork.filter_proposals``.
    """
    taken: list[Floats] = []
    values: list[Floats] = []
    for corners, logits in zip(boxes, objectness, strict=True):
        logits = np.asarray(logits, np.float64)
        best = np.argsort(-logits, kind="stable")[:pre_nms_top]
        taken.append(clip_boxes(read_boxes("boxes", corners)[best], height, width))
        values.append(logits[best])
    levels = np.repeat(np.arange(len(taken)), [len(level) for level in taken])
    corners, logits = np.concatenate([*taken, np.zeros((0, 4))]), np.concatenate([*values, []])
    with np.errstate(over="ignore"):  # exp of a very negative logit: the probability is 0
        is_likely = 1 / (1 + np.exp(-logits)) >= score_threshold
    left = np.flatnonzero(is_likely & _is_large(corners, min_size))
    kept = left[batched_nms(corners[left], logits[left], levels[left], nms_threshold)]
    kept = kept[:post_nms_top]
    return Proposals(corners[kept], logits[kept])


def fast_rcnn_inference(  # noqa: PLR0913  # keywords with defaults, as torchvision has them
    class_logits: npt.ArrayLike,
    box_deltas: npt.ArrayLike,
    proposals: npt.ArrayLike,
    height: float,
    width: float,
    *,
    score_threshold: float = 0.05,
    nms_threshold: float = 0.5,
    max_detections: int = 100,
    weights: Sequence[float] = (10.0, 10.0, 5.0, 5.0),
    background_first: bool = False,
    min_size: float = 0.0,
) -> Detections:
    """Turn the box head's predictions into detections.

    Args:
        class_logits: per proposal, one per class, background included.
        box_deltas: per proposal, four per class; or four for all classes. With `background_first`
            the background has its four, too; otherwise it may have none.
        proposals: the boxes that the predictions are about.
        height: of the image, in pixels.
        width: likewise.
        score_threshold: only probabilities above it count.
        nms_threshold: overlap above which a box of the same class is suppressed.
        max_detections: best ones to return; below 0, all.
        weights: of `decode_boxes`.
        background_first: the background is class 0, as torchvision has it; otherwise the last
            one, as Detectron2 has it.
        min_size: smaller boxes are dropped, in pixels. torchvision uses 0.01.

    Returns:
        The detections; a class is the number of its column in `class_logits`.

    Shapes:
        class_logits: [m, c].
        box_deltas: [m, 4 * c], [m, 4 * (c - 1)] or [m, 4].
        proposals: [m, 4].

    Source: ``torchvision.models.detection.roi_heads.RoIHeads.postprocess_detections``;
        ``detectron2.modeling.roi_heads.fast_rcnn.fast_rcnn_inference``.
    """
    corners = read_boxes("proposals", proposals)
    logits, deltas = np.asarray(class_logits, np.float64), np.asarray(box_deltas, np.float64)
    if logits.ndim != 2 or len(logits) != len(corners):
        raise ValueError(
            f"class_logits have shape {logits.shape}, expected ({len(corners)}, classes)"
        )
    if deltas.ndim != 2 or len(deltas) != len(corners):
        raise ValueError(
            f"box_deltas have shape {deltas.shape}, expected ({len(corners)}, 4 * classes)"
        )
    foreground = slice(1, None) if background_first else slice(None, -1)
    classes = np.arange(logits.shape[1])[foreground]
    groups = deltas.shape[1] // 4
    expected = logits.shape[1] - (not background_first)
    if groups not in {1, expected, logits.shape[1]}:
        raise ValueError(f"box_deltas hold {groups} boxes per proposal, expected {expected} or 1")
    decoded = clip_boxes(decode_boxes(deltas, corners, weights), height, width)
    decoded = decoded.reshape(len(corners), groups, 4)
    at = np.zeros_like(classes) if groups == 1 else classes
    boxes = decoded[:, at].reshape(-1, 4)
    scores = _softmax(logits)[:, foreground].ravel()
    labels = np.tile(classes, len(corners))
    left = np.flatnonzero((scores > score_threshold) & _is_large(boxes, min_size))
    kept = left[batched_nms(boxes[left], scores[left], labels[left], nms_threshold)]
    if max_detections >= 0:
        kept = kept[:max_detections]
    return Detections(boxes[kept], scores[kept], labels[kept])


def _is_large(boxes: Floats, min_size: float) -> npt.NDArray[np.bool_]:
    large: npt.NDArray[np.bool_] = np.all(boxes[:, 2:] - boxes[:, :2] >= min_size, axis=1)
    return large


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares
