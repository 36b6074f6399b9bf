"""The digit classifier's script, and what of it the package ships."""

import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import hloserve
from examples.digits import training
from examples.digits.make_bundle import BATCH_SIZES, LEAST_ACCURACY
from examples.digits.network import CLASSES, FULL_INK

_PACKAGE = Path(str(resources.files("hloserve")))
_BUNDLE = _PACKAGE / "demo_repository" / "digits"
_SAMPLES = Path(__file__).parents[3] / "examples" / "digits" / "samples"


@pytest.fixture(scope="module")
def digits() -> training.Digits:
    """The data as the script splits it."""
    return training.load_split()


def test_split_holds_images_out_of_each_class(digits: training.Digits) -> None:
    """Held-out images are a fifth of all, of every class, and none is in the training set twice."""
    assert len(digits.test_labels) == 360
    assert len(digits.train_labels) == 1437
    assert set(digits.test_labels) == set(range(CLASSES))
    seen = {image.tobytes() for image in digits.train_images}
    assert not [image for image in digits.test_images if image.tobytes() in seen]


@pytest.mark.xla
def test_training_is_reproducible(digits: training.Digits) -> None:
    """Two runs end with the same bits."""
    few = training.Digits(
        digits.train_images[:256], digits.train_labels[:256], digits.test_images, digits.test_labels
    )

    first, second = training.train(few, epochs=2), training.train(few, epochs=2)

    for name, weight in first.items():
        np.testing.assert_array_equal(weight, second[name])


@pytest.mark.xla
def test_training_learns(digits: training.Digits) -> None:
    """A few rounds already beat guessing by far."""
    weights = training.train(digits, epochs=6)

    assert training.accuracy(weights, digits.test_images, digits.test_labels) > 0.85


@pytest.mark.xla
def test_shipped_weights_are_as_good_as_the_manifest_says(digits: training.Digits) -> None:
    """The accuracy in the provenance is that of the weights beside it."""
    weights = hloserve.read_bundle_weights(_BUNDLE)
    recorded = hloserve.load_manifest(_BUNDLE).provenance["test_accuracy"]

    measured = training.accuracy(weights, digits.test_images, digits.test_labels)

    assert measured >= LEAST_ACCURACY
    # one image may fall on the other side on a machine that rounds differently
    assert measured == pytest.approx(recorded, abs=1.5 / len(digits.test_labels))


def test_shipped_bundle_is_small_and_holds_every_size() -> None:
    """The demo costs the package little."""
    files = [*(_PACKAGE / "demo_repository").glob("*.*"), *_shipped_files()]

    assert sum(file.stat().st_size for file in files) < 300_000
    assert hloserve.load_manifest(_BUNDLE).compiled_batch_sizes == BATCH_SIZES
    assert {f"model.b{size}.mlir" for size in BATCH_SIZES} <= {file.name for file in files}


def test_shipped_files_name_no_machine() -> None:
    """Neither programs nor manifest hold a path or a source location."""
    for file in _shipped_files():
        content = file.read_bytes().replace(b"examples/digits/make_bundle.py", b"")
        assert not re.search(rb"\.py\b|/home/|/tmp/|site-packages", content), file


def test_samples_are_held_out_images_wherever_they_are_kept(digits: training.Digits) -> None:
    """The package, its page and the example show the same ten images, right labels included."""
    samples = json.loads((_PACKAGE / "demo_repository" / "samples.json").read_text("utf-8"))
    page = (_PACKAGE / "server" / "pages" / "demo.html").read_text("utf-8")
    inline = re.search(r"(?m)^const SAMPLES = (.*);$", page)
    held_out = {
        image.tobytes(): label
        for image, label in zip(digits.test_images, digits.test_labels, strict=True)
    }

    assert inline is not None
    assert json.loads(inline[1]) == samples
    assert [sample["label"] for sample in samples] == list(range(CLASSES))
    for sample in samples:
        image = np.load(_SAMPLES / f"{sample['label']}.npy")
        assert image.dtype == np.uint8
        assert image.tolist() == [sample["image"]]
        assert held_out[image.tobytes()] == sample["label"]
        assert image.max() <= FULL_INK


def _shipped_files() -> list[Path]:
    """The bundle's files, without the programs that a server kept there."""
    return [file for file in _BUNDLE.iterdir() if file.is_file()]
