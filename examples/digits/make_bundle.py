"""Train the digit classifier and write it as a bundle.

Usage, in the repository's root::

    python -m examples.digits.make_bundle build/digits

It prints the accuracy on the images that training did not see. `--package` writes the bundle and
the samples that the package ships for `hloserve demo`.
"""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from examples.digits.network import CLASSES, Weights, predict
from examples.digits.training import Digits, accuracy, load_split, train
from hloserve.export import export_jax

__all__ = ["BATCH_SIZES", "LEAST_ACCURACY", "main", "write_digits"]

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
LEAST_ACCURACY = 0.98

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent.parent / "src" / "hloserve" / "demo_repository"
_PAGE = _PACKAGE.parent / "server" / "pages" / "demo.html"
_DESCRIPTION = "Handwritten digits, 8x8 pixels of 0 (paper) to 16 (ink), as scikit-learn has them"


def write_digits(bundle: Path, weights: Weights, test_accuracy: float) -> None:
    """Export the network for all batch sizes, prove it, and write the bundle.

    Args:
        bundle: the directory to make; its name is the model's.
        weights: the trained network.
        test_accuracy: recorded in the provenance.
    """
    images = load_split().test_images
    report = export_jax(
        predict,
        {"image": images[:8]},
        weights,
        dir=bundle,
        batch_sizes=BATCH_SIZES,
        output_names=["probabilities", "digit"],
        axis_letters={"image": "hw", "probabilities": "c"},
        description=_DESCRIPTION,
        overwrite=True,
        provenance={
            "script": "examples/digits/make_bundle.py",
            "training_data": "sklearn.datasets.load_digits, first four fifths",
            "test_data": "sklearn.datasets.load_digits, last fifth",
            "test_accuracy": round(test_accuracy, 4),
            "exported_at": None,  # so that the same versions give the same bytes
        },
    )
    print(report)


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("bundle", nargs="?", type=Path, help="directory to write")
    target.add_argument("--package", action="store_true", help="write the package's own demo")
    options = parser.parse_args()
    digits = load_split()
    started = time.perf_counter()
    weights = train(digits)
    test_accuracy = accuracy(weights, digits.test_images, digits.test_labels)
    print(
        f"trained on {len(digits.train_labels)} images in {time.perf_counter() - started:.1f} s;"
        f" {test_accuracy:.2%} of {len(digits.test_labels)} held-out images are right"
    )
    if test_accuracy < LEAST_ACCURACY:
        raise SystemExit(f"that is less than {LEAST_ACCURACY:.0%}: nothing was written")
    bundle = _PACKAGE / "digits" if options.package else options.bundle
    write_digits(bundle, weights, test_accuracy)
    if options.package:
        _write_samples(digits)


def _write_samples(digits: Digits) -> None:
    """Keep the first held-out image of each digit, for the package, its page, and as .npy here."""
    samples: list[dict[str, Any]] = []
    for label in range(CLASSES):
        image = digits.test_images[np.flatnonzero(digits.test_labels == label)[0]]
        np.save(_HERE / "samples" / f"{label}.npy", image[None])
        samples.append({"label": label, "image": image.tolist()})
    lines = ",\n".join(json.dumps(sample, separators=(",", ":")) for sample in samples)
    (_PACKAGE / "samples.json").write_text(f"[\n{lines}\n]\n", "utf-8")
    page = _PAGE.read_text("utf-8")
    inline = json.dumps(samples, separators=(",", ":"))
    _PAGE.write_text(
        re.sub(r"(?m)^const SAMPLES = .*;$", f"const SAMPLES = {inline};", page), "utf-8"
    )


if __name__ == "__main__":
    main()
