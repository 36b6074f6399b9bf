"""A two-stage detector as one program finds what plain NumPy finds, through a server, too."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.server_process import ServerProcess, running_server
from support.tiny_detector import (
    CONFIG,
    assert_same_detections,
    make_detector,
    make_image,
    reference_detections,
)

from hloserve import Client
from hloserve.bundle import IOSpec, load_manifest
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.detection.detector import TwoStageDetector, export_two_stage_detector
from hloserve.export.report import ExportReport

pytestmark = pytest.mark.xla

SIZES = [(64, 64), (96, 64)]


def detect(detector: TwoStageDetector, image: Array, program: Any = None) -> Array:
    """The rows that there are; those after them are checked to be zeros."""
    found = (program or jax.jit(detector.detect))(image, detector.weights)
    rows, count = np.asarray(found["DETECTIONS"]), np.asarray(found["NUM_DETECTIONS"])
    assert np.int64 == count.dtype
    assert (1,) == count.shape
    assert not rows[count[0] :].any()
    return rows[: count[0]]


@pytest.mark.parametrize("size", SIZES)
def test_detections_are_those_of_the_reference(size: tuple[int, int]) -> None:
    """As sets, for several networks, images and scales of scores; up to `max_detections`."""
    program = jax.jit(make_detector().detect)  # of any weights
    counts = []
    for seed in range(4):
        for score_scale in (0.5, 2.0, 4.0):
            detector = make_detector(seed, score_scale=score_scale)
            image = make_image(seed, *size)

            got = detect(detector, image, program)

            assert_same_detections(reference_detections(detector, image).rows(), got)
            counts.append(len(got))
    assert CONFIG.max_detections == max(counts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_detections": 400, "score_threshold": 0.3}, range(5, 100)),
        ({"score_threshold": 0.99999}, range(1)),
        ({"max_detections": 1, "post_nms_top": 5}, range(1, 2)),
        ({"proposal_score_threshold": 0.99999, "proposal_min_size": 30.0}, range(1)),
        ({"aligned": True, "sampling_ratio": 1, "max_candidates": 40}, range(20, 21)),
    ],
    ids=["fewer than rows", "none", "one", "no proposals", "other regions"],
)
def test_constants_are_heeded(changes: dict[str, Any], expected: range) -> None:
    """Few, none and one detection; other regions; a cap that is high enough."""
    detector, image = make_detector(2, **changes), make_image(2)

    got = detect(detector, image)

    assert len(got) in expected
    assert_same_detections(reference_detections(detector, image).rows(), got)


def test_images_may_be_floats_and_rows_without_a_class() -> None:
    """Float32 of 0 to 1 is the same image; five columns leave the class out."""
    image = make_image(1)
    wanted = reference_detections(make_detector(1), image).rows(5)

    got = detect(make_detector(1, columns=5), (image / 255).astype(np.float32))

    assert_same_detections(wanted, got)


def test_background_may_be_last_and_boxes_shared() -> None:
    """Detectron2's order of classes, and one box for all of them."""

    def stage2(regions: Any, weights: Any) -> tuple[Any, Any]:
        logits, boxes = tiny.stage2(regions, weights)
        return logits, boxes[:, :4]

    tiny = make_detector(3)
    changed = TwoStageDetector(
        stage1=tiny.stage1,
        stage2=stage2,
        weights=tiny.weights,
        config=make_detector(background_first=False).config,
    )
    image = make_image(3)

    got = detect(changed, image)

    assert_same_detections(reference_detections(changed, image).rows(), got)
    assert {0.0, 1.0, 2.0, 3.0} >= set(got[:, 5])


@pytest.fixture(scope="module")
def detector() -> TwoStageDetector:
    """The detector that is exported and served: of as many detections as there are."""
    return make_detector(2, max_detections=60, score_threshold=0.4)


@pytest.fixture(scope="module")
def exported(
    detector: TwoStageDetector, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ExportReport]:
    """Its bundle, of two image sizes."""
    directory = tmp_path_factory.mktemp("repository") / "tiny"
    images = [make_image(seed, *size) for seed, size in enumerate(SIZES)]
    report = export_two_stage_detector(detector, images, dir=directory, description="Tiny.")
    return directory, report


@pytest.fixture(scope="module")
def server(
    exported: tuple[Path, ExportReport], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of it."""
    with running_server(
        tmp_path_factory.mktemp("server"), "serve", str(exported[0].parent)
    ) as server:
        yield server


def test_bundle_declares_a_variable_number_of_rows(exported: tuple[Path, ExportReport]) -> None:
    """The program has rows and their number; clients get rows alone; both in manifest order."""
    directory, report = exported
    manifest = load_manifest(directory)

    inputs = [(spec.name, spec.shape) for spec in manifest.executable_inputs]
    assert [("INPUT__0", (1, 3, None, 64))] == inputs
    assert manifest.client_outputs is not None
    assert [("OUTPUT__0", (None, 6))] == [(s.name, s.shape) for s in manifest.client_outputs]
    outputs = [(spec.name, spec.shape) for spec in manifest.executable_outputs]
    assert [("DETECTIONS", (60, 6)), ("NUM_DETECTIONS", (1,))] == outputs
    assert 2 == len(report.programs)
    assert () == report.warnings  # each variant was proved on an image of its size
    assert max(path.stat().st_size for path in directory.glob("*.mlir")) < 40_000


@pytest.mark.integration
def test_clients_get_exactly_the_rows_that_there_are(
    detector: TwoStageDetector, server: ServerProcess
) -> None:
    """Through a real server, for several images of each size."""
    counts = set()
    with Client(server.grpc) as client:
        for seed in range(4):
            for size in SIZES:
                image = make_image(10 + seed, *size)

                got = client.infer("tiny", {"INPUT__0": image})["OUTPUT__0"]

                assert_same_detections(reference_detections(detector, image).rows(), got)
                counts.add(len(got))
    assert len(counts) > 2


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Constants, options and images; nothing is written."""
    detector = make_detector(sampling_ratio=0, columns=7, nms_threshold=1.5, roi_strides=(4, 12))

    with pytest.raises(ExportProblem) as caught:
        export_two_stage_detector(
            detector,
            [np.zeros((3, 64, 64), np.int32), make_image(0), make_image(1)],
            dir=tmp_path / "bad",
            batch_sizes=[1, 2],
            client_outputs=[IOSpec("rows", "f32", (-1, 6))],
            output_names=["only one"],
        )

    text = str(caught.value)
    for part in (
        "sampling_ratio: 0 takes as many samples as a region is large",
        "columns: must be 6, or 5 without the class, got 7",
        "nms_threshold: must be from 0 to 1, got 1.5",
        "roi_strides: must be powers of two",
        "images[0]: is int32 of shape (1, 3, 64, 64), expected uint8 or float32",
        "images: two have the same size",
        "batch_sizes: a detector takes one image per call",
        "client_outputs: needs a hook_file that makes them of DETECTIONS and NUM_DETECTIONS",
        "output_names: must be 2 of them",
    ):
        assert part in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"roi_strides": (4, 8, 16, 32)}, "returns 3 feature maps for 4 roi_strides"),
        ({"cell_anchors": CONFIG.cell_anchors[:2]}, "box predictions of 3 maps for 2 cell_anchors"),
        (
            {"cell_anchors": [[[0, 0, 1, 1]], *CONFIG.cell_anchors[1:]]},
            "objectness of map 0 have shape (1, 3, 16, 16), expected (1, 1, 16, 16)",
        ),
        ({"pooled_size": 5}, "stage2 for (50, 8, 5, 5): fails"),
    ],
)  # fmt: skip
def test_networks_that_do_not_fit_are_told_before_tracing(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """The map, the shape it has and the shape that was expected."""
    with pytest.raises(ExportProblem) as caught:
        export_two_stage_detector(make_detector(**changes), make_image(0), dir=tmp_path / "bad")

    assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ((np.zeros((50, 1)), np.zeros((50, 4))), "logits have shape (50, 1), expected (50, class"),
        ((np.zeros((50, 5)), np.zeros((50, 16))), "expected (50, 4) or (50, 20)"),
    ],
)
def test_second_network_that_does_not_fit_is_told(
    result: tuple[Array, Array], text: str, tmp_path: Path
) -> None:
    """Too few classes, or boxes for some of them."""
    tiny = make_detector()
    detector = TwoStageDetector(
        stage1=tiny.stage1, stage2=lambda *_: result, weights=tiny.weights, config=tiny.config
    )

    with pytest.raises(ExportProblem) as caught:
        export_two_stage_detector(detector, make_image(0), dir=tmp_path / "bad")

    assert text in str(caught.value)


def test_own_hook_gets_rows_and_count(tmp_path: Path) -> None:
    """With a hook file nothing is written in its place, and its results are the author's."""
    hook = tmp_path / "hook.py"
    hook.write_text("from hloserve import register_model\nregister_model(postprocess=dict)\n")

    export_two_stage_detector(
        make_detector(max_detections=5),
        make_image(0),
        dir=tmp_path / "own",
        hook_file=hook,
        input_names=["image"],
        output_names=["rows", "count"],
        client_outputs=[IOSpec("best", "f32", (6,))],
    )

    manifest = load_manifest(tmp_path / "own")
    assert hook.read_text() == (tmp_path / "own" / "model.py").read_text()
    assert ["image"] == [spec.name for spec in manifest.executable_inputs]
    assert ["rows", "count"] == [spec.name for spec in manifest.executable_outputs]
    assert manifest.client_outputs is not None
    assert ["best"] == [spec.name for spec in manifest.client_outputs]


def test_importing_it_needs_no_torch() -> None:
    """A detector of JAX functions is exported without PyTorch."""
    program = "import sys, hloserve.export.detection.detector; print('torch' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )

    assert "False" == done.stdout.strip()
