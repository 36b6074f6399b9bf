"""Loads that are not worth waiting for or end badly, and what evictions leave on the host."""

from pathlib import Path

import pytest
from support.engine_models import build_model
from support.engine_residency import UNIT_BYTES, AheadCpu, numbers, shelf, write_weights
from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.core.clock import Clock, ManualClock
from hloserve.core.errors import DeviceMemoryFull
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.host_weights import PrivateStore, WeightsSource
from hloserve.engine.residency.resident_set import Entry, Place, ResidentSet
from hloserve.engine.residency.weight_moves import WeightMoves, Why


class _HastyClock(ManualClock):
    """A clock that moves on whenever somebody looks."""

    @override
    def now_ns(self) -> int:
        self.advance(seconds=100)
        return super().now_ns()


class _Moves:
    """Moves of three models within a budget of `units`."""

    def __init__(self, directory: Path, units: int, clock: Clock | None = None) -> None:
        self.backend = FakeBackend()
        self.set = ResidentSet(MemoryLimits(cap_bytes=units * UNIT_BYTES), lambda _: False)
        self.moves = WeightMoves(self.backend, self.set, clock or ManualClock())
        self.entries = [self._add(directory, name) for name in "abc"]

    def _add(self, directory: Path, name: str) -> Entry:
        model = build_model(self.backend, name=name, weights=[])
        path = write_weights(directory / name, numbers(1))
        source = WeightsSource(name, WeightsFile.open(path), PrivateStore())
        entry = Entry(model, source, Floor.UNPINNED)
        self.set.add(entry)
        return entry

    def close(self) -> None:
        for entry in self.entries:
            entry.source.close()


def test_loading_ahead_gives_up_where_everything_is_leased(tmp_path: Path) -> None:
    """It never takes the place of what is in use, and does not wait for it."""
    made = _Moves(tmp_path, 1)
    a, b, _ = made.entries

    assert made.moves.bring(a, Why.DISPATCH)
    assert not made.moves.bring(b, Why.AHEAD)

    assert (1, Place.ABSENT) == (a.leases, b.place)
    made.close()


def test_loading_ahead_leases_nothing(tmp_path: Path) -> None:
    """What was loaded ahead and is not asked for may go again."""
    made = _Moves(tmp_path, 1)
    a, b, _ = made.entries

    assert made.moves.bring(a, Why.AHEAD)
    assert made.moves.bring(b, Why.AHEAD)

    assert (Place.ABSENT, Place.RESIDENT) == (a.place, b.place)
    assert b.is_idle
    made.close()


def test_warm_up_that_finds_no_room_for_long_is_told(tmp_path: Path) -> None:
    """A load thread does not wait for ever for what dispatches hold."""
    made = _Moves(tmp_path, 1, _HastyClock())
    a, b, _ = made.entries
    made.moves.bring(a, Why.DISPATCH)

    with pytest.raises(DeviceMemoryFull):
        made.moves.bring(b, Why.WARM_UP)

    made.close()


def test_accelerators_keep_a_copy_on_the_host_by_default(tmp_path: Path) -> None:
    """Where the device has memory of its own, a reload need not read the file."""
    backend = FakeBackend(runs_ahead=True, limit_bytes=100 * UNIT_BYTES)
    with shelf(tmp_path, 1, backend=backend) as under_test:
        a = under_test.admit("a")
        b = under_test.admit("b", floor=Floor.UNPINNED)
        assert under_test.cache.status().models[a].is_on_host

        assert [97.0, 98.0, 97.0] == [under_test.use(model) for model in (a, b, a)]

        found = under_test.cache.status().models
        assert (True, False) == (found[a].is_on_host, found[b].is_on_host)


def test_evicted_weights_leave_memory_on_a_cpu_that_runs_ahead(tmp_path: Path) -> None:
    """A copy that stayed would be all that the eviction gives back."""
    with shelf(tmp_path, 1, backend=AheadCpu()) as under_test:
        a, b = under_test.admit("a"), under_test.admit("b")

        assert [97.0, 98.0, 97.0] == [under_test.use(model) for model in (a, b, a)]

        found = under_test.cache.status().models
        assert (Floor.UNPINNED, Floor.UNPINNED) == (found[a].floor, found[b].floor)
        assert (True, False) == (found[a].is_on_host, found[b].is_on_host)
