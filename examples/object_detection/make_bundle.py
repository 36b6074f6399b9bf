"""Export the detector of shapes in two ways, and write the bundles.

Usage, in the repository's root::

    python -m examples.object_detection.make_bundle build/repository

``shapes`` is one program. ``shapes_stage1`` and ``shapes_stage2`` are its networks, and
``shapes_two_stage`` a meta model that calls them. ``shapes_picture`` takes JPEG and PNG.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from examples.object_detection.network import CHANNELS, CONFIG, SIDE, load_detector, stage1, stage2
from examples.object_detection.shapes import CLASSES, draw_picture
from hloserve import IOSpec, write_meta_bundle
from hloserve.export import DetectorConfig, TwoStageDetector, export_jax, export_two_stage_detector

__all__ = ["REGION_BATCHES", "constants_text", "main", "write_bundles"]

REGION_BATCHES = (8, 32)
"""Regions per execution of the second network; the largest is `post_nms_top`."""

_HOOKS = Path(__file__).with_name("hooks")
_IMAGE = IOSpec("INPUT__0", "u8", (1, 3, SIDE, SIDE), letters="achw")
_ROWS = IOSpec("OUTPUT__0", "f32", (-1, 6), letters="dq")


def write_bundles(repository: Path) -> None:
    """Export, prove and write all five bundles.

    Args:
        repository: the directory to write them into; it is made.
    """
    detector = load_detector()
    picture = draw_picture(np.random.default_rng(1), 5)
    image = picture.pixels.transpose(2, 0, 1)[None]
    print(
        export_two_stage_detector(
            detector,
            image,
            dir=repository / "shapes",
            hook_file=_HOOKS / "shapes.py",
            client_outputs=[_ROWS],
            description="circles, rectangles and triangles: image in, rows out",
            overwrite=True,
        )
    )
    _write_stages(repository, detector, image)
    write_meta_bundle(
        repository / "shapes_two_stage",
        "shapes_two_stage",
        ["shapes_stage1", "shapes_stage2"],
        [_IMAGE],
        [_ROWS],
        (_HOOKS / "two_stage.py").read_text(),
        description="as shapes, but in two programs with NumPy between them",
        files={"detector.json": constants_text(CONFIG)},
        overwrite=True,
    )
    write_meta_bundle(
        repository / "shapes_picture",
        "shapes_picture",
        ["shapes"],
        [IOSpec("picture", "bytes", (1,))],
        [
            IOSpec("detections", "f32", (-1, 6), letters="dq"),
            IOSpec("names", "bytes", (-1,), letters="d"),
        ],
        (_HOOKS / "picture.py").read_text(),
        description="as shapes, but JPEG or PNG of any size in, boxes in its pixels out",
        files={"classes.txt": "\n".join(CLASSES)},
        overwrite=True,
    )


def _write_stages(repository: Path, detector: TwoStageDetector, image: Any) -> None:
    """Each network by itself, with its own part of the weights."""
    of_head = ("head", "classes", "box_deltas")
    is_head = {name: name.removesuffix("_bias") in of_head for name in detector.weights}
    parts = [
        {name: value for name, value in detector.weights.items() if is_head[name] == second}
        for second in (False, True)
    ]
    levels = range(len(CONFIG.cell_anchors))
    print(
        export_jax(
            lambda pixels, weights: stage1(pixels.astype(np.float32) / 255, weights),
            {"INPUT__0": image},
            parts[0],
            dir=repository / "shapes_stage1",
            output_names=[
                f"{kind}_{level}" for kind in ("feat", "obj", "delta") for level in levels
            ],
            axis_letters={"INPUT__0": "achw"},
            overwrite=True,
        )
    )
    shape = (REGION_BATCHES[-1], CHANNELS, CONFIG.pooled_size, CONFIG.pooled_size)
    regions = np.random.default_rng(2).normal(size=shape)
    print(
        export_jax(
            stage2,
            {"ROI_FEATS": regions.astype(np.float32)},
            parts[1],
            dir=repository / "shapes_stage2",
            batch_sizes=REGION_BATCHES,  # a region is a row; those of several requests merge
            output_names=["cls_logits", "bbox_deltas"],
            overwrite=True,
        )
    )


def constants_text(config: DetectorConfig) -> str:
    """The constants of a detector as the JSON that `hooks/two_stage.py` reads."""
    return json.dumps(asdict(config), default=lambda array: np.asarray(array).tolist())


def main() -> None:
    """Parse the arguments and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path, help="directory to write the bundles into")
    write_bundles(parser.parse_args().repository)


if __name__ == "__main__":
    main()
