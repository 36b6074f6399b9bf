"""Detection on NumPy for `model.py`: boxes, anchors, regions, the two stages of Faster R-CNN.

It needs NumPy alone. Boxes are corners ``x1, y1, x2, y2`` in pixels; everything is computed in
float64, whatever comes in.
"""

from hloserve.hooks.vision.boxes import batched_nms, clip_boxes, decode_boxes, iou, nms
from hloserve.hooks.vision.regions import assign_level, cell_anchors, generate_anchors, roi_align
from hloserve.hooks.vision.two_stage import (
    Detections,
    Proposals,
    deltas_matrix,
    fast_rcnn_inference,
    objectness_flat,
    select_rpn_proposals,
)

__all__ = [
    "Detections",
    "Proposals",
    "assign_level",
    "batched_nms",
    "cell_anchors",
    "clip_boxes",
    "decode_boxes",
    "deltas_matrix",
    "fast_rcnn_inference",
    "generate_anchors",
    "iou",
    "nms",
    "objectness_flat",
    "roi_align",
    "select_rpn_proposals",
]
