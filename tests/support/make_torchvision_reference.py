"""Make tests/data/torchvision_detection.json: what torchvision computes on small inputs.

It needs torchvision, which nothing else here does: run it in an environment of its own,
``pip install torch==2.14.1 torchvision==0.29.1``, as
``python tests/support/make_torchvision_reference.py > tests/data/torchvision_detection.json``.
"""

import json
import re
import sys
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
import torchvision  # type: ignore[import-not-found,unused-ignore]
from torchvision import ops  # type: ignore[import-not-found,unused-ignore]
from torchvision.models import detection  # type: ignore[import-not-found,unused-ignore]
from torchvision.ops.poolers import LevelMapper  # type: ignore[import-not-found,unused-ignore]

HEIGHT, WIDTH = 40, 60


def random_boxes(random: np.random.Generator, count: int) -> list[list[float]]:
    """Boxes that overlap one another often, some beyond the image."""
    corner = random.uniform(-5, 40, (count, 2))
    size = random.uniform(0, 25, (count, 2))
    boxes: list[list[float]] = np.concatenate([corner, corner + size], axis=1).round(2).tolist()
    return boxes


def tensor(values: Any) -> Any:
    """A float32 tensor."""
    return torch.tensor(values, dtype=torch.float32)


def rpn() -> Any:
    """A proposal network without networks: only its selection is used."""
    return detection.rpn.RegionProposalNetwork(
        None, None, 0.7, 0.3, 256, 0.5,
        {"training": 1, "testing": 12}, {"training": 1, "testing": 15}, 0.5, score_thresh=0.3,
    ).eval()  # fmt: skip


def roi_heads() -> Any:
    """A box head without networks: only its selection is used."""
    return detection.roi_heads.RoIHeads(
        None, None, None, 0.5, 0.5, 512, 0.25, None,
        score_thresh=0.1, nms_thresh=0.4, detections_per_img=8,
    ).eval()  # fmt: skip


def roi_cases(random: np.random.Generator) -> dict[str, Any]:
    """One feature map, its boxes, and the regions with every kind of options."""
    features = random.normal(size=(2, 6, 9)).round(2).tolist()
    boxes = [
        [1, 1, 4.5, 5], [0, 0, 9, 6], [-3, -2, 2, 3], [7.2, 4.1, 12, 9], [3, 3, 3.1, 3.2],
        [20, 20, 30, 30],
    ]  # fmt: skip
    cases = []
    for scale, pooled, ratio, aligned in [
        (1.0, 2, 2, False), (1.0, 2, 0, True), (0.5, 3, 0, False), (2.0, 2, 1, True),
    ]:  # fmt: skip
        pooled_to = ops.roi_align(
            tensor([features]), [tensor(boxes)], pooled, scale, ratio, aligned
        )
        cases.append(
            {
                "scale": scale,
                "pooled_size": pooled,
                "sampling_ratio": ratio,
                "aligned": aligned,
                "result": pooled_to.numpy().astype(float).round(5).tolist(),
            }
        )
    return {"features": features, "boxes": boxes, "cases": cases}


def stage_cases(random: np.random.Generator) -> dict[str, Any]:
    """Both selections."""
    levels = [
        {
            "boxes": random_boxes(random, count),
            "objectness": random.normal(size=count).round(3).tolist(),
        }
        for count in (30, 9)
    ]
    boxes = tensor([box for level in levels for box in level["boxes"]])
    scores = tensor([score for level in levels for score in level["objectness"]])
    chosen, _ = rpn().filter_proposals(boxes[None], scores[None], [(HEIGHT, WIDTH)], [30, 9])
    proposals = np.clip(random_boxes(random, 20), 0, 55).round(2).tolist()
    logits = (random.normal(size=(20, 4)) * 2).round(3).tolist()
    deltas = (random.normal(size=(20, 16))).round(3).tolist()
    found, likely, classes = roi_heads().postprocess_detections(
        tensor(logits), tensor(deltas), [tensor(proposals)], [(HEIGHT, WIDTH)]
    )
    return {
        "levels": levels,
        "chosen": chosen[0].numpy().astype(float).round(4).tolist(),
        "proposals": proposals,
        "class_logits": logits,
        "box_deltas": deltas,
        "boxes": found[0].numpy().astype(float).round(4).tolist(),
        "scores": likely[0].numpy().astype(float).round(6).tolist(),
        "classes": classes[0].tolist(),
    }


def main() -> None:
    """Write the reference to the standard output."""
    random = np.random.default_rng(7)
    boxes, others = random_boxes(random, 16), random_boxes(random, 5)
    scores = random.uniform(0, 1, 16).round(3).tolist()
    groups = random.integers(0, 3, 16).tolist()
    deltas = random.normal(size=(16, 8)).round(3).tolist()
    generator = detection.anchor_utils.AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))
    squares = [[0, 0, side, side] for side in (1, 111.9, 112, 223, 224, 447, 448, 2000)]
    strides = [torch.tensor(8), torch.tensor(4)]
    coder = detection._utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    reference = {
        "made_with": f"torch {torch.__version__}, torchvision {torchvision.__version__}",
        "height": HEIGHT,
        "width": WIDTH,
        "boxes": boxes,
        "others": others,
        "scores": scores,
        "groups": groups,
        "deltas": deltas,
        "iou": ops.box_iou(tensor(boxes), tensor(others)).numpy().astype(float).round(6).tolist(),
        "nms": ops.nms(tensor(boxes), tensor(scores), 0.3).tolist(),
        "batched_nms": ops.batched_nms(
            tensor(boxes), tensor(scores), torch.tensor(groups), 0.3
        ).tolist(),
        "decoded": coder.decode_single(tensor(deltas), tensor(boxes))
        .numpy().astype(float).round(4).tolist(),
        "cell_anchors": generator.cell_anchors[0].tolist(),
        "anchors": generator.grid_anchors([(2, 3)], [strides])[0].tolist(),
        "squares": squares,
        "levels": LevelMapper(2, 5)([tensor(squares)]).tolist(),
        "roi_align": roi_cases(random),
        "stages": stage_cases(random),
    }  # fmt: skip
    text = json.dumps(reference, indent=1)
    sys.stdout.write(_join_inner_lists(text) + "\n")


def _join_inner_lists(text: str) -> str:
    """Put each list of numbers on one line."""
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


if __name__ == "__main__":
    main()
