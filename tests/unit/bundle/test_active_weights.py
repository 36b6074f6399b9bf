"""Which weights file of a bundle is read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.migration_bundles import WEIGHTS, bits, legacy_weights, write_legacy

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.bundle.active_weights import COPY_FILE, open_bundle_weights
from hloserve.bundle.migration import migrate_bundle
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array

OTHER = {"w": np.ones((2, 3), np.float32)}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A bundle with a migrated copy."""
    bundle = write_legacy(tmp_path / "model")
    assert "migrated" == migrate_bundle(bundle, "copy").outcome
    return bundle


def opened(bundle: Path) -> tuple[str, tuple[str, ...]]:
    """Name of the file that is read, and what is said about it."""
    with open_bundle_weights(bundle, load_manifest(bundle)) as weights:
        return weights.path.name, weights.warnings


def test_copy_is_read_as_long_as_it_speaks_for_its_original(copied: Path) -> None:
    """Without a word."""
    assert (COPY_FILE, ()) == opened(copied)


@pytest.mark.parametrize("weights", [OTHER, {**WEIGHTS, "w": -WEIGHTS["w"]}])
def test_redeployed_original_is_read_instead_of_its_stale_copy(
    copied: Path, weights: dict[str, Array]
) -> None:
    """Of another size, or of the same size and other bytes; a warning says so."""
    (copied / "weights.safetensors").write_bytes(legacy_weights(weights))
    os.utime(copied / "weights.safetensors", ns=(5, 5))

    name, (warning,) = opened(copied)
    assert "weights.safetensors" == name
    assert "stale" in warning
    assert "changed since" in warning
    assert bits(weights) == bits(read_bundle_weights(copied))


def test_touched_original_is_no_other_one(copied: Path) -> None:
    """Its bytes decide, when its time alone is another: a bundle that was copied elsewhere."""
    os.utime(copied / "weights.safetensors", ns=(5, 5))

    assert (COPY_FILE, ()) == opened(copied)


def test_copy_without_an_original_is_read(copied: Path) -> None:
    """There is nothing else, and nothing wrong with it."""
    (copied / "weights.safetensors").unlink()

    assert (COPY_FILE, ()) == opened(copied)


def test_copy_in_its_originals_place_is_not_stale(copied: Path) -> None:
    """Neither as a second name nor as a second file: so a replacement looks halfway."""
    original = copied / "weights.safetensors"
    original.unlink()
    os.link(copied / COPY_FILE, original)
    assert (COPY_FILE, ()) == opened(copied)

    original.unlink()
    shutil.copyfile(copied / COPY_FILE, original)
    assert (COPY_FILE, ()) == opened(copied)


def test_file_without_a_record_is_no_copy(copied: Path) -> None:
    """An author may name a weights file whatever he likes."""
    (copied / COPY_FILE).write_bytes(legacy_weights(OTHER))

    assert (COPY_FILE, ()) == opened(copied)
    assert bits(OTHER) == bits(read_bundle_weights(copied))


def test_broken_copy_is_left_aside(copied: Path) -> None:
    """The original is there, and is what counts."""
    (copied / COPY_FILE).write_bytes(b"rubbish")

    name, (warning,) = opened(copied)
    assert "weights.safetensors" == name
    assert "broken" in warning
    assert bits(WEIGHTS) == bits(read_bundle_weights(copied))


def test_missing_copy_is_an_error(copied: Path) -> None:
    """The manifest names it."""
    (copied / COPY_FILE).unlink()

    with pytest.raises(WeightsProblem, match="missing"):
        opened(copied)


def test_broken_original_beside_a_stale_copy_is_an_error(copied: Path) -> None:
    """What is half written is not replaced by what it replaces."""
    (copied / "weights.safetensors").write_bytes(b"half")

    with pytest.raises(WeightsProblem, match="not a safetensors file"):
        opened(copied)
