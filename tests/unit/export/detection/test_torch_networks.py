"""A detector of torchvision's layout is exported without torchvision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.tiny_detector import assert_same_detections, make_image, reference_detections
from support.tiny_torch_detector import make_torch_detector

from hloserve.bundle import load_manifest
from hloserve.core.errors import ExportProblem
from hloserve.export.detection.detector import export_two_stage_detector
from hloserve.export.detection.torch_networks import read_torch_detector

pytestmark = pytest.mark.xla


def test_detections_are_those_of_the_reference() -> None:
    """Networks and constants are read off the module; classes count from 1."""
    image = make_image(3)
    detector = read_torch_detector(make_torch_detector(3), image)

    found = jax.jit(detector.detect)(image, detector.weights)

    rows = np.asarray(found["DETECTIONS"])[: int(found["NUM_DETECTIONS"][0])]
    wanted = reference_detections(detector, image).rows()
    assert_same_detections(wanted, rows)
    assert len(set(wanted[:, 4])) == len(wanted) > 10
    assert 0 not in wanted[:, 5]


def test_bundle_is_proved_against_torch_and_keeps_its_names(tmp_path: Path) -> None:
    """The proof runs torch's own networks; weights have the names of the state dict."""
    module = make_torch_detector(3)

    report = export_two_stage_detector(module, make_image(0), dir=tmp_path / "tiny")

    rows = report.programs[0].outputs[0]
    assert rows.signal > 1
    assert 0 < rows.error < 1e-3
    manifest = load_manifest(tmp_path / "tiny")
    assert "pytorch" == manifest.provenance["source_framework"]
    assert "highest" == manifest.provenance["matmul_precision"]
    with safe_open(tmp_path / "tiny" / "weights.safetensors", "np") as weights:
        assert set(weights.keys()) <= set(module.state_dict())
    assert not module.training


def test_constants_can_be_changed() -> None:
    """What is read off the module is a default."""
    detector = read_torch_detector(
        make_torch_detector(), make_image(0), columns=5, max_detections=7
    )

    assert (5, 7) == (detector.config.columns, detector.config.max_detections)
    assert (4.0, 8.0) == tuple(detector.config.roi_strides)
    assert (0.4, 0.4, 0.4) == detector.config.image_mean


def _train(module: Any) -> None:
    module.train()


def _add_masks(module: Any) -> None:
    module.roi_heads.mask_predictor = torch.nn.Identity()


def _lose_the_head(module: Any) -> None:
    del module.rpn.head


def _stretch(module: Any) -> None:
    module.roi_heads.box_roi_pool.output_size = (7, 14)


def _clip_elsewhere(module: Any) -> None:
    module.rpn.box_coder.bbox_xform_clip = 1.0


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_train, "call model.eval() first"),
        (_add_masks, "the model has roi_heads.mask_predictor, whose results a bundle of boxes"),
        (_lose_the_head, "the model has no rpn.head; expected the layout of torchvision's"),
        (_stretch, "output_size is (7, 14), expected a square"),
        (_clip_elsewhere, "rpn.box_coder.bbox_xform_clip is 1.0"),
    ],
)
def test_module_that_would_be_served_wrongly_is_refused(
    spoil: Callable[[Any], None], text: str, tmp_path: Path
) -> None:
    """Named, and nothing is written."""
    module = make_torch_detector()
    spoil(module)

    with pytest.raises(ExportProblem) as caught:
        export_two_stage_detector(module, make_image(0), dir=tmp_path / "bad")

    assert text in str(caught.value)
    assert "export of 'bad'" in str(caught.value)
    assert not list(tmp_path.iterdir())
