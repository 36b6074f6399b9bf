"""Meta models and the models that they call, as they come, change, are renamed and go."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.meta_bundles import write_meta
from support.server_repository import QUIET_S, RepositoryUnderTest, repository_under_test
from support.server_worker import write_scale

from hloserve.core.errors import ModelNotReady
from hloserve.server.catalog import Catalog
from hloserve.server.load_groups import LoadGroups, group_of

RUN = "def run(inputs, call):\n    return call('a', inputs)\n"
ALONE = "def run(inputs, call):\n    return inputs\n"


@pytest.fixture
def under_test(tmp_path: Path) -> Iterator[RepositoryUnderTest]:
    """A repository of the models a and b, and a meta model that calls a."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)
    write_meta(tmp_path, RUN, "m", calls=("a",))
    with repository_under_test(tmp_path) as made:
        told = made.begin()
        assert ["loaded a", "loaded b", "loaded m", "started 3, failed 0"] == sorted(told)
        yield made


def _index(under_test: RepositoryUnderTest, *exposed: str) -> dict[str, tuple[str, str]]:
    """What clients see of the repository."""
    catalog = Catalog(under_test.registry, exposed_models=exposed)
    return {e.name: (e.state.index_text, e.reason) for e in catalog.index()}


def _is_ready(under_test: RepositoryUnderTest, name: str) -> bool:
    return Catalog(under_test.registry).is_model_ready(name, "")


def test_models_that_a_meta_model_calls_are_hidden(under_test: RepositoryUnderTest) -> None:
    """Unless the operator exposes them; they are ready, and known, all the same."""
    assert {"b": ("READY", ""), "m": ("READY", "")} == _index(under_test)
    for exposed in ("a", "*"):
        assert ["a", "b", "m"] == list(_index(under_test, exposed))
    assert _is_ready(under_test, "a")


def test_hidden_model_is_seen_again_without_the_meta_model(
    under_test: RepositoryUnderTest,
) -> None:
    """It serves clients as any other, from then on."""
    shutil.rmtree(under_test.root / "m")

    assert ["removed m"] == under_test.see()

    assert ["a", "b"] == list(_index(under_test))


def test_meta_model_is_ready_when_what_it_calls_is(under_test: RepositoryUnderTest) -> None:
    """The index says what is missing; the log, and whoever watches, is told."""
    shutil.rmtree(under_test.root / "a")

    assert ["removed a", "m lacks a: its directory is gone"] == under_test.see()

    assert not _is_ready(under_test, "m")
    reason = "its sub-model 'a' is not in the repository"
    assert ("UNAVAILABLE", reason) == _index(under_test)["m"]

    write_scale(under_test.root, "a")
    under_test.look()
    under_test.look()
    assert ("LOADING", "its sub-model 'a' is loading") == _index(under_test)["m"]
    assert ["loaded a"] == under_test.settle()
    assert _is_ready(under_test, "m")


def test_broken_sub_model_is_the_reason_of_the_meta_model(tmp_path: Path) -> None:
    """A start that misses a model is told of when it is decided."""
    write_scale(tmp_path, "a")
    (tmp_path / "a" / "weights.safetensors").write_bytes(b"not weights")
    write_meta(tmp_path, RUN, "m", calls=("a",))

    with repository_under_test(tmp_path) as under_test:
        told = under_test.begin()
        assert "m lacks a: it does not serve" in told
        state, reason = _index(under_test)["m"]

    assert "UNAVAILABLE" == state
    assert reason.startswith("its sub-model 'a' does not serve: weights.safetensors")


def test_meta_model_is_reloaded_and_its_counters_go_on(under_test: RepositoryUnderTest) -> None:
    """As any model; and as any, the old one serves until then, and for ever if it fails."""
    old = under_test.registry.get("m")
    old.device.statistics.requests_served = 5
    write_meta(under_test.root, ALONE, "m", calls=(), overwrite=True)

    assert ["reloaded m"] == under_test.see()

    new = under_test.registry.get("m")
    assert ((), 5) == (new.manifest.calls, new.device.statistics.requests_served)
    assert ["a", "b", "m"] == list(_index(under_test))
    (under_test.root / "m" / "model.py").write_text("1 / 0")
    assert ["failed m, old one serves"] == under_test.see()


def test_rename_of_a_sub_model_is_warned_of(tmp_path: Path) -> None:
    """Its old name serves on for a while; then calls fail."""
    write_scale(tmp_path, "a")
    write_meta(tmp_path, RUN, "m", calls=("a",))
    with repository_under_test(tmp_path, gone_s=2.5 * QUIET_S) as under_test:
        under_test.begin()
        (tmp_path / "a").rename(tmp_path / "c")

        assert ["renamed a to c", "m lacks a: it was renamed to 'c'"] == under_test.see()
        assert _is_ready(under_test, "m")
        assert ["removed a", "m lacks a: its directory is gone"] == under_test.see()
        assert not _is_ready(under_test, "m")


def test_renamed_meta_model_stays_what_it_is(under_test: RepositoryUnderTest) -> None:
    """Its function, counters and sub-models are shared with the new name."""
    (under_test.root / "m").rename(under_test.root / "n")

    assert ["renamed m to n"] == under_test.see()
    under_test.see()

    assert {"b": ("READY", ""), "n": ("READY", "")} == _index(under_test)
    assert "n" == under_test.registry.get("n").metadata.name


def test_promotion_of_a_sub_model_needs_no_warning(under_test: RepositoryUnderTest) -> None:
    """The name that the meta model calls is taken by another model in the same step."""
    (under_test.root / "a").rename(under_test.root / "a-old")
    (under_test.root / "b").rename(under_test.root / "a")

    told = under_test.see()

    assert {"renamed a to a-old", "renamed b to a"} == set(told)


@pytest.mark.parametrize("first", ["caller", "called"])
def test_meta_model_that_calls_one_is_refused(tmp_path: Path, first: str) -> None:
    """Whichever comes first; it is tried again when the other one has changed."""
    write_scale(tmp_path, "a")
    names = ("a", "n") if first == "caller" else ("n", "a")
    with repository_under_test(tmp_path) as under_test:
        under_test.begin()
        for name in names:
            if name == "n":
                write_meta(tmp_path, RUN, "n", calls=("a",))
            else:
                shutil.rmtree(tmp_path / "a")
                write_meta(tmp_path, ALONE, "a", calls=())
            under_test.see()
        if first == "caller":  # a was loaded anew below it, and is now what n must not call
            assert under_test.registry.is_serving("a")
        state, reason = under_test.index()["n"]
        assert "UNAVAILABLE" == state
        assert "meta.calls names 'a', which is a meta model itself" in reason
        with pytest.raises(ModelNotReady, match="meta model itself"):
            under_test.registry.get("n")

        shutil.rmtree(tmp_path / "a")
        write_scale(tmp_path, "a")
        told = under_test.see()

        assert {"reloaded a", "loaded n"} == set(told)
        assert under_test.registry.is_serving("n")


def test_meta_model_becomes_a_model_and_back(under_test: RepositoryUnderTest) -> None:
    """A name may change its kind; whoever called it is served or refused accordingly."""
    shutil.rmtree(under_test.root / "m")
    write_scale(under_test.root, "m")
    assert ["reloaded m"] == under_test.see()
    assert ["a", "b", "m"] == list(_index(under_test))
    assert (1, 4, 8) == under_test.registry.get("m").device.sizes(())

    shutil.rmtree(under_test.root / "m")
    write_meta(under_test.root, RUN, "m", calls=("a",))
    assert ["reloaded m"] == under_test.see()
    assert ["b", "m"] == list(_index(under_test))


def test_removed_meta_model_lets_the_refused_one_in(tmp_path: Path) -> None:
    """It is refused no longer: what it calls is just not there."""
    write_meta(tmp_path, ALONE, "a", calls=())
    with repository_under_test(tmp_path) as under_test:
        under_test.begin()
        write_meta(tmp_path, RUN, "n", calls=("a",))
        assert ["failed n"] == under_test.see()

        shutil.rmtree(tmp_path / "a")

        assert {"removed a", "loaded n", "n lacks a: it does not serve"} == set(under_test.see())


@pytest.mark.parametrize(
    ("other_calls", "exposed", "gone"),
    [
        ((), (), {"m", "a", "b"}),
        (("a",), (), {"m", "b"}),
        ((), ("b",), {"m", "a"}),
        ((), ("*",), {"m"}),
    ],
    ids=["both", "another meta model", "exposed", "all exposed"],
)
def test_unloading_takes_along_what_nobody_else_uses(
    tmp_path: Path, other_calls: tuple[str, ...], exposed: tuple[str, ...], gone: set[str]
) -> None:
    """If it is asked to; models that others or clients call stay."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)
    write_meta(tmp_path, RUN, "m", calls=("a", "b"))
    write_meta(tmp_path, RUN, "other", calls=other_calls)

    with repository_under_test(tmp_path, exposed_models=exposed) as under_test:
        under_test.begin()
        under_test.repository.unload("m", with_dependents=True)
        told = under_test.settle()
        serving = {model.name for model in under_test.registry.models()}

    assert {"a", "b", "m", "other"} - gone == serving
    assert {f"removed {name}" for name in gone} == {t for t in told if t.startswith("removed")}


def test_unloading_alone_leaves_the_sub_models(under_test: RepositoryUnderTest) -> None:
    """They are seen again, since nobody hides them any more."""
    under_test.repository.unload("m")

    assert ["removed m"] == under_test.settle()
    assert ["a", "b", "m"] == list(_index(under_test))


def test_group_that_is_deployed_at_once_changes_at_once(under_test: RepositoryUnderTest) -> None:
    """No request sees a new meta model with an old sub-model, or the other way round."""
    old = {name: under_test.registry.get(name) for name in ("a", "b", "m")}
    write_scale(under_test.root, "a", sizes=(1, 2), overwrite=True)
    write_scale(under_test.root, "b", sizes=(1, 2), overwrite=True)
    write_meta(under_test.root, RUN, "m", calls=("a", "b"), overwrite=True)

    under_test.look()
    under_test.look()
    seen = set()
    while under_test.repository.is_loading or under_test.repository.retiring:
        under_test.loop.run_one()
        seen.add(tuple(under_test.registry.get(name) is not old[name] for name in old))

    assert {"reloaded a", "reloaded b", "reloaded m"} == set(under_test.heard.take())
    assert {(True, True, True)} >= seen - {(False, False, False)}


def test_new_version_waits_for_the_model_that_it_needs_first(
    under_test: RepositoryUnderTest,
) -> None:
    """The old one serves until the new sub-model is there."""
    old = under_test.registry.get("m")
    write_meta(under_test.root, RUN, "m", calls=("c",), overwrite=True)
    write_scale(under_test.root, "c")

    under_test.look()
    under_test.look()
    while under_test.repository.is_loading:
        under_test.loop.run_one()
        has_changed = under_test.registry.get("m") is not old
        assert under_test.registry.is_serving("c") or not has_changed

    assert ("c",) == under_test.registry.get("m").manifest.calls


def test_broken_model_of_a_group_keeps_no_other_waiting(under_test: RepositoryUnderTest) -> None:
    """The rest is reloaded when its load has failed."""
    write_scale(under_test.root, "a", sizes=(1, 2), overwrite=True)
    write_meta(under_test.root, RUN, "m", calls=("a", "b"), overwrite=True)
    (under_test.root / "b" / "weights.safetensors").write_bytes(b"not weights")

    told = under_test.see()

    assert {"reloaded a", "reloaded m", "failed b, old one serves"} == set(told)


def test_models_that_do_not_belong_together_do_not_wait(under_test: RepositoryUnderTest) -> None:
    """Whatever is ready first serves first."""
    groups, get = LoadGroups(under_test.registry), under_test.registry.get

    waiting = groups.arrive(get("b"), ["b", "m"])  # nobody knows yet whom the new m calls
    before = waiting.is_settled
    groups.arrive(get("m"), ["a", "b", "m"])
    assert (False, True) == (before, waiting.is_settled)
    assert groups.arrive(get("b"), ["a", "b", "m"]).is_settled


def test_group_is_joined_by_whatever_calls_its_models() -> None:
    """Two meta models that share one are one group; others are not of it."""
    calls = [("m", ["a", "b"]), ("n", ["b"]), ("o", ["c"]), ("p", [])]

    assert {"a", "b", "m", "n"} == group_of("n", calls)
    assert {"c", "o"} == group_of("c", calls)
    assert {"x"} == group_of("x", calls)
