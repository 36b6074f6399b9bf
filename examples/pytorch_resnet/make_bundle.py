"""Make a ResNet-50 and export it.

Usage, in the repository's root::

    python -m examples.pytorch_resnet.make_bundle build/repository/pytorch_resnet build/resnet.pt

The second path gets the weights, for `compare`. The model is traced once, with an open batch axis,
and the program of each batch size is made of that trace.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.pytorch_resnet.resnet import build_model
from hloserve.export import ExportReport, export_pytorch

__all__ = ["BATCH_SIZES", "IMAGE_SIZE", "main", "write_example"]

BATCH_SIZES = (1, 8, 32)
IMAGE_SIZE = 224


def write_example(
    bundle: Path,
    checkpoint: Path,
    *,
    sizes: Sequence[int] = BATCH_SIZES,
    image_size: int = IMAGE_SIZE,
) -> ExportReport:
    """Make the model and export it.

    Args:
        bundle: directory to write; its name is the model's.
        checkpoint: file for the weights.
        sizes: images per execution.
        image_size: height and width of an image.
    """
    model = build_model(image_size)
    weights = model.state_dict()
    torch.save({"weights": weights, "sizes": list(sizes), "image_size": image_size}, checkpoint)
    return export_pytorch(
        model,
        torch.randn(1, 3, image_size, image_size),
        dir=bundle,
        batch_sizes=sizes,
        input_names=["image"],
        output_names=["logits"],
        description="ResNet-50 with random weights: normalised images to logits",
        overwrite=True,
    )


def main() -> None:
    """Parse the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    parser.add_argument("checkpoint", type=Path, help="file for the weights")
    parser.add_argument("--sizes", type=int, nargs="+", default=BATCH_SIZES, metavar="ROWS")
    parser.add_argument("--image-size", type=int, default=IMAGE_SIZE, metavar="PIXELS")
    options = parser.parse_args()
    started = time.perf_counter()
    report = write_example(
        options.bundle, options.checkpoint, sizes=options.sizes, image_size=options.image_size
    )
    print(report)
    print(f"made and exported in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
