"""A two-stage detector as one program: image in, rows of detections out.

What lives here: `TwoStageDetector`, its way from pixels to rows, and the export with its hook. What
does not: the steps themselves (`hloserve.export.detection.detector_ops`) and detectors that are
modules of PyTorch (`hloserve.export.detection.torch_networks`).

Rules.
1. The program returns `max_detections` rows, zeros after the last, and their number. The hook cuts
   them, so that clients get exactly the rows that there are.
2. One image per call: detectors are large, and their results differ in length.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import Unpack, override

from hloserve.bundle.io_spec import IOSpec
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.detection import detector_ops
from hloserve.export.detection.check import option_findings, read_images, stage_findings
from hloserve.export.detection.config import DetectorConfig
from hloserve.export.jax.source import JaxSource
from hloserve.export.options import ExportOptions
from hloserve.export.pipeline import export_source
from hloserve.export.report import ExportReport

__all__ = ["TwoStageDetector", "export_two_stage_detector"]

Stage1: TypeAlias = Callable[[Any, Any], tuple[Sequence[Any], Sequence[Any], Sequence[Any]]]
Stage2: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]

_INPUT, _ROWS, _COUNT, _CLIENT_ROWS = "INPUT__0", "DETECTIONS", "NUM_DETECTIONS", "OUTPUT__0"

_HOOK = '''"""Gives clients the detections that there are; written by hloserve's exporter."""

from hloserve import register_model


def postprocess(outputs):
    count = int(outputs["{count}"][0])
    return {{"{client}": outputs["{rows}"][:count]}}


register_model(postprocess=postprocess)
'''


@dataclass(frozen=True, kw_only=True)
class TwoStageDetector:
    """A detector of the Faster R-CNN family, of two networks that JAX can trace.

    Attributes:
        stage1: ``stage1(image, weights)`` returns feature maps, and per map of anchors the
            objectness and the box predictions, each as a list. The regions are cut from the first
            ``len(config.roi_strides)`` feature maps.
        stage2: ``stage2(regions, weights)`` returns logits of the classes, background included, and
            box predictions.
        weights: a tree of arrays, such as a dict; both networks get all of it.
        config: the constants.
        reference: the networks as their own framework runs them, for the proof; None when they
            are JAX's.
        framework: recorded as provenance.
        provenance: likewise.

    Shapes:
        image: [1, 3, h, w], float32: 0 to 1, or normalised as `config` says.
        feature map: [1, c, h, w].
        objectness: [1, anchors, h, w], logits.
        box predictions of stage1: [1, 4 * anchors, h, w].
        regions: [config.post_nms_top, c, pooled_size, pooled_size]; fewer when there are not as
            many anchors. Regions of absent proposals are those of an empty box.
        logits: [regions, classes].
        box predictions of stage2: [regions, 4 * classes], or [regions, 4] for all classes; four
            less may be left out for a background that is last.
    """

    stage1: Stage1
    stage2: Stage2
    weights: Any
    config: DetectorConfig
    reference: tuple[Stage1, Stage2] | None = None
    framework: str = "jax"
    provenance: Mapping[str, object] = field(default_factory=dict)

    def detect(self, image: Any, weights: Any) -> dict[str, Any]:
        """From pixels to rows; traceable by JAX, and usable without.

        Args:
            image: [1, 3, h, w], uint8 of 0 to 255 or float32 of 0 to 1.
            weights: those of the detector, or others of the same structure.

        Returns:
            ``DETECTIONS``: [max_detections, columns], float32, best first, zeros after the last;
            and ``NUM_DETECTIONS``: [1], int64.
        """
        size = tuple(image.shape[2:])
        pixels = _prepare(image, self.config)
        features, objectness, deltas = self.stage1(pixels, weights)
        proposals, regions = self._propose(features, objectness, deltas, image_size=size)
        logits, boxes = self.stage2(regions, weights)
        rows, count = self._find(proposals, logits, boxes, image_size=size)
        with jax.enable_x64(True):  # the count is int64 whatever else the program has
            counts = count[None].astype(jnp.int64)
        return {_ROWS: rows[:, : self.config.columns], _COUNT: counts}

    # Compiled as a whole, because hundreds of operations by themselves take a second each to start.

    @cached_property
    def _propose(self) -> Any:
        return jax.jit(partial(_propose, self.config), static_argnames="image_size")

    @cached_property
    def _find(self) -> Any:
        return jax.jit(partial(_find, self.config), static_argnames="image_size")


class _DetectorSource(JaxSource):
    """A detector whose networks are proved against their own framework's."""

    def __init__(self, detector: TwoStageDetector, image: Array, options: ExportOptions) -> None:
        super().__init__(
            detector.detect,
            {_INPUT: image},
            detector.weights,
            options,
            framework=detector.framework,
            provenance=detector.provenance,
        )
        self._reference: TwoStageDetector | None = None
        if detector.reference is not None:
            stage1, stage2 = detector.reference
            self._reference = replace(detector, stage1=stage1, stage2=stage2)

    @override
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        if self._reference is None:
            return super().run(inputs)
        found = self._reference.detect(inputs[0], None)
        return [np.asarray(found[name]) for name in (_ROWS, _COUNT)]


def export_two_stage_detector(
    detector: Any, images: Array | Sequence[Array], **options: Unpack[ExportOptions]
) -> ExportReport:
    """Export a two-stage detector as a bundle of one program, with a hook that cuts its result.

    The program's input is ``INPUT__0``, its results are ``DETECTIONS`` and ``NUM_DETECTIONS``. The
    clients' result is ``OUTPUT__0``, of as many rows as there are detections.

    Args:
        detector: a `TwoStageDetector`, or a module of PyTorch with the layout of torchvision's
            FasterRCNN (`hloserve.export.detection.torch_networks`).
        images: one example per image size to compile: [3, h, w] or [1, 3, h, w], uint8 of 0 to 255
            or float32 of 0 to 1. Pictures that show something: the proof moves and mirrors them,
            and needs detections.
        **options: see `ExportOptions`. There are no batch sizes, and `shape_variants` follow from
            the images. With a `hook_file` no hook is written; it gets ``DETECTIONS`` and
            ``NUM_DETECTIONS``, and `client_outputs` are yours to declare.

    Raises:
        ExportProblem: the detector cannot or must not be exported; all findings.
        ProofFailed: the program does not compute what the detector does.
        BundleProblem: the bundle cannot be written.
    """
    model = options.get("name") or Path(options.get("dir", "")).name
    if not isinstance(detector, TwoStageDetector):
        detector = _read_module(model, detector, images)
    findings = [*detector.config.findings(), *option_findings(options)]
    examples = read_images(images, findings)
    if not findings:
        for image in examples:
            findings += stage_findings(
                detector.stage1, detector.stage2, detector.weights, detector.config, image
            )
    if findings:
        raise ExportProblem(model, findings)
    with tempfile.TemporaryDirectory() as scratch:
        complete = _complete(options, detector, examples, Path(scratch))
        return export_source(_DetectorSource(detector, examples[0], complete), complete)


def _read_module(model: str, module: Any, images: Array | Sequence[Array]) -> TwoStageDetector:
    # Imported here, so that detectors of JAX functions need no torch.
    from hloserve.export.detection.torch_networks import read_torch_detector

    return read_torch_detector(module, images, dir=model)


def _prepare(image: Any, config: DetectorConfig) -> Any:
    pixels = jnp.asarray(image).astype(jnp.float32)
    if image.dtype == np.uint8:
        pixels = pixels / np.float32(255)
    if config.image_mean is not None:
        pixels = pixels - np.asarray(config.image_mean, np.float32)[:, None, None]
    if config.image_std is not None:
        pixels = pixels / np.asarray(config.image_std, np.float32)[:, None, None]
    return pixels


def _propose(
    config: DetectorConfig,
    features: Sequence[Any],
    objectness: Sequence[Any],
    deltas: Sequence[Any],
    *,
    image_size: tuple[int, int],
) -> tuple[detector_ops.Boxes, Any]:
    """From the first network's predictions to proposals and their regions."""
    strides = _anchor_strides(config, objectness, image_size)
    levels = [
        detector_ops.Level(*level)
        for level in zip(objectness, deltas, config.cell_anchors, strides, strict=True)
    ]
    proposals = detector_ops.select_proposals(
        levels,
        image_size,
        pre_nms_top=config.pre_nms_top,
        post_nms_top=config.post_nms_top,
        nms_threshold=config.proposal_nms_threshold,
        min_size=config.proposal_min_size,
        score_threshold=config.proposal_score_threshold,
        weights=config.proposal_weights,
    )
    return proposals, _cut_regions(config, features, proposals.corners)


def _anchor_strides(
    config: DetectorConfig, objectness: Sequence[Any], image_size: tuple[int, int]
) -> list[tuple[float, float]]:
    if config.anchor_strides is not None:
        return [(stride, stride) for stride in config.anchor_strides]
    height, width = image_size
    return [(height // level.shape[2], width // level.shape[3]) for level in objectness]


def _cut_regions(config: DetectorConfig, features: Sequence[Any], corners: Any) -> Any:
    strides = config.roi_strides
    levels = detector_ops.assign_levels(
        corners,
        len(strides),
        min_level=round(math.log2(strides[0])),
        canonical_level=config.canonical_level,
        canonical_size=config.canonical_size,
    )
    maps = [
        detector_ops.FeatureMap(each, stride)
        for each, stride in zip(features, strides, strict=False)  # further maps are for anchors
    ]
    return detector_ops.pool_regions(
        maps,
        corners,
        levels,
        pooled_size=config.pooled_size,
        sampling_ratio=config.sampling_ratio,
        aligned=config.aligned,
    )


def _find(
    config: DetectorConfig,
    proposals: detector_ops.Boxes,
    logits: Any,
    deltas: Any,
    *,
    image_size: tuple[int, int],
) -> tuple[Any, Any]:
    """From the second network's predictions to rows and their number."""
    count, classes = logits.shape
    scores = jax.nn.softmax(logits, axis=1)
    boxes = detector_ops.decode(
        deltas.reshape(count, -1, 4), proposals.corners[:, None], config.box_weights
    )
    foreground = slice(1, None) if config.background_first else slice(0, classes - 1)
    scores = scores[:, foreground]
    if boxes.shape[1] > 1:
        boxes = boxes[:, foreground]
    boxes = detector_ops.clip(boxes, image_size)
    is_there = proposals.is_there[:, None] & detector_ops.is_candidate(
        boxes, scores, min_size=config.min_size, score_threshold=config.score_threshold
    )
    rows, found = detector_ops.pick_detections(
        boxes,
        scores,
        is_there,
        nms_threshold=config.nms_threshold,
        max_detections=config.max_detections,
        max_candidates=config.max_candidates or _most_candidates(config, *scores.shape),
    )
    if config.background_first:
        is_row = jnp.arange(config.max_detections, dtype=jnp.int32) < found
        rows = rows.at[:, 5].add(is_row.astype(jnp.float32))
    return rows, found


def _most_candidates(config: DetectorConfig, proposals: int, classes: int) -> int:
    """Probabilities of a proposal add up to 1: so many of them can be above the threshold."""
    if config.score_threshold == 0:
        return proposals * classes
    return proposals * min(classes, int(1 / config.score_threshold) + 1)


def _complete(
    options: ExportOptions, detector: TwoStageDetector, examples: Sequence[Array], scratch: Path
) -> ExportOptions:
    """The options with what follows from a detector."""
    complete = cast(dict[str, Any], dict(options))
    (input_name,) = options.get("input_names") or (_INPUT,)
    rows, count = options.get("output_names") or (_ROWS, _COUNT)
    letters = {input_name: "achw", rows: "mq", count: "a"}
    complete["axis_letters"] = letters | dict(options.get("axis_letters") or {})
    if len(examples) > 1:
        complete["shape_variants"] = [(image,) for image in examples]
    if options.get("hook_file") is None:
        hook = scratch / "model.py"
        hook.write_text(_HOOK.format(count=count, rows=rows, client=_CLIENT_ROWS))
        complete["hook_file"] = hook
        complete["client_outputs"] = [
            IOSpec(_CLIENT_ROWS, "f32", (-1, detector.config.columns), letters="dq")
        ]
    if detector.framework == "pytorch":  # torch multiplies float32 in full, unless told otherwise
        complete.setdefault("matmul_precision", "highest")
    complete.setdefault("sample_inputs", _moved_images(examples))
    return cast(ExportOptions, complete)


def _moved_images(examples: Sequence[Array]) -> Callable[[Any, int], Sequence[Array]]:
    """The examples in turn, moved and mirrored at random: noise shows a detector nothing."""
    in_turn = cycle(examples)

    def sample(generator: Any, rows: int) -> Sequence[Array]:
        image = next(in_turn)
        shifts = tuple(int(generator.integers(extent)) for extent in image.shape[2:])
        moved = np.roll(image, shifts, axis=(2, 3))
        return [moved[..., ::-1] if generator.integers(2) else moved]

    return sample
