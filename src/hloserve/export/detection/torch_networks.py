"""Two-stage detectors that are modules of PyTorch, laid out as torchvision's Faster R-CNN.

What lives here: finding the networks and constants in such a module, and making JAX functions of
the networks. What does not: what is done with them (`hloserve.export.detection.detector`).
torchvision is not imported: what counts is what the attributes are called.

Rules.
1. Only the networks are converted: backbone, heads, predictor. What torchvision does between them
   is replaced by `hloserve.export.detection.detector_ops`.
2. Resizing is left out: images come in the size that the networks are to see.

One thread.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.detection.check import read_images
from hloserve.export.detection.config import DetectorConfig
from hloserve.export.detection.detector import TwoStageDetector
from hloserve.export.torch.arrays import array_of, tensor_of, torch
from hloserve.export.torch.program import TorchProgram, quiet_torch, read_program
from hloserve.export.torch.traps import check_module, explain_failure

__all__ = ["read_torch_detector"]

_PLACES = (
    "backbone",
    "rpn.head",
    "rpn.anchor_generator.cell_anchors",
    "rpn.box_coder.weights",
    "rpn.nms_thresh",
    "rpn.score_thresh",
    "rpn.min_size",
    "rpn._pre_nms_top_n",
    "rpn._post_nms_top_n",
    "roi_heads.box_roi_pool.featmap_names",
    "roi_heads.box_roi_pool.output_size",
    "roi_heads.box_roi_pool.sampling_ratio",
    "roi_heads.box_roi_pool.canonical_scale",
    "roi_heads.box_roi_pool.canonical_level",
    "roi_heads.box_head",
    "roi_heads.box_predictor",
    "roi_heads.box_coder.weights",
    "roi_heads.score_thresh",
    "roi_heads.nms_thresh",
    "roi_heads.detections_per_img",
    "transform.image_mean",
    "transform.image_std",
)
_LARGEST_LOG_SCALE = math.log(1000 / 16)


def read_torch_detector(
    module: Any, images: Array | Sequence[Array], *, dir: str | Path = "", **changes: Any
) -> TwoStageDetector:
    """Take a detector of torchvision's layout apart.

    Args:
        module: in eval mode, with the attributes of ``torchvision.models.detection.FasterRCNN``.
        images: as `export_two_stage_detector` takes them: the networks are traced for their sizes.
        dir: of the bundle, for messages.
        **changes: of the `DetectorConfig` that is read off the module.

    Raises:
        ExportProblem: it has another layout, or cannot or must not be exported; all findings.
    """
    model = Path(dir).name or type(module).__name__
    findings: list[str] = []
    examples = read_images(images, findings)
    values = {path: _value_at(module, path) for path in _PLACES}
    findings += [
        f"the model has no {path}; expected the layout of torchvision's FasterRCNN, or a"
        " TwoStageDetector of JAX functions"
        for path, value in values.items()
        if value is None
    ]
    if not findings:
        findings += [*check_module(module), *_layout_findings(module, values)]
    if findings:
        raise ExportProblem(model, findings)
    networks = _Networks(model, _Stage1(module), _Stage2(module))
    features = networks.run_stage1(examples[0] / np.float32(1), {})[0]
    height = examples[0].shape[2]
    names = values["roi_heads.box_roi_pool.featmap_names"]
    strides = [2.0 ** round(math.log2(height / each.shape[2])) for each in features[: len(names)]]
    config = DetectorConfig(**{**_constants(values), "roi_strides": strides, **changes})
    networks.trace(config, examples, channels=features[0].shape[1])
    return TwoStageDetector(
        stage1=networks.stage1,
        stage2=networks.stage2,
        weights=networks.weights,
        config=config,
        reference=(networks.run_stage1, networks.run_stage2),
        framework="pytorch",
        provenance={"torch_version": str(torch.__version__)},
    )


def _value_at(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _constants(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cell_anchors": [array_of(cell) for cell in values["rpn.anchor_generator.cell_anchors"]],
        "proposal_weights": tuple(values["rpn.box_coder.weights"]),
        "pre_nms_top": values["rpn._pre_nms_top_n"]["testing"],
        "post_nms_top": values["rpn._post_nms_top_n"]["testing"],
        "proposal_nms_threshold": values["rpn.nms_thresh"],
        "proposal_min_size": values["rpn.min_size"],
        "proposal_score_threshold": values["rpn.score_thresh"],
        "pooled_size": values["roi_heads.box_roi_pool.output_size"][0],
        "sampling_ratio": values["roi_heads.box_roi_pool.sampling_ratio"],
        "canonical_level": values["roi_heads.box_roi_pool.canonical_level"],
        "canonical_size": float(values["roi_heads.box_roi_pool.canonical_scale"]),
        "box_weights": tuple(values["roi_heads.box_coder.weights"]),
        "score_threshold": values["roi_heads.score_thresh"],
        "nms_threshold": values["roi_heads.nms_thresh"],
        "max_detections": values["roi_heads.detections_per_img"],
        "image_mean": tuple(values["transform.image_mean"]),
        "image_std": tuple(values["transform.image_std"]),
    }


def _layout_findings(module: Any, values: Mapping[str, Any]) -> list[str]:
    """What torchvision's layout can hold that the export would leave out in silence."""
    findings = [
        f"the model has roi_heads.{kind}_predictor, whose results a bundle of boxes leaves out; set"
        f" it and {kind}_roi_pool to None to export the boxes alone"
        for kind in ("mask", "keypoint")
        if getattr(module.roi_heads, f"{kind}_predictor", None) is not None
    ]
    findings += [
        f"{part}.box_coder.bbox_xform_clip is {coder.bbox_xform_clip}, expected log(1000 / 16)"
        for part, coder in (
            ("rpn", module.rpn.box_coder),
            ("roi_heads", module.roi_heads.box_coder),
        )
        if abs(getattr(coder, "bbox_xform_clip", _LARGEST_LOG_SCALE) - _LARGEST_LOG_SCALE) > 1e-6
    ]
    size = values["roi_heads.box_roi_pool.output_size"]
    if len(size) != 2 or size[0] != size[1]:
        findings.append(f"roi_heads.box_roi_pool.output_size is {tuple(size)}, expected a square")
    return findings


class _Stage1(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Backbone and proposal head under the names that they have in the detector."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.training = False  # of this wrapper alone
        self.backbone = detector.backbone
        self.rpn = torch.nn.Module()
        self.rpn.head = detector.rpn.head
        self._names = list(detector.roi_heads.box_roi_pool.featmap_names)

    def forward(self, image: Any) -> tuple[list[Any], list[Any], list[Any]]:
        features = self.backbone(image)
        if isinstance(features, torch.Tensor):
            features = {"0": features}
        objectness, deltas = self.rpn.head(list(features.values()))
        return [features[name] for name in self._names], list(objectness), list(deltas)


class _Stage2(torch.nn.Module):  # type: ignore[misc]  # likewise
    """Box head and predictor, likewise."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.training = False
        self.roi_heads = torch.nn.Module()
        self.roi_heads.box_head = detector.roi_heads.box_head
        self.roi_heads.box_predictor = detector.roi_heads.box_predictor

    def forward(self, regions: Any) -> tuple[Any, Any]:
        logits, deltas = self.roi_heads.box_predictor(self.roi_heads.box_head(regions))
        return logits, deltas


class _Networks:
    """Both networks, as torch runs them and as JAX does.

    Attributes:
        weights: by their names in the detector.
    """

    def __init__(self, model: str, stage1: Any, stage2: Any) -> None:
        self._model, self._modules = model, (stage1, stage2)
        self._stage1: dict[tuple[int, ...], TorchProgram] = {}
        self._stage2: TorchProgram
        self.weights: dict[str, Array] = {}

    def trace(self, config: DetectorConfig, images: Sequence[Array], channels: int) -> None:
        """Trace the first network for each image size, and the second for the most regions."""
        anchors = 0
        for image in images:
            example = torch.zeros(image.shape)
            self._stage1[image.shape] = self._read("stage1", self._modules[0], example)
            _, objectness, _ = self.run_stage1(np.zeros(image.shape, np.float32), {})
            anchors = sum(min(config.pre_nms_top, level.size) for level in objectness)
        count = min(config.post_nms_top, anchors)
        regions = torch.zeros(count, channels, config.pooled_size, config.pooled_size)
        self._stage2 = self._read("stage2", self._modules[1], regions)

    def _read(self, stage: str, module: Any, example: Any) -> TorchProgram:
        try:
            with quiet_torch(), torch.no_grad():
                exported = torch.export.export(module, (example,), strict=False)
        except Exception as error:  # torch and the model's own code raise anything here
            reason = explain_failure(error, symbolic=False)
            raise ExportProblem(self._model, f"{stage}: {reason}") from error
        program = read_program(exported, self._model)
        self.weights |= program.weights
        return program

    def stage1(self, image: Any, weights: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """See `TwoStageDetector`."""
        program = self._stage1[tuple(image.shape)]
        with jax.enable_x64(True):  # torch counts in int64
            flat = program(image, *(weights[name] for name, _ in program.weights))
        levels = (len(flat) - len(self._names)) // 2
        maps = len(self._names)
        return flat[:maps], flat[maps : maps + levels], flat[maps + levels :]

    def stage2(self, regions: Any, weights: Mapping[str, Any]) -> tuple[Any, Any]:
        """See `TwoStageDetector`."""
        with jax.enable_x64(True):
            logits, deltas = self._stage2(
                regions, *(weights[name] for name, _ in self._stage2.weights)
            )
        return logits, deltas

    @property
    def _names(self) -> Sequence[str]:
        names: Sequence[str] = self._modules[0]._names
        return names

    def run_stage1(self, image: Any, weights: Any) -> tuple[Any, Any, Any]:
        """The first network itself; its own weights, whatever is passed."""
        with torch.no_grad():
            found = self._modules[0](tensor_of(image))
        features, objectness, deltas = ([array_of(each) for each in part] for part in found)
        return features, objectness, deltas

    def run_stage2(self, regions: Any, weights: Any) -> tuple[Any, Any]:
        """The second network itself, likewise."""
        with torch.no_grad():
            logits, deltas = self._modules[1](tensor_of(regions))
        return array_of(logits), array_of(deltas)
