"""Dispatches, warm-ups, prefetching, pins and unloads at once, over weights that do not fit."""

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine_residency import UNIT_BYTES, Shelf, shelf

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.floors import Floor

pytestmark = pytest.mark.stress

SECONDS = float(os.environ.get("STRESS_S", "2"))
UNITS = 4
PATIENCE_S = 30.0


class _Traffic:
    """Threads that use a shelf until time is up; what any of them raised."""

    def __init__(self, under_test: Shelf) -> None:
        self.under_test = under_test
        self.errors: list[BaseException] = []
        self.dispatched = 0
        self._end = time.monotonic() + SECONDS

    def run(self, *parts: Callable[[random.Random], None]) -> None:
        threads = [
            threading.Thread(target=self._repeat, args=(part, seed), name=f"load-{seed}")
            for seed, part in enumerate(parts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + PATIENCE_S)
            assert not thread.is_alive(), "threads wait for each other"

    def _repeat(self, part: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            while time.monotonic() < self._end and not self.errors:
                part(rng)
        except BaseException as error:  # noqa: BLE001  # told by the test's thread
            self.errors.append(error)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_nobody_waits_for_ever_and_weights_are_right(tmp_path: Path, runs_ahead: bool) -> None:
    """Whatever happens at once, who leases weights has those of the model."""
    backend = FakeBackend(runs_ahead=runs_ahead, limit_bytes=1 << 30)
    with shelf(tmp_path, UNITS, backend=backend) as under_test:
        cache = under_test.cache
        steady = [under_test.admit(name, 1 + number % 3) for number, name in enumerate("abcdefgh")]
        traffic = _Traffic(under_test)
        numbers = iter(range(10**9))

        def dispatch(rng: random.Random) -> None:
            model, following = rng.choices(steady, k=2)
            buffers = cache.lease(model)
            cache.prefetch(following)
            (array,) = backend.to_host(buffers)
            assert ord(model.name[0]) == array[0, 0]
            cache.release(model)
            if cache.fits(following):
                cache.lease(following)
                cache.release(following)
            if rng.random() < 0.05:
                cache.set_floor(rng.choice(steady), rng.choice(list(Floor)))
            if rng.random() < 0.02:
                cache.compact(rng.sample(steady, 3))
            traffic.dispatched += 1

        def load(rng: random.Random) -> None:
            model: DeviceModel = under_test.admit(f"z{next(numbers)}", rng.randint(1, 3))
            with cache.borrow(model) as buffers:
                (array,) = backend.to_host(buffers)
                assert ord("z") == array[0, 0]
            cache.prefetch(model)
            cache.discard(model)
            (tmp_path / f"{model.name}.safetensors").unlink()

        traffic.run(dispatch, load, load)

        assert not traffic.errors, traffic.errors
        assert traffic.dispatched > 10
        for model in steady:
            cache.set_floor(model, Floor.UNPINNED)
        status = cache.status()
        counted = [found for found in status.models.values() if found.is_on_device]
        assert status.resident_bytes <= UNITS * UNIT_BYTES or len(counted) == 1
