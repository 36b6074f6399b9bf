"""`model.py` of the detector whose stages are programs of their own: the steps between, in NumPy.

``detector.json`` beside it has the constants of `hloserve.export.DetectorConfig`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hloserve import register_meta_model
from hloserve.hooks import vision

_CONFIG = json.loads((Path(__file__).parent / "detector.json").read_text())
_STRIDES = _CONFIG["roi_strides"]
_POOLED = _CONFIG["pooled_size"]
_FINEST = round(np.log2(_STRIDES[0]))


def run(inputs: Any, call: Any) -> dict[str, Any]:
    """From an image to rows of box, score and class."""
    image = inputs["INPUT__0"]
    height, width = image.shape[2:]
    first = call("shapes_stage1", {"INPUT__0": image})
    proposals = _choose_proposals(first, height, width)
    if not len(proposals):  # there are no batches of no rows
        return {"OUTPUT__0": np.zeros((0, 6), np.float32)}
    regions = _cut_regions(first, proposals, call)
    second = call("shapes_stage2", {"ROI_FEATS": regions})
    found = vision.fast_rcnn_inference(
        second["cls_logits"],
        second["bbox_deltas"],
        proposals,
        height,
        width,
        score_threshold=_CONFIG["score_threshold"],
        nms_threshold=_CONFIG["nms_threshold"],
        max_detections=_CONFIG["max_detections"],
        weights=_CONFIG["box_weights"],
        background_first=_CONFIG["background_first"],
        min_size=_CONFIG["min_size"],
    )
    return {"OUTPUT__0": found.rows()}


def _choose_proposals(first: Any, height: int, width: int) -> Any:
    """What may be a shape: [m, 4]."""
    boxes, objectness = [], []
    for level, cell in enumerate(_CONFIG["cell_anchors"]):
        deltas = first[f"delta_{level}"]
        rows, columns = deltas.shape[2:]
        anchors = vision.generate_anchors(rows, columns, _CONFIG["anchor_strides"][level], cell)
        codes = vision.deltas_matrix(deltas)
        boxes.append(vision.decode_boxes(codes, anchors, _CONFIG["proposal_weights"]))
        objectness.append(vision.objectness_flat(first[f"obj_{level}"]))
    return vision.select_rpn_proposals(
        boxes,
        objectness,
        height,
        width,
        pre_nms_top=_CONFIG["pre_nms_top"],
        post_nms_top=_CONFIG["post_nms_top"],
        nms_threshold=_CONFIG["proposal_nms_threshold"],
        min_size=_CONFIG["proposal_min_size"],
        score_threshold=_CONFIG["proposal_score_threshold"],
    ).boxes


def _cut_regions(first: Any, proposals: Any, call: Any) -> Any:
    """Each proposal from the feature map that fits its size, in scratch memory."""
    levels = vision.assign_level(
        proposals,
        _CONFIG["canonical_level"],
        _CONFIG["canonical_size"],
        min_level=_FINEST,
        max_level=_FINEST + len(_STRIDES) - 1,
    )
    channels = first["feat_0"].shape[1]
    regions = call.scratch((len(proposals), channels, _POOLED, _POOLED), np.float32)
    for level, stride in enumerate(_STRIDES):
        is_here = levels == level
        regions[is_here] = vision.roi_align(
            first[f"feat_{level}"][0],
            proposals[is_here],
            1 / stride,
            _POOLED,
            _CONFIG["sampling_ratio"],
            _CONFIG["aligned"],
        )
    return regions


register_meta_model(run=run)
