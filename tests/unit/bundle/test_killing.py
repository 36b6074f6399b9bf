"""A process may die at any change that it makes to a bundle: the next one goes on.

Every step that is announced is a place to die; the steps are counted by an undisturbed run.
"""

import shutil
import signal
from pathlib import Path

import pytest
from support.killing import (
    ACTIONS,
    CACHE_LIMIT_BYTES,
    PAYLOADS,
    run_killed,
    steps_of,
    unannounced,
)
from support.migration_bundles import (
    WEIGHTS,
    bits,
    files_of,
    legacy_bundle_files,
    read_as_old_server,
    write_legacy,
)

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.bundle.layout import discover_bundles
from hloserve.bundle.migration import Mode, migrate_bundle
from hloserve.bundle.placing import place_bundle
from hloserve.engine.programs.executable_cache import ExecutableCache

OLD = {name: array.tobytes() for name, array in WEIGHTS.items()}


def killed_everywhere(action: str, template: Path, root: Path) -> list[tuple[str, Path]]:
    """Do it in copies of a directory, killed at each step in turn: the steps and the copies."""
    undisturbed = root / "undisturbed"
    shutil.copytree(template, undisturbed)
    steps = steps_of(action, undisturbed)
    places = [root / f"killed-{number}" for number in range(len(steps))]
    for place in places:
        shutil.copytree(template, place)

    ends = run_killed(action, places)

    assert len(steps) > 3
    assert [signal.SIGKILL] * len(steps) == ends, "a run has other steps than the undisturbed one"
    return list(zip(steps, places, strict=True))


@pytest.mark.parametrize("mode", ["copy", "replace"])
def test_migration_survives_death_at_every_step(tmp_path: Path, mode: Mode) -> None:
    """The bundle loads to the same arrays, old servers never misread it, the next run ends it."""
    write_legacy(tmp_path / "template" / "model")

    for step, place in killed_everywhere(mode, tmp_path / "template", tmp_path):
        bundle = place / "model"
        assert bits(WEIGHTS) == bits(read_bundle_weights(bundle)), step
        seen = read_as_old_server(bundle)
        if mode == "copy":
            assert OLD == seen, step
        else:
            assert seen in (OLD, None), step

        result = migrate_bundle(bundle, mode)

        assert result.outcome in ("migrated", "nothing_to_do"), (step, result)
        assert files_of(tmp_path / "undisturbed" / "model") == files_of(bundle), step
        assert bits(WEIGHTS) == bits(read_bundle_weights(bundle)), step


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_no_change_is_made_unannounced(tmp_path: Path, action: str) -> None:
    """So no place to die is left out here."""
    write_legacy(tmp_path / "model")
    if action == "place new":
        (tmp_path / "model").rename(tmp_path / "other")

    assert [] == unannounced(action, tmp_path)


def test_replacement_that_died_is_finished_by_a_copy_too(tmp_path: Path) -> None:
    """What was begun is ended, whatever the mode is at the next start."""
    write_legacy(tmp_path / "template" / "model")

    for step, place in killed_everywhere("replace", tmp_path / "template", tmp_path):
        bundle = place / "model"

        result = migrate_bundle(bundle, "copy")

        assert result.outcome in ("migrated", "nothing_to_do"), (step, result)
        assert bits(WEIGHTS) == bits(read_bundle_weights(bundle)), step
        assert {"weights.safetensors", "manifest.yaml"} <= files_of(bundle).keys()
        assert migrate_bundle(bundle, "replace").outcome != "failed"
        assert files_of(tmp_path / "undisturbed" / "model") == files_of(bundle), step


def test_new_bundle_is_whole_or_absent(tmp_path: Path) -> None:
    """What a dead writer leaves is no bundle, and is not in the way of the next."""
    (tmp_path / "template").mkdir()

    for step, place in killed_everywhere("place new", tmp_path / "template", tmp_path):
        found = discover_bundles(place)
        if found:
            assert (place / "model",) == found, step
            load_manifest(place / "model")
            assert bits(WEIGHTS) == bits(read_bundle_weights(place / "model")), step
        place_bundle(place / "model", legacy_bundle_files("new"), overwrite=bool(found))
        assert files_of(tmp_path / "undisturbed" / "model") == files_of(place / "model"), step


def test_replaced_bundle_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    """There is no instant without a whole bundle of that name."""
    write_legacy(tmp_path / "template" / "model")
    old = files_of(tmp_path / "template" / "model")

    for step, place in killed_everywhere("place over", tmp_path / "template", tmp_path):
        new = files_of(tmp_path / "undisturbed" / "model")
        assert (place / "model",) == discover_bundles(place), step
        assert files_of(place / "model") in (old, new), step
        place_bundle(place / "model", legacy_bundle_files("new"), overwrite=True)
        assert new == files_of(place / "model"), step


def test_without_exchange_a_death_costs_the_name_at_most(tmp_path: Path) -> None:
    """On a file system that cannot exchange two names both directories are still there."""
    write_legacy(tmp_path / "template" / "model")
    old = files_of(tmp_path / "template" / "model")

    for step, place in killed_everywhere("place over plainly", tmp_path / "template", tmp_path):
        new = files_of(tmp_path / "undisturbed" / "model")
        named = discover_bundles(place)
        if named:
            assert files_of(place / "model") in (old, new), step
        else:
            left = [files_of(path) for path in place.iterdir()]
            assert old in left, step
            assert new in left, step
        place_bundle(place / "model", legacy_bundle_files("new"), overwrite=bool(named))
        assert new == files_of(place / "model"), step


def test_cache_entry_is_whole_or_a_miss(tmp_path: Path) -> None:
    """The next start compiles again at worst, and writes again."""
    template = tmp_path / "template"
    template.mkdir(exist_ok=True)
    ExecutableCache(template / "cache", CACHE_LIMIT_BYTES).write("old", PAYLOADS["old"])

    for step, place in killed_everywhere("write cache", template, tmp_path):
        cache = ExecutableCache(place / "cache", CACHE_LIMIT_BYTES)
        for key, payload in PAYLOADS.items():
            assert cache.read(key) in (payload, None), step

        cache.write("new", PAYLOADS["new"])

        assert PAYLOADS["new"] == cache.read("new"), step
