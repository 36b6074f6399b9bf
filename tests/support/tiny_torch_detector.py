"""A detector in PyTorch with the layout of torchvision's FasterRCNN, without torchvision."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hloserve.hooks import vision

CHANNELS, CLASSES, POOLED = 8, 5, 4
STRIDES = (4, 8, 16)


class Backbone(nn.Module):
    """Three maps, each half as large as the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, 2, 1)
        self.down = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1) for _ in STRIDES)
        self.norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, image: Any) -> dict[str, Any]:
        x, maps = torch.relu(self.norm(self.stem(image))), {}
        for number, layer in enumerate(self.down):
            x = torch.relu(layer(x))
            maps[str(number)] = x
        return maps


class Head(nn.Module):
    """Objectness and box predictions of each map."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_logits = nn.Conv2d(CHANNELS, 3, 1)
        self.bbox_pred = nn.Conv2d(CHANNELS, 12, 1)

    def forward(self, maps: list[Any]) -> tuple[list[Any], list[Any]]:
        return [self.cls_logits(x) for x in maps], [self.bbox_pred(x) for x in maps]


class Predictor(nn.Module):
    """Logits of the classes and boxes of each."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_score = nn.Linear(32, CLASSES)
        self.bbox_pred = nn.Linear(32, 4 * CLASSES)

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.cls_score(x), self.bbox_pred(x)


def make_torch_detector(seed: int = 0) -> Any:
    """An untrained detector in eval mode, with scores that spread out."""
    torch.manual_seed(seed)
    model = nn.Module()
    model.backbone = Backbone()
    model.rpn, model.roi_heads, model.transform = nn.Module(), nn.Module(), nn.Module()
    model.transform.image_mean, model.transform.image_std = [0.4, 0.4, 0.4], [0.2, 0.2, 0.2]
    rpn, heads = model.rpn, model.roi_heads
    rpn.head = Head()
    cells = [vision.cell_anchors([3.0 * stride], [0.5, 1.0, 2.0]) for stride in STRIDES]
    rpn.anchor_generator = SimpleNamespace(
        cell_anchors=[torch.tensor(cell, dtype=torch.float32) for cell in cells]
    )
    rpn.box_coder = SimpleNamespace(weights=(1.0, 1.0, 1.0, 1.0), bbox_xform_clip=4.135166556742356)
    rpn.nms_thresh, rpn.score_thresh, rpn.min_size = 0.7, 0.0, 1e-3
    rpn._pre_nms_top_n = {"training": 9, "testing": 60}
    rpn._post_nms_top_n = {"training": 9, "testing": 50}
    heads.box_roi_pool = SimpleNamespace(
        featmap_names=["0", "1"], output_size=(POOLED, POOLED), sampling_ratio=2,
        canonical_scale=24, canonical_level=3,
    )  # fmt: skip
    heads.box_head = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * POOLED**2, 32), nn.ReLU())
    heads.box_predictor = Predictor()
    heads.box_coder = SimpleNamespace(weights=(10.0, 10.0, 5.0, 5.0))
    heads.score_thresh, heads.nms_thresh, heads.detections_per_img = 0.05, 0.5, 20
    with torch.no_grad():
        for layer in (*model.backbone.down, heads.box_head[1], rpn.head.cls_logits):
            layer.weight.mul_(3)
        heads.box_predictor.cls_score.weight.mul_(8)
    return model.eval()
