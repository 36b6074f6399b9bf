"""Weights that come when they are needed and go for others."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine_models import build_model
from support.engine_residency import UNIT_BYTES, Shelf, numbers, shelf, write_weights

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import (
    DeviceMemoryFull,
    ModelNotFound,
    WeightsNotResident,
    WeightsProblem,
    WeightsUnreadable,
)
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import Floor, ResidencyMode

PATIENCE_S = 20.0


def _in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, name="load-under-test")
    thread.start()
    return thread


def test_first_lease_loads_and_the_second_finds_it_there(tmp_path: Path) -> None:
    """Weights are read once, and stay."""
    with shelf(tmp_path) as under_test:
        a = under_test.admit("a")
        assert set() == under_test.resident

        assert [97.0, 97.0] == [under_test.use(a), under_test.use(a)]

        assert (1, 0, 1) == under_test.figures
        assert under_test.cache.is_resident(a)


def test_one_evicts_another_when_there_is_room_for_one(tmp_path: Path) -> None:
    """The budget holds, and what was evicted is right when it comes back."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")

        assert [97.0, 98.0, 97.0] == [under_test.use(a), under_test.use(b), under_test.use(a)]

        assert (3, 2, 0) == under_test.figures
        assert {"a"} == under_test.resident
        assert UNIT_BYTES == under_test.backend.in_use_bytes


def test_leased_weights_are_not_evicted(tmp_path: Path) -> None:
    """Another model's load takes the place of what nobody uses."""
    with shelf(tmp_path, 2) as under_test:
        a, b, c = (under_test.admit(name) for name in "abc")
        under_test.use(b)
        under_test.cache.lease(a)

        under_test.use(c)

        assert {"a", "c"} == under_test.resident
        assert not under_test.cache.is_held_up
        under_test.cache.release(a)


def test_lease_that_would_wait_for_its_own_thread_is_refused(tmp_path: Path) -> None:
    """Two batches in flight whose weights do not fit together: the second is told at once."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        under_test.cache.lease(a)

        assert not under_test.cache.fits(b)
        with pytest.raises(DeviceMemoryFull):
            under_test.cache.lease(b)

        under_test.cache.release(a)
        assert under_test.cache.fits(b)
        assert 98.0 == under_test.use(b)


def test_lease_waits_for_weights_that_are_being_warmed_up(tmp_path: Path) -> None:
    """A load thread gives its room back by itself, so a dispatch waits for it."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        has_borrowed, may_end = threading.Event(), threading.Event()

        def warm_up() -> None:
            with under_test.cache.borrow(a):
                has_borrowed.set()
                assert may_end.wait(PATIENCE_S)

        loader = _in_thread(warm_up)
        assert has_borrowed.wait(PATIENCE_S)
        leased: list[float] = []
        dispatch = _in_thread(lambda: leased.append(under_test.use(b)))
        while not under_test.cache.is_held_up:
            os.sched_yield()
        assert not leased
        may_end.set()
        dispatch.join(PATIENCE_S)
        loader.join(PATIENCE_S)

        assert [98.0] == leased


def test_weights_larger_than_the_budget_are_loaded_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A budget that is too small makes a worker slow, not useless; it is told once."""
    with shelf(tmp_path, 2) as under_test:
        a, large = under_test.admit("a"), under_test.admit("large", 3)
        under_test.use(a)

        values = [under_test.use(large) for _ in range(3)]

        assert [108.0] * 3 == values
        assert {"large"} == under_test.resident
        assert (2, 1, 2) == under_test.figures
        under_test.use(a)
        assert {"a"} == under_test.resident
        told = [r for r in caplog.records if r.message.startswith("weights_larger_than_budget")]
        assert 1 == len(told)


def test_pinned_weights_are_there_at_once_and_off_the_budget(tmp_path: Path) -> None:
    """What is pinned is loaded with the model, stays, and makes the budget smaller."""
    with shelf(tmp_path, 2) as under_test:
        under_test.admit("p", floor=Floor.DEVICE)
        a, b = under_test.admit("a"), under_test.admit("b")
        for model in (a, b):
            under_test.use(model)

        status = under_test.cache.status()

        assert {"p", "b"} == under_test.resident
        assert (UNIT_BYTES, UNIT_BYTES) == (status.max_bytes, status.pinned_bytes)


def test_pinning_more_than_there_is_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned weights beyond the budget are loaded, with a warning."""
    with shelf(tmp_path, 1) as under_test:
        under_test.admit("p", 2, Floor.DEVICE)

        assert {"p"} == under_test.resident
        assert 0 == under_test.cache.status().max_bytes
        assert any("weight_budget" in r.message for r in caplog.records if r.levelname == "WARNING")


def test_new_pinned_model_evicts_down_to_the_smaller_budget(tmp_path: Path) -> None:
    """The budget is computed again before a model is let in."""
    with shelf(tmp_path, 2) as under_test:
        for name in "ab":
            under_test.use(under_test.admit(name))

        under_test.admit("p", floor=Floor.DEVICE)

        assert {"b", "p"} == under_test.resident
        assert 2 * UNIT_BYTES == under_test.backend.in_use_bytes


def test_discarded_pinned_model_gives_its_budget_back(tmp_path: Path) -> None:
    """When a pinned model is unloaded, the others have more room."""
    with shelf(tmp_path, 2) as under_test:
        pinned = under_test.admit("p", floor=Floor.DEVICE)

        under_test.cache.discard(pinned)
        under_test.cache.discard(pinned)

        assert 2 * UNIT_BYTES == under_test.cache.status().max_bytes
        assert {} == under_test.cache.status().models


def test_budget_that_shrinks_under_a_lease_holds_when_it_is_given_back(tmp_path: Path) -> None:
    """Leased weights stay until they are released, and go then."""
    with shelf(tmp_path, 2) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        for model in (a, b):
            under_test.cache.lease(model)

        under_test.admit("p", floor=Floor.DEVICE)
        assert {"a", "b", "p"} == under_test.resident
        under_test.cache.release(a)

        assert {"b", "p"} == under_test.resident
        under_test.cache.release(b)


def test_host_copy_makes_loads_independent_of_the_file(tmp_path: Path) -> None:
    """With the floor `system`, the file is read once."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a", floor=Floor.SYSTEM), under_test.admit("b")
        (tmp_path / "a.safetensors").write_bytes(b"something else altogether")

        assert [97.0, 98.0, 97.0] == [under_test.use(model) for model in (a, b, a)]


def test_file_that_was_written_is_not_read(tmp_path: Path) -> None:
    """Right weights or an error: what was loaded stays good, another load of it fails."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        under_test.use(a)
        write_weights(tmp_path / "a.safetensors", numbers(1, 2))
        assert 97.0 == under_test.use(a)
        under_test.use(b)

        with pytest.raises(WeightsUnreadable, match="changed after the model was loaded"):
            under_test.cache.lease(a)

        assert set() == under_test.resident - {"b"}


def test_removed_or_replaced_file_still_serves(tmp_path: Path) -> None:
    """A file that is open stays the model's, whatever becomes of its name."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        other = write_weights(tmp_path / "other", numbers(1))
        other.rename(tmp_path / "a.safetensors")
        (tmp_path / "b.safetensors").unlink()

        assert [97.0, 98.0, 97.0] == [under_test.use(model) for model in (a, b, a)]


def test_load_that_fails_leaves_room_as_it_was(tmp_path: Path) -> None:
    """The next model finds the whole budget."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        with (tmp_path / "a.safetensors").open("r+b") as file:
            file.truncate(10)
        with pytest.raises(WeightsUnreadable):
            under_test.cache.lease(a)

        assert 98.0 == under_test.use(b)


def test_model_that_cannot_be_read_is_not_let_in(tmp_path: Path) -> None:
    """A load that fails leaves nothing behind, and the file is closed."""
    with shelf(tmp_path, 1) as under_test:
        path = write_weights(tmp_path / "x.safetensors", numbers(1))
        weights = WeightsFile.open(path)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 4)
        model = build_model(under_test.backend, weights=[])

        with pytest.raises(WeightsProblem):
            under_test.cache.admit(model, weights, Floor.DEVICE)

        assert {} == under_test.cache.status().models
        assert -1 == weights.fd


def test_prefetch_loads_while_another_is_leased(tmp_path: Path) -> None:
    """The next model's weights come while the current batch runs, and its lease is a hit."""
    with shelf(tmp_path, 2) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        under_test.cache.lease(a)

        under_test.cache.prefetch(b)
        under_test.cache.lease(b)

        assert {"a", "b"} == under_test.resident
        assert 2 == under_test.figures[0]
        for model in (a, b):
            under_test.cache.release(model)


def test_model_that_is_discarded_while_it_is_prefetched_leaves_nothing(tmp_path: Path) -> None:
    """The thread that loads it gives everything back."""
    with shelf(tmp_path, 2) as under_test:
        a = under_test.admit("a")
        under_test.backend.transfer_gate.close()
        under_test.cache.prefetch(a)
        under_test.backend.transfer_gate.wait_for_arrivals(1)

        under_test.cache.discard(a)
        under_test.backend.transfer_gate.open()
        under_test.cache.close()

        assert {} == under_test.cache.status().models
        assert 0 == under_test.backend.in_use_bytes


def test_compaction_takes_off_what_is_idle(tmp_path: Path) -> None:
    """Pinned weights stay; the others come back when they are needed, or in the order asked for."""
    with shelf(tmp_path, 3) as under_test:
        under_test.admit("p", floor=Floor.DEVICE)
        a, b = under_test.admit("a"), under_test.admit("b")
        for model in (a, b):
            under_test.use(model)

        assert 1 == under_test.cache.compact([a])
        assert {"p", "a"} == under_test.resident
        assert 0 == under_test.cache.compact([])

        assert {"p"} == under_test.resident
        assert 2 == under_test.cache.status().compactions
        assert 97.0 == under_test.use(a)


def test_compaction_reloads_no_more_than_fits(tmp_path: Path) -> None:
    """Models that are unknown, pinned, there or too many are passed over."""
    with shelf(tmp_path, 2) as under_test:
        pinned = under_test.admit("p", floor=Floor.DEVICE)
        a, b = under_test.admit("a"), under_test.admit("b")
        unknown = build_model(under_test.backend, weights=[])

        assert 1 == under_test.cache.compact([pinned, unknown, a, a, b])

        assert {"p", "a"} == under_test.resident


def test_compaction_comes_by_itself_after_some_loads(tmp_path: Path) -> None:
    """Every second load, idle weights go when the dispatch has ended."""
    with shelf(tmp_path, 3, compaction_interval=2) as under_test:
        a, b, c = (under_test.admit(name) for name in "abc")

        for model in (a, b):
            under_test.use(model)
        assert set() == under_test.resident
        under_test.use(c)

        assert {"c"} == under_test.resident
        assert 1 == under_test.cache.status().compactions


def test_scattered_memory_is_joined_when_a_load_finds_no_room(tmp_path: Path) -> None:
    """A device whose free memory is in pieces is cleared once, and the load tried again."""
    backend = FakeBackend(limit_bytes=5 * UNIT_BYTES, is_contiguous=True)
    limits = MemoryLimits(5 * UNIT_BYTES, wiggle_fraction=0)
    with shelf(tmp_path, None, backend=backend, limits=limits) as under_test:
        models = [under_test.admit(name, floor=Floor.UNPINNED) for name in "abcde"]
        for model in models:
            under_test.use(model)
        for model in (models[0], models[2], models[4]):
            for _ in range(5):
                under_test.use(model)
        large = under_test.admit("x", 2, Floor.UNPINNED)

        assert 120.0 == under_test.use(large)

        assert {"x"} == under_test.resident


def test_device_that_is_full_of_other_things_fails_the_lease(tmp_path: Path) -> None:
    """When clearing helps nothing, the caller hears of it, and the model is as before."""
    backend = FakeBackend(limit_bytes=10 * UNIT_BYTES)
    with shelf(tmp_path, 5, backend=backend) as under_test:
        a = under_test.admit("a")
        backend.limit_bytes = 0

        with pytest.raises(DeviceMemoryFull):
            under_test.cache.lease(a)

        backend.limit_bytes = None
        assert 97.0 == under_test.use(a)


def test_room_is_made_of_everything_that_is_idle(tmp_path: Path) -> None:
    """It tells how many bytes that was, so that nobody tries again for nothing."""
    with shelf(tmp_path, 3) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b", 2)
        under_test.use(b)
        under_test.cache.lease(a)

        assert 2 * UNIT_BYTES == under_test.cache.make_room()
        assert 0 == under_test.cache.make_room()
        under_test.cache.release(a)


def test_scratch_of_warm_up_runs_makes_the_budget_smaller(tmp_path: Path) -> None:
    """What programs take beside weights is measured by the device's peak, and left free."""
    backend = FakeBackend(limit_bytes=100 * UNIT_BYTES)
    limits = MemoryLimits(100 * UNIT_BYTES, wiggle_fraction=0)
    with shelf(tmp_path, None, backend=backend, limits=limits) as under_test:
        a = under_test.admit("a")

        with under_test.cache.borrow(a):
            backend.free(backend.to_device([numbers(0, 30)]))

        status = under_test.cache.status()
        assert (30 * UNIT_BYTES, 70 * UNIT_BYTES) == (status.scratch_bytes, status.max_bytes)
        under_test.cache.discard(a)
        assert 100 * UNIT_BYTES == under_test.cache.status().max_bytes


def test_weights_that_come_during_a_warm_up_are_not_scratch(tmp_path: Path) -> None:
    """Dispatches go on while a model is warmed up; what they load is not its doing."""
    backend = FakeBackend(limit_bytes=100 * UNIT_BYTES)
    limits = MemoryLimits(100 * UNIT_BYTES, wiggle_fraction=0)
    with shelf(tmp_path, None, backend=backend, limits=limits) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b", 20)

        with under_test.cache.borrow(a):
            backend.free(backend.to_device([numbers(0, 5)]))
            under_test.use(b)

        assert 5 * UNIT_BYTES >= under_test.cache.status().scratch_bytes


def test_questions_about_a_model_that_is_gone_are_harmless(tmp_path: Path) -> None:
    """It may be discarded between the choice of what comes next and the question."""
    with shelf(tmp_path) as under_test:
        a = under_test.admit("a")
        under_test.cache.discard(a)

        under_test.cache.prefetch(a)

        assert under_test.cache.is_resident(a)
        assert under_test.cache.fits(a)
        assert under_test.cache.is_servable(a)


def test_only_a_controller_brings_weights_in_external_mode(tmp_path: Path) -> None:
    """A request for a model that is not on the device is refused, and nothing is loaded for it."""
    with shelf(tmp_path, 3, is_external=True) as under_test:
        a = under_test.admit("a")
        under_test.cache.prefetch(a)
        with pytest.raises(WeightsNotResident, match="external"):
            under_test.cache.lease(a)
        with under_test.cache.borrow(a) as buffers:
            assert 1 == len(buffers)
        assert set() == under_test.resident

        under_test.cache.set_floor(a, Floor.DEVICE)
        assert 97.0 == under_test.use(a)
        under_test.cache.set_floor(a, Floor.SYSTEM)

        assert set() == under_test.resident
        found = under_test.cache.status().models[a]
        assert (Floor.SYSTEM, True) == (found.floor, found.is_on_host)
        under_test.cache.set_floor(a, Floor.UNPINNED)
        assert not under_test.cache.status().models[a].is_on_host
        assert ResidencyMode.EXTERNAL is under_test.cache.status().mode
        assert 0 == under_test.cache.compact([a])


def test_unpinned_weights_stay_until_others_need_the_room(tmp_path: Path) -> None:
    """In a worker that manages itself, an unpinned model is as any other."""
    with shelf(tmp_path, 1) as under_test:
        a, b = under_test.admit("a", floor=Floor.DEVICE), under_test.admit("b")

        under_test.cache.set_floor(a, Floor.UNPINNED)
        assert {"a"} == under_test.resident
        under_test.use(b)

        assert {"b"} == under_test.resident


def test_pin_that_finds_no_memory_changes_nothing(tmp_path: Path) -> None:
    """The model keeps the floor that it had."""
    backend = FakeBackend(limit_bytes=10 * UNIT_BYTES)
    with shelf(tmp_path, 5, backend=backend) as under_test:
        a = under_test.admit("a", floor=Floor.UNPINNED)
        backend.limit_bytes = 0

        with pytest.raises(DeviceMemoryFull):
            under_test.cache.set_floor(a, Floor.DEVICE)

        assert Floor.UNPINNED is under_test.cache.status().models[a].floor


def test_new_name_has_the_floor_that_is_set_for_it(tmp_path: Path) -> None:
    """Without one, that of the device; where a controller decides, its floor stays."""
    with shelf(tmp_path) as under_test:
        a = under_test.admit("a", floor=Floor.SYSTEM)

        under_test.cache.renamed(a, Floor.DEVICE)
        assert {"a"} == under_test.resident
        under_test.cache.renamed(a, None)
        assert Floor.UNPINNED is under_test.cache.status().models[a].floor
        under_test.cache.discard(a)
        under_test.cache.renamed(a, Floor.DEVICE)
    with shelf(tmp_path, is_external=True) as under_test:
        a = under_test.admit("a")

        under_test.cache.renamed(a, Floor.DEVICE)

        assert Floor.UNPINNED is under_test.cache.status().models[a].floor


def test_compaction_passes_over_what_cannot_be_loaded_again(tmp_path: Path) -> None:
    """Its next request is told why."""
    with shelf(tmp_path, 2) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")
        os.truncate(tmp_path / "a.safetensors", 8)

        assert 1 == under_test.cache.compact([a, b])

        assert {"b"} == under_test.resident


def test_floor_of_a_model_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    """It may have been unloaded meanwhile."""
    with shelf(tmp_path) as under_test, pytest.raises(ModelNotFound):
        under_test.cache.set_floor(build_model(under_test.backend, weights=[]), Floor.DEVICE)


def test_models_without_weights_cost_nothing(tmp_path: Path) -> None:
    """They are always there, and evict nobody."""
    with shelf(tmp_path, 1) as under_test:
        a, empty = under_test.admit("a"), under_test.admit("empty", 0)
        under_test.use(a)

        assert [] == list(under_test.cache.lease(empty))
        under_test.cache.release(empty)

        assert {"a", "empty"} == under_test.resident
        assert 0 == under_test.figures[1]


def test_awaited_models_go_last(tmp_path: Path) -> None:
    """Weights that requests wait for are evicted after all others."""
    awaited: set[str] = {"a"}
    with shelf(tmp_path, 2, is_awaited=lambda model: model.name in awaited) as under_test:
        a, b, c = (under_test.admit(name) for name in "abc")
        for model in (a, b, b, b):
            under_test.use(model)

        under_test.use(c)

        assert {"a", "c"} == under_test.resident


def test_time_spent_loading_is_counted(tmp_path: Path) -> None:
    """Waiting for weights is reported; finding them there takes none."""
    with shelf(tmp_path, 2) as under_test:
        a = under_test.admit("a")
        under_test.backend.transfer_gate.close()
        dispatch = _in_thread(lambda: under_test.use(a))
        under_test.backend.transfer_gate.wait_for_arrivals(1)
        under_test.clock.advance(seconds=0.5)
        under_test.backend.transfer_gate.open()
        dispatch.join(PATIENCE_S)
        under_test.use(a)

        status = under_test.cache.status()

        assert (500_000_000, UNIT_BYTES) == (status.load_ns, status.loaded_bytes)


def test_second_load_of_the_same_weights_waits_for_the_first(tmp_path: Path) -> None:
    """A dispatch and a warm-up that want one model read it once."""
    with shelf(tmp_path, 2) as under_test:
        a = under_test.admit("a")
        under_test.backend.transfer_gate.close()

        def warm_up() -> None:
            with under_test.cache.borrow(a):
                pass

        threads = [_in_thread(warm_up), _in_thread(lambda: under_test.use(a))]
        under_test.backend.transfer_gate.wait_for_arrivals(1)
        under_test.backend.transfer_gate.open()
        for thread in threads:
            thread.join(PATIENCE_S)

        assert 1 == under_test.figures[0]


def test_closing_gives_copies_back_once(tmp_path: Path) -> None:
    """What is discarded afterwards has none any more; a second time changes nothing."""
    made = Shelf(tmp_path)
    a = made.admit("a", floor=Floor.SYSTEM)
    made.use(a)

    made.cache.close()
    made.cache.close()

    assert not made.cache.status().models[a].is_on_host
    made.cache.discard(a)
    assert 0 == made.backend.in_use_bytes
