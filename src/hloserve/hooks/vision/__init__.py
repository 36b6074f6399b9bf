"""Images and detection for `model.py`: decoding, boxes, anchors, the stages of Faster R-CNN.

Detection needs NumPy alone. Boxes are corners ``x1, y1, x2, y2`` in pixels; everything is computed
in float64, whatever comes in. Images need Pillow (``pip install 'hloserve[vision]'``), which is
loaded when one of their names is first asked for: a `model.py` that imports one where Pillow is
missing is refused when its bundle is loaded, not at its first request.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from hloserve.hooks.vision.images import Letterbox, decode_image, letterbox, resize

__all__ = [
    "Detections",
    "Letterbox",
    "Proposals",
    "assign_level",
    "batched_nms",
    "cell_anchors",
    "clip_boxes",
    "decode_boxes",
    "decode_image",
    "deltas_matrix",
    "fast_rcnn_inference",
    "generate_anchors",
    "iou",
    "letterbox",
    "nms",
    "objectness_flat",
    "resize",
    "roi_align",
    "select_rpn_proposals",
]

_OF_IMAGES = ("Letterbox", "decode_image", "letterbox", "resize")


def __getattr__(name: str) -> Any:
    if name not in _OF_IMAGES:
        raise AttributeError(f"module 'hloserve.hooks.vision' has no attribute {name!r}")
    from hloserve.hooks.vision import images

    return getattr(images, name)
