"""Weights that come and go on a real device: a GPU, or the CPU, either way that it runs."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.engine_residency import write_weights

from hloserve.bundle.weights import WeightsFile
from hloserve.core.clock import SystemClock
from hloserve.core.tensors import Array
from hloserve.engine.backend import Executable
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.shared_store import SharedStore
from hloserve.engine.residency.weight_cache import WeightCache
from hloserve.engine.xla_backend import XlaBackend

pytestmark = pytest.mark.xla

SIDE = 512
WEIGHT_BYTES = 4 * SIDE * SIDE
MODELS = 6
PROGRAM = f"""module @weights {{
  func.func public @main(%w: tensor<{SIDE}x{SIDE}xf32>) -> tensor<{SIDE}x{SIDE}xf32> {{
    return %w : tensor<{SIDE}x{SIDE}xf32>
  }}
}}"""


@pytest.fixture(
    scope="module",
    params=["cpu", "cpu, running ahead", pytest.param("gpu", marks=pytest.mark.gpu)],
)
def backend(request: pytest.FixtureRequest) -> XlaBackend:
    """Each device in turn."""
    if request.param == "gpu":
        return XlaBackend(request.getfixturevalue("gpu"))
    return XlaBackend("cpu", runs_ahead=request.param != "cpu")


@pytest.fixture(scope="module")
def executable(backend: XlaBackend) -> Executable:
    """A program that gives its weights back."""
    return backend.compile(backend.read_program(PROGRAM.encode(), "weights"), "m")


@pytest.fixture(params=["private", "shared"])
def cache(
    request: pytest.FixtureRequest, backend: XlaBackend, tmp_path: Path
) -> Iterator[WeightCache]:
    """Room for two of six models, copies on the host in either store."""
    store = SharedStore(directory=tmp_path) if request.param == "shared" else None
    limits = MemoryLimits(cap_bytes=2 * WEIGHT_BYTES)
    made = WeightCache(backend, limits, SystemClock(), store=store)
    yield made
    for model in made.status().models:
        made.discard(model)
    made.close()
    assert not list(tmp_path.glob("hlow-*")), "a shared copy was left"


def _admit(cache: WeightCache, directory: Path) -> list[DeviceModel]:
    models = []
    for number in range(MODELS):
        path = write_weights(directory / str(number), np.full((SIDE, SIDE), number, np.float32))
        models.append(DeviceModel(f"m{number}", (), (), {}))
        floor = (None, Floor.SYSTEM, Floor.UNPINNED)[number % 3]
        cache.admit(models[-1], WeightsFile.open(path), floor)
    return models


def test_every_execution_has_the_weights_of_its_model(
    cache: WeightCache, backend: XlaBackend, executable: Executable, tmp_path: Path
) -> None:
    """Also after they were evicted, loaded ahead or moved; results outlive the weights."""
    models, rng, kept = _admit(cache, tmp_path), random.Random(1), list[tuple[int, Array]]()

    for _ in range(100):
        number, following = rng.choices(range(MODELS), k=2)
        results = backend.execute(executable, cache.lease(models[number]))
        cache.prefetch(models[following])
        kept.append((number, backend.to_host(results)[0]))
        cache.release(models[number])
        backend.free(results)

    assert all((array == number).all() for number, array in kept)
    status = cache.status()
    assert status.resident_bytes <= 2 * WEIGHT_BYTES
    assert status.evictions > MODELS


def test_evicted_weights_leave_the_device(
    cache: WeightCache, backend: XlaBackend, tmp_path: Path
) -> None:
    """What the device says is in use is what is resident, where it says anything."""
    if (before := backend.memory()) is None:
        pytest.skip("the device does not tell its memory")
    for model in _admit(cache, tmp_path):
        cache.lease(model)
        cache.release(model)
    after = backend.memory()

    assert after is not None
    assert after.in_use_bytes - before.in_use_bytes <= 2 * WEIGHT_BYTES + (1 << 20)
