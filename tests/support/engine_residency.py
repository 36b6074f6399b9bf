"""Models with weights on disk, and caches of them on the fake device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.engine_models import build_model
from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.bundle.weights_writing import plan_weights
from hloserve.core.clock import ManualClock
from hloserve.core.tensors import Array
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend, FakeBuffer
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.host_weights import HostStore
from hloserve.engine.residency.weight_cache import WeightCache

UNIT_BYTES = 64
"""Weights are multiples of this: one row of 16 numbers."""


class AheadCpu(FakeBackend):
    """A CPU that executes on a thread of its own, as with two dispatches in flight."""

    def __init__(self) -> None:
        super().__init__(runs_ahead=True)

    @property
    @override
    def platform(self) -> str:
        return "cpu"


def write_weights(path: Path, *arrays: Array, layout: Any = "xla") -> Path:
    """A weights file with tensors ``w0``, ``w1``..."""
    named = [(f"w{number}", array) for number, array in enumerate(arrays)]
    path.write_bytes(b"".join(plan_weights(named, layout, []).chunks()))
    return path


def numbers(value: float, units: int = 1) -> Array:
    """Weights of some units, all of one number."""
    return np.full((units, UNIT_BYTES // 4), value, np.float32)


class Shelf:
    """A cache, and models in a directory that it may load.

    Args:
        directory: for their files.
        units: budget; None for what `limits` say.
    """

    def __init__(
        self,
        directory: Path,
        units: int | None = 2,
        *,
        backend: FakeBackend | None = None,
        limits: MemoryLimits | None = None,
        store: HostStore | None = None,
        is_external: bool = False,
        is_awaited: Callable[[DeviceModel], bool] = lambda _: False,
        compaction_interval: int = 0,
    ) -> None:
        self.directory = directory
        self.backend = backend or FakeBackend()
        cap = None if units is None else units * UNIT_BYTES
        self.clock = ManualClock()
        self.cache = WeightCache(
            self.backend,
            limits or MemoryLimits(cap_bytes=cap),
            self.clock,
            is_external=is_external,
            is_awaited=is_awaited,
            store=store,
            compaction_interval=compaction_interval,
        )

    def admit(self, name: str, units: int = 1, floor: Floor | None = None) -> DeviceModel:
        """A model whose weights are the number of its first letter."""
        model = build_model(self.backend, name=name, weights=[])
        arrays = [numbers(ord(name[0]), units)] if units else []
        path = write_weights(self.directory / f"{name}.safetensors", *arrays)
        self.cache.admit(model, WeightsFile.open(path), floor)
        return model

    def use(self, model: DeviceModel) -> float:
        """Lease, look and release; the number that the weights are of."""
        (buffer,) = self.cache.lease(model)
        assert isinstance(buffer, FakeBuffer)
        value = float(self.backend.to_host([buffer])[0][0, 0])
        self.cache.release(model)
        return value

    @property
    def resident(self) -> set[str]:
        """Names of the models whose weights are on the device."""
        models = self.cache.status().models
        return {model.name for model, found in models.items() if found.is_on_device}

    @property
    def figures(self) -> tuple[int, int, int]:
        """Loads, evictions and hits."""
        status = self.cache.status()
        return status.loads, status.evictions, status.hits


@contextmanager
def shelf(directory: Path, units: int | None = 2, **more: Any) -> Iterator[Shelf]:
    """A shelf that is cleared at the end, when nothing may be left on the device."""
    made = Shelf(directory, units, **more)
    yield made
    made.cache.close()
    for model in made.cache.status().models:
        made.cache.discard(model)
    made.backend.close()
    assert made.backend.in_use_bytes == 0, "weights were left on the device"
