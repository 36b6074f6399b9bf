"""Models that come, change, are renamed and go."""

import gc
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.server_repository import QUIET_S, RepositoryUnderTest, repository_under_test
from support.server_worker import write_scale
from typing_extensions import override

from hloserve.core.errors import (
    DeviceMemoryFull,
    ModelNotFound,
    ModelNotReady,
    NotPossibleNow,
    ShuttingDown,
)
from hloserve.core.tensors import Array
from hloserve.core.tickets import Call, Ticket
from hloserve.engine.backend import Buffer, Executable, Program
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.fake_programs import FakeProgram
from hloserve.models.model import Model


@pytest.fixture
def under_test(tmp_path: Path) -> Iterator[RepositoryUnderTest]:
    """A repository that begins with two models, a and b."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)
    with repository_under_test(tmp_path) as made:
        assert ["loaded a", "loaded b", "started 2, failed 0"] == sorted(made.begin())[0:3]
        yield made


class _Touching(FakeBackend):
    """Touches a file whenever a program is read: between the two looks of a load."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    @override
    def read_program(self, artifact: bytes, source: str) -> FakeProgram:
        os.utime(self._file, ns=(1, 1))
        return super().read_program(artifact, source)


class _SlowCompiler(FakeBackend):
    """Compiles when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    @override
    def compile(self, program: Program, model: str) -> Executable:
        assert self.go.wait(60)
        return super().compile(program, model)


class _Full(FakeBackend):
    """Has no room for weights."""

    @override
    def to_device(self, arrays: Sequence[Array]) -> list[Buffer]:
        raise DeviceMemoryFull(1, 0)


def _programs() -> int:
    return sum(type(each) is FakeProgram for each in gc.get_objects())


def _outcome(ticket: Ticket[None]) -> object:
    got: list[object] = []

    async def wait() -> None:
        await ticket

    Call(wait(), lambda value, error: got.append(error)).step()
    return got[0]


def _change(bundle: Path, *, sizes: tuple[int, ...] = (1, 2)) -> None:
    write_scale(bundle.parent, bundle.name, sizes=sizes, overwrite=True)


def _break(bundle: Path) -> None:
    (bundle / "weights.safetensors").write_bytes(b"not weights")


def _sizes(under_test: RepositoryUnderTest, name: str) -> tuple[int, ...]:
    return under_test.registry.get(name).device.sizes(())


def test_broken_bundle_does_not_stop_the_others_at_start(tmp_path: Path) -> None:
    """It is in the index with its reason, and the start is decided without it."""
    for name in ("a", "b"):
        write_scale(tmp_path, name)
    _break(tmp_path / "a")

    with repository_under_test(tmp_path) as under_test:
        assert {"failed a", "loaded b", "started 1, failed 1"} == set(under_test.begin())
        state, reason = under_test.index()["a"]

    assert "UNAVAILABLE" == state
    assert "weights.safetensors" in reason


def test_empty_repository_is_decided_at_once(tmp_path: Path) -> None:
    """There is nothing to wait for, and what comes later is loaded."""
    with repository_under_test(tmp_path) as under_test:
        assert ["started 0, failed 0"] == under_test.begin()
        write_scale(tmp_path, "late")

        assert ["loaded late"] == under_test.see()


def test_new_bundle_is_loaded_after_two_looks(under_test: RepositoryUnderTest) -> None:
    """The first look asks for another one when the bundle has been left alone long enough."""
    write_scale(under_test.root, "c")

    assert QUIET_S == under_test.look()
    assert [] == under_test.settle()
    under_test.look()

    assert ["loaded c"] == under_test.settle()
    assert under_test.look() is None


def test_changed_bundle_is_reloaded_and_serves_all_the_while(
    under_test: RepositoryUnderTest,
) -> None:
    """The old model is there until the new one takes its place; its counters go on."""
    old = under_test.registry.get("a")
    old.device.statistics.dispatch_count = 5
    _change(under_test.root / "a")

    under_test.look()
    under_test.look()
    assert under_test.registry.get("a") is old
    assert ["reloaded a"] == under_test.settle()

    assert (1, 2) == _sizes(under_test, "a")
    assert 5 == under_test.registry.get("a").device.statistics.dispatch_count
    assert not old.device.weights, "the old model was freed"


def test_broken_reload_leaves_the_old_model_serving(under_test: RepositoryUnderTest) -> None:
    """For as long as it takes; the index has the reason, and a mended bundle is loaded."""
    _break(under_test.root / "a")
    assert ["failed a, old one serves"] == under_test.see()
    assert (1, 4, 8) == _sizes(under_test, "a")
    state, reason = under_test.index()["a"]
    assert ("READY", True) == (state, reason.startswith("reload failed: "))
    assert [] == under_test.see()

    _change(under_test.root / "a")

    assert ["reloaded a"] == under_test.see()
    assert ("READY", "") == under_test.index()["a"]


def test_removed_bundle_is_unloaded(under_test: RepositoryUnderTest) -> None:
    """Nobody finds its name any more."""
    model = under_test.registry.get("a")
    shutil.rmtree(under_test.root / "a")

    assert ["removed a"] == under_test.see()

    with pytest.raises(ModelNotFound):
        under_test.registry.get("a")
    assert not model.device.weights


def test_renamed_bundle_keeps_everything(under_test: RepositoryUnderTest) -> None:
    """Programs, weights and counters: nothing is read, and the old name is gone."""
    before = under_test.registry.get("a")
    (under_test.root / "a").rename(under_test.root / "c")

    assert ["renamed a to c"] == under_test.see()

    after = under_test.registry.get("c")
    assert before.device is after.device
    assert ("c", "c", under_test.root / "c") == (
        after.device.name,
        after.metadata.name,
        after.bundle,
    )
    assert after.device.weights
    with pytest.raises(ModelNotFound):
        under_test.registry.get("a")


def test_swapped_names_swap_their_models(under_test: RepositoryUnderTest) -> None:
    """In one step, without a load."""
    a, b = under_test.registry.get("a").device, under_test.registry.get("b").device
    (under_test.root / "a").rename(under_test.root / ".swap")
    (under_test.root / "b").rename(under_test.root / "a")
    (under_test.root / ".swap").rename(under_test.root / "b")

    assert ["renamed b to a", "renamed a to b"] == under_test.see()

    assert (b, a) == (under_test.registry.get("a").device, under_test.registry.get("b").device)


def test_promotion_chain_compiles_nothing_and_frees_what_it_displaces(
    under_test: RepositoryUnderTest,
) -> None:
    """A is removed and b takes its place: a's model goes, b's serves as a."""
    a, b = under_test.registry.get("a"), under_test.registry.get("b")
    shutil.rmtree(under_test.root / "a")
    (under_test.root / "b").rename(under_test.root / "a")

    assert ["renamed b to a"] == under_test.see()

    assert b.device is under_test.registry.get("a").device
    assert (False, True) == (bool(a.device.weights), bool(b.device.weights))
    assert {"a"} == under_test.index().keys()


def test_redeployment_by_two_renames_serves_the_old_model_until_the_new_is_ready(
    under_test: RepositoryUnderTest,
) -> None:
    """At no instant is the name without a model, though its bundle was renamed away."""
    old = under_test.registry.get("a").device
    write_scale(under_test.root / ".staging", "a", sizes=(1, 2))
    (under_test.root / "a").rename(under_test.root / "retired")
    (under_test.root / ".staging" / "a").rename(under_test.root / "a")

    under_test.look()
    under_test.look()

    assert old is under_test.registry.get("a").device
    assert old is under_test.registry.get("retired").device
    assert ["renamed a to retired", "reloaded a"] == under_test.settle()
    assert (1, 2) == _sizes(under_test, "a")
    assert old.weights, "the old model still serves as retired"


def test_redeployment_whose_new_bundle_is_broken_keeps_the_old_model(
    under_test: RepositoryUnderTest,
) -> None:
    """Under both names; when the retired one is deleted, it serves on under its own."""
    old = under_test.registry.get("a").device
    write_scale(under_test.root / ".staging", "a")
    _break(under_test.root / ".staging" / "a")
    (under_test.root / "a").rename(under_test.root / "retired")
    (under_test.root / ".staging" / "a").rename(under_test.root / "a")
    assert ["renamed a to retired", "failed a, old one serves"] == under_test.see()

    shutil.rmtree(under_test.root / "retired")

    assert ["removed retired"] == under_test.see()
    assert old is under_test.registry.get("a").device
    assert old.weights


def test_bundle_that_vanishes_for_a_moment_is_not_unloaded(under_test: RepositoryUnderTest) -> None:
    """One look saw it missing; the next sees it again."""
    (under_test.root / "a").rename(under_test.root / ".away")
    under_test.look()
    (under_test.root / ".away").rename(under_test.root / "a")

    assert [] == under_test.see()
    assert under_test.registry.is_serving("a")


def test_model_is_freed_only_after_its_last_request(under_test: RepositoryUnderTest) -> None:
    """A request that found the old model is served by it to its end."""
    old: Model = under_test.registry.get("a")
    old.uses.count += 1
    _change(under_test.root / "a")
    under_test.look()
    under_test.look()
    while under_test.repository.is_loading:
        under_test.loop.run_one()
    assert (1, True) == (under_test.repository.retiring, bool(old.device.weights))

    old.uses.end()

    assert ["reloaded a"] == under_test.settle()
    assert not old.device.weights


def test_files_that_change_while_they_are_read_are_read_again(
    under_test: RepositoryUnderTest,
) -> None:
    """What was loaded of a mixture is thrown away, and never serves."""
    write_scale(under_test.root, "c")
    under_test.loader.backend = _Touching(under_test.root / "c" / "manifest.yaml")

    assert [] == under_test.see()

    assert "LOADING" == under_test.index()["c"][0]
    under_test.loader.backend = under_test.backend
    assert ["loaded c"] == under_test.see()


def test_unwatched_bundle_that_changed_while_it_was_read_is_tried_again(tmp_path: Path) -> None:
    """No look will find it, so a pause does."""
    write_scale(tmp_path, "a")
    with repository_under_test(tmp_path, is_watched=False) as under_test:
        under_test.loader.backend = _Touching(tmp_path / "a" / "manifest.yaml")
        assert ["started 0, failed 1"] == under_test.begin()
        under_test.loader.backend = under_test.backend

        assert QUIET_S == under_test.wait()

        assert ["loaded a"] == under_test.settle()


def test_reload_without_room_keeps_the_old_model_and_is_tried_again(tmp_path: Path) -> None:
    """The pauses grow; once there is room, the new one takes over."""
    write_scale(tmp_path, "a")
    with repository_under_test(tmp_path, FakeBackend(limit_bytes=24)) as under_test:
        under_test.begin()
        _change(tmp_path / "a")

        assert ["failed a, old one serves"] == under_test.see()
        assert 5.0 == under_test.wait()
        assert ["failed a, old one serves"] == under_test.settle()
        under_test.backend.limit_bytes = 1000
        assert 15.0 == under_test.wait()

        assert ["reloaded a"] == under_test.settle()


def test_reload_without_room_may_unload_first(tmp_path: Path) -> None:
    """Where the operator prefers the new model to an answer in between."""
    write_scale(tmp_path, "a")
    backend = FakeBackend(limit_bytes=24)
    with repository_under_test(tmp_path, backend, makes_room=True) as under_test:
        under_test.begin()
        held = under_test.registry.get("a")
        held.uses.count += 1
        _change(tmp_path / "a")
        under_test.look()
        under_test.look()
        while under_test.registry.is_serving("a"):
            under_test.loop.run_one()
        with pytest.raises(ModelNotReady, match="no room for two"):
            under_test.registry.get("a")

        held.uses.end()

        assert ["removed a", "loaded a"] == under_test.settle()
        assert (1, 2) == _sizes(under_test, "a")


def test_load_on_request_is_answered_when_the_model_serves(under_test: RepositoryUnderTest) -> None:
    """Whoever asks for the load of one bundle waits for that one."""
    write_scale(under_test.root, "c")

    ticket = under_test.repository.load("c", under_test.seen().bundles["c"])

    assert not ticket.is_settled
    assert ["loaded c"] == under_test.settle()
    assert _outcome(ticket) is None
    again = under_test.repository.load("c", under_test.seen().bundles["c"])
    assert _outcome(again) is None
    assert [] == under_test.settle()


def test_load_on_request_of_a_broken_bundle_says_why(under_test: RepositoryUnderTest) -> None:
    """The caller gets the findings, not a request id."""
    _break(under_test.root / "a")

    ticket = under_test.repository.load("a", under_test.seen().bundles["a"])
    under_test.settle()

    error = _outcome(ticket)
    assert isinstance(error, NotPossibleNow)
    assert "weights.safetensors" in str(error)


def test_load_on_request_of_what_is_not_there_is_not_found(under_test: RepositoryUnderTest) -> None:
    """There is no such bundle."""
    with pytest.raises(ModelNotFound):
        under_test.repository.load("zebra", None)


def test_unload_on_request_answers_what_was_asked_before(under_test: RepositoryUnderTest) -> None:
    """The name is not found at once; the model goes with its last request."""
    model = under_test.registry.get("a")
    model.uses.count += 1

    under_test.repository.unload("a")

    with pytest.raises(ModelNotFound):
        under_test.registry.get("a")
    assert ("UNAVAILABLE", "unloaded") == under_test.index()["a"]
    assert model.device.weights
    model.uses.end()
    assert ["removed a"] == under_test.settle()
    assert not model.device.weights
    with pytest.raises(ModelNotFound):
        under_test.repository.unload("zebra")


def test_unload_of_a_model_that_is_loading_waits_for_the_load(
    under_test: RepositoryUnderTest,
) -> None:
    """Whoever asked for the load is answered, and then the model goes."""
    write_scale(under_test.root, "c")
    ticket = under_test.repository.load("c", under_test.seen().bundles["c"])

    under_test.repository.unload("c")

    assert ["loaded c", "removed c"] == under_test.settle()
    assert _outcome(ticket) is None
    assert ("UNAVAILABLE", "unloaded") == under_test.index()["c"]


def test_end_of_a_load_asks_for_a_look(under_test: RepositoryUnderTest) -> None:
    """What changed meanwhile was not looked at, and must not wait for the next period."""
    asked: list[str] = []
    under_test.repository.look_soon = lambda: asked.append("look")
    write_scale(under_test.root, "c")
    write_scale(under_test.root, "d")
    _break(under_test.root / "d")

    assert {"loaded c", "failed d"} == set(under_test.see())

    assert ["look", "look"] == asked


def test_bundle_that_is_gone_serves_on_for_a_while(tmp_path: Path) -> None:
    """Longer than it takes to redeploy it by two renames, however slow."""
    write_scale(tmp_path, "a")
    with repository_under_test(tmp_path, gone_s=4 * QUIET_S) as under_test:
        under_test.begin()
        (tmp_path / "a").rename(tmp_path / ".away")
        assert 2 * QUIET_S < sum(under_test.look() or 0 for _ in range(3))
        assert [] == under_test.settle()
        assert under_test.registry.is_serving("a")
        under_test.look()

        under_test.look()

        assert ["removed a"] == under_test.settle()


def test_renamed_bundle_serves_under_both_names_for_that_while(tmp_path: Path) -> None:
    """At once under the new one, and under the old one until nobody can be about to redeploy it."""
    write_scale(tmp_path, "a")
    with repository_under_test(tmp_path, gone_s=9 * QUIET_S) as under_test:
        under_test.begin()
        (tmp_path / "a").rename(tmp_path / "b")
        assert ["renamed a to b"] == under_test.see()
        both = {under_test.registry.get(name).device for name in ("a", "b")}
        write_scale(tmp_path, "a", sizes=(1, 2))

        assert ["reloaded a"] == under_test.see()

        assert 1 == len(both)
        assert under_test.registry.get("b").device in both
        assert under_test.registry.get("b").device.weights


def test_reload_with_the_same_programs_compiles_nothing(under_test: RepositoryUnderTest) -> None:
    """A redeployment of new weights has no cache of its own yet; the old model has the programs."""
    compiled = len(under_test.backend.compiled)
    write_scale(under_test.root, "a", overwrite=True, description="new weights")

    assert ["reloaded a"] == under_test.see()

    assert compiled == len(under_test.backend.compiled)
    assert 3 == under_test.registry.get("a").restored_programs


def test_unfollowed_repository_lists_what_is_there(tmp_path: Path) -> None:
    """In mode explicit a new bundle is in the index and not loaded, and one that is gone is not."""
    write_scale(tmp_path, "a")
    with repository_under_test(tmp_path, is_followed=False) as under_test:
        under_test.begin()
        write_scale(tmp_path, "b")
        under_test.look()
        assert {"a": ("READY", ""), "b": ("UNAVAILABLE", "not loaded")} == under_test.index()
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "b")

        under_test.look()

        assert {"a"} == under_test.index().keys(), "what serves is unloaded on request only"


def test_load_that_takes_long_is_told_of(tmp_path: Path) -> None:
    """Again after each doubling, for as long as it lasts, and not while it waits for a thread."""
    for name in ("a", "b", "c"):
        write_scale(tmp_path, name)
    backend = _SlowCompiler()
    with repository_under_test(tmp_path, backend) as under_test:
        under_test.repository.begin(under_test.loader, under_test.seen().bundles)
        while len(under_test.slow_pauses) < 2:  # as many as there are load threads
            under_test.loop.run_one()
        assert {"a", "b"} == set(under_test.heard.loading)
        for seconds in ("30", "60"):
            pauses, under_test.slow_pauses = under_test.slow_pauses, []
            for pause in pauses:
                pause()
            assert {f"slow a {seconds}", f"slow b {seconds}"} == set(under_test.heard.take())
        backend.go.set()
        under_test.settle()
        assert {"a", "b", "c"} == set(under_test.heard.loading)

        for pause in under_test.slow_pauses:
            pause()
        for _ in range(2):
            assert 60 == under_test.wait()

        assert [] == under_test.heard.take()


def test_failed_load_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its error holds its frames, and they its programs: nobody may hold the error."""
    write_scale(tmp_path, "a")
    gc.collect()
    before = _programs()
    gc.disable()  # a server's collector comes seldom
    try:
        with repository_under_test(tmp_path, _Full()) as under_test:
            assert ["failed a", "started 0, failed 1"] == under_test.begin()
            assert _programs() <= before  # what other tests left may go meanwhile
    finally:
        gc.enable()


def test_closed_repository_begins_nothing(under_test: RepositoryUnderTest) -> None:
    """A server that drains neither loads nor unloads."""
    write_scale(under_test.root, "c")
    shutil.rmtree(under_test.root / "a")
    under_test.repository.close()

    assert [] == under_test.see()
    assert under_test.registry.is_serving("a")
    with pytest.raises(ShuttingDown):
        under_test.repository.load("c", under_test.seen().bundles["c"])
