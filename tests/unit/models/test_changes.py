"""What follows from a repository that changed."""

from pathlib import Path

import pytest

from hloserve.bundle.fingerprint import Fingerprint
from hloserve.models.changes import Applied, Changes, Sighting, decide, observe, settled
from hloserve.models.repository_look import Found


def _found(name: str, directory: int, version: int = 1) -> Found:
    """A bundle in the directory of that inode, with that content."""
    return Found(Path("/models") / name, Fingerprint((1, directory), (("a", 1, version, 1, 0),)))


def _serving(**directories: int) -> dict[str, Applied]:
    return {name: Applied(_found(name, number), True) for name, number in directories.items()}


def _decide(applied: dict[str, Applied], waiting: set[str] | None = None, **seen: int) -> Changes:
    """Decide when exactly these names and directories are seen; all but `waiting` has settled."""
    found = {name: _found(name, number) for name, number in seen.items()}
    sightings = observe({}, found, applied, now_ns=0)
    ready = set(sightings) - (waiting or set())
    return decide(applied, sightings, ready, ready)


def test_new_bundle_is_loaded_and_a_vanished_one_removed() -> None:
    """Nothing else is touched."""
    changes = _decide(_serving(a=1, b=2), a=1, c=3)

    assert Changes({}, {"c": _found("c", 3)}, ("b",)) == changes


def test_nothing_changed_is_nothing_to_do() -> None:
    """A look that sees what is served leads to nothing."""
    assert Changes() == _decide(_serving(a=1, b=2), a=1, b=2)


def test_content_that_changed_in_place_is_loaded_beside_the_old() -> None:
    """The name is not removed: the old model serves until the new one is ready."""
    applied = _serving(a=1)
    sightings = {"a": Sighting(_found("a", 1, version=2), 0, 2)}

    assert Changes({}, {"a": _found("a", 1, version=2)}) == decide(applied, sightings, {"a"}, {"a"})


def test_renamed_bundle_keeps_its_model() -> None:
    """Staging becomes production and nothing is loaded."""
    changes = _decide(_serving(staging=1), production=1)

    assert Changes({"production": "staging"}, {}, ("staging",)) == changes


def test_chain_of_renames_is_one_step() -> None:
    """Production becomes old and staging becomes production at once, without a load."""
    changes = _decide(_serving(production=1, staging=2), old=1, production=2)

    assert Changes({"old": "production", "production": "staging"}, {}, ("staging",)) == changes


def test_swap_of_two_names_is_one_step() -> None:
    """Two bundles that exchange their names exchange their models."""
    assert Changes({"a": "b", "b": "a"}) == _decide(_serving(a=1, b=2), a=2, b=1)


def test_production_that_vanished_is_replaced_by_the_renamed_one() -> None:
    """After rm production and mv staging production, staging's model serves as production."""
    changes = _decide(_serving(production=1, staging=2), production=2)

    assert Changes({"production": "staging"}, {}, ("staging",)) == changes


def test_redeployment_by_two_renames_never_unloads() -> None:
    """The old model lives on under its new name, and serves as the old one until that is loaded."""
    changes = _decide(_serving(model=1), model=2, retired=1)

    assert Changes({"retired": "model"}, {"model": _found("model", 2)}) == changes


def test_rename_waits_until_its_source_has_settled() -> None:
    """Else the bundle would be loaded under the new name, and then lost under the old one."""
    changes = _decide(_serving(staging=1), waiting={"staging"}, production=1)

    assert Changes() == changes


def test_copy_is_no_rename() -> None:
    """A bundle that is still in its place was not renamed, whoever links to it."""
    changes = _decide(_serving(a=1), a=1, link=1)

    assert Changes({}, {"link": _found("link", 1)}) == changes


def test_one_directory_is_adopted_by_one_name_only() -> None:
    """Two links to a renamed bundle: one takes the model over, the other is loaded."""
    changes = _decide(_serving(a=1), b=1, c=1)

    assert Changes({"b": "a"}, {"c": _found("c", 1)}, ("a",)) == changes


def test_bundle_that_failed_to_load_is_no_source_of_a_rename() -> None:
    """Nothing of it serves, or only what was there before: the new name is tried afresh."""
    applied = {"a": Applied(_found("a", 1), is_loaded=False)}

    assert Changes({}, {"b": _found("b", 1)}, ("a",)) == _decide(applied, b=1)


def test_difference_settles_when_seen_twice_and_quiet_long_enough() -> None:
    """Neither one look nor a short while is enough, and a further change starts the wait again."""
    first = observe({}, {"a": _found("a", 1)}, {}, now_ns=0)
    same = observe(first, {"a": _found("a", 1)}, {}, now_ns=100)
    grown = observe(same, {"a": _found("a", 1, version=2)}, {}, now_ns=200)

    assert set() == settled(first, now_ns=1000, quiet_ns=100)
    assert set() == settled(same, now_ns=100, quiet_ns=101)
    assert {"a"} == settled(same, now_ns=100, quiet_ns=100)
    assert set() == settled(grown, now_ns=300, quiet_ns=100)


@pytest.mark.parametrize("came_back", [1, 2])
def test_bundle_that_vanishes_for_a_moment_is_never_removed(came_back: int) -> None:
    """One look in the middle of a redeployment sees no bundle; that alone leads to nothing."""
    applied = _serving(a=1)
    gone = observe({}, {}, applied, now_ns=0)
    back = observe(gone, {"a": _found("a", came_back)}, applied, now_ns=5)

    assert set() == settled(gone, now_ns=10**12, quiet_ns=0)
    assert set() == settled(back, now_ns=10**12, quiet_ns=0)
    assert ("a" in back) is (came_back == 2)
