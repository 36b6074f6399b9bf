"""Runs before a model serves, and what they tell."""

import time
from collections.abc import Sequence
from pathlib import Path

from support.models_bundles import write_fake
from typing_extensions import override

from hloserve.engine.backend import Buffer, Executable
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.models.loader import LoadOptions, load_model


class _Slow(FakeBackend):
    """Says of each run that it took longer than it did: by keeping the thread busy until then."""

    def __init__(self, run_ns: int) -> None:
        super().__init__()
        self._run_ns = run_ns

    @override
    def execute(self, executable: Executable, arguments: Sequence[Buffer]) -> Sequence[Buffer]:
        until_ns = time.monotonic_ns() + self._run_ns
        results = super().execute(executable, arguments)
        while time.monotonic_ns() < until_ns:
            pass
        return results


def _load(bundle: Path, backend: FakeBackend, cache: ExecutableCache | None) -> dict[int, float]:
    model = load_model(bundle, backend, LoadOptions(cache=cache))
    costs = dict(model.device.statistics.costs_ns[()])
    model.free()
    return costs


def test_costs_are_measured_once_and_remembered(tmp_path: Path) -> None:
    """A warm start runs each program once, and knows what the cold one learned."""
    bundle = write_fake(tmp_path / "repository")
    cache = ExecutableCache(tmp_path / "cache", 1 << 20)
    cold, warm = FakeBackend(), FakeBackend()

    learned = _load(bundle, cold, cache)

    assert learned == _load(bundle, warm, cache)
    assert len(warm.executed) == len(learned) < len(cold.executed)


def test_dear_programs_are_not_run_by_a_warm_start(tmp_path: Path) -> None:
    """It would take as long as a cold one; their cost is known all the same."""
    bundle = write_fake(tmp_path / "repository")
    cache = ExecutableCache(tmp_path / "cache", 1 << 20)
    learned = _load(bundle, _Slow(110_000_000), cache)
    warm = FakeBackend()

    assert learned == _load(bundle, warm, cache)
    assert not warm.executed


def test_without_a_cache_costs_are_measured_each_time(tmp_path: Path) -> None:
    """And a cost that is not one is measured again."""
    bundle = write_fake(tmp_path / "repository")
    cache = ExecutableCache(tmp_path / "cache", 1 << 20)
    _load(bundle, FakeBackend(), cache)
    for entry in (tmp_path / "cache").glob("cost-*"):
        key = entry.name.removesuffix(".executable")
        cache.write(key, b"not a cost")
    again, without = FakeBackend(), FakeBackend()

    _load(bundle, again, cache)
    _load(bundle, without, None)

    assert len(again.executed) == len(without.executed) > len(set(without.executed))
