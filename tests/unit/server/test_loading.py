"""Loading a bundle as a worker is configured: the migration of its weights."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.migration_bundles import legacy_weights
from support.server_repository import RepositoryUnderTest, repository_under_test
from support.server_worker import write_scale

from hloserve.bundle import read_bundle_weights
from hloserve.bundle.active_weights import COPY_FILE
from hloserve.bundle.migration import Mode, migrate_bundle
from hloserve.bundle.weights import WeightsFile
from hloserve.config import load
from hloserve.models.progress import NoProgress
from hloserve.server.loading import BundleLoader

OTHER_WEIGHTS = legacy_weights({"w": np.full(4, 3, np.float32)})


@pytest.fixture
def under_test(tmp_path: Path) -> Iterator[RepositoryUnderTest]:
    """A repository with a legacy bundle that is not loaded yet."""
    write_scale(tmp_path, "a", layout="legacy")
    with repository_under_test(tmp_path) as made:
        yield made


def begin(under_test: RepositoryUnderTest, mode: str) -> list[str]:
    """Load what is there with a mode of migration."""
    flags = {"model_dirs": [str(under_test.root)], "runtime.weights_migration": mode}
    under_test.loader = BundleLoader(under_test.backend, load(None, {}, flags).config, NoProgress())
    return under_test.begin()


@pytest.mark.parametrize("mode", ["copy", "replace"])
def test_own_migration_is_no_redeployment(under_test: RepositoryUnderTest, mode: str) -> None:
    """The look that found the bundle saw the old files; no look after the load sees a change."""
    assert ["loaded a", "started 1, failed 0"] == begin(under_test, mode)

    assert (mode == "copy") == (under_test.root / "a" / COPY_FILE).exists()
    assert [] == under_test.see()
    assert [] == under_test.see()
    assert under_test.look() is None


@pytest.mark.parametrize("mode", ["copy", "replace"])
def test_migration_by_another_worker_before_the_load_is_no_redeployment(
    under_test: RepositoryUnderTest, mode: Mode
) -> None:
    """Workers take turns; whoever comes second finds the work done."""
    look = under_test.seen().bundles
    migrate_bundle(under_test.root / "a", mode)
    flags = {"model_dirs": [str(under_test.root)], "runtime.weights_migration": mode}
    loader = BundleLoader(under_test.backend, load(None, {}, flags).config, NoProgress())

    under_test.repository.begin(loader, look)

    assert ["loaded a", "started 1, failed 0"] == under_test.settle()
    assert [] == under_test.see()


def test_migration_behind_a_workers_back_is_a_reload(under_test: RepositoryUnderTest) -> None:
    """Its files did change: it takes them up, and serves all the while."""
    begin(under_test, "off")
    migrate_bundle(under_test.root / "a", "replace")

    assert ["reloaded a"] == under_test.see()
    assert [] == under_test.see()


def test_redeployed_weights_are_migrated_again(under_test: RepositoryUnderTest) -> None:
    """One reload, and the copy speaks for the new original."""
    begin(under_test, "copy")
    bundle = under_test.root / "a"
    (bundle / "weights.safetensors").write_bytes(OTHER_WEIGHTS)

    assert ["reloaded a"] == under_test.see()
    assert [] == under_test.see()
    with WeightsFile.open(bundle / COPY_FILE) as copy:
        found = os.stat(bundle / "weights.safetensors")
        assert str(found.st_mtime_ns) == copy.metadata["migrated_from_mtime_ns"]


def test_bundle_that_cannot_be_migrated_loads_as_it_was(
    under_test: RepositoryUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why."""
    manifest = under_test.root / "a" / "manifest.yaml"
    manifest.rename(under_test.root / "manifest.yaml")
    manifest.symlink_to(under_test.root / "manifest.yaml")

    assert ["loaded a", "started 1, failed 0"] == begin(under_test, "copy")

    assert ["weights_not_migrated"] == [
        record.message for record in caplog.records if record.levelname == "WARNING"
    ]
    np.testing.assert_array_equal(
        np.full(4, 2, np.float32), read_bundle_weights(under_test.root / "a")["w"]
    )


def test_stale_copy_is_a_warning_of_the_model(under_test: RepositoryUnderTest) -> None:
    """With migration off the original is read, and whoever asks is told."""
    bundle = under_test.root / "a"
    migrate_bundle(bundle, "copy")
    (bundle / "weights.safetensors").write_bytes(OTHER_WEIGHTS)

    begin(under_test, "off")

    (warning,) = under_test.registry.get("a").warnings
    assert "stale" in warning
