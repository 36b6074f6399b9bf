"""Dispatching on a real device that runs ahead: a GPU, or the CPU's asynchronous client.

What backends do by themselves is in `tests/contract/test_backend.py`, which also runs on a GPU.
"""

import random

import numpy as np
import pytest
from support.engine_models import FakeLoop, outcome_of
from support.xla_models import WIDTH, wide_model

from hloserve.core.clock import SystemClock
from hloserve.core.errors import BackendFailed
from hloserve.core.tensors import Array
from hloserve.engine.assembly import StagingArea
from hloserve.engine.backend import Backend
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.programs.numerics import NumericsMode
from hloserve.engine.programs.tf32_probe import ProbeResult, classify
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.queued_request import QueuedRequest, build_requests
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.engine.xla_backend import XlaBackend

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> XlaBackend:
    """Each device in turn."""
    if request.param == "gpu":
        device: XlaBackend = request.getfixturevalue("gpu_backend")
        return device
    return XlaBackend("cpu", runs_ahead=True)


@pytest.fixture(scope="module")
def gpu_backend(gpu: str) -> XlaBackend:
    """The GPU alone."""
    return XlaBackend(gpu)


FACTORS = (1.0, -0.5)


@pytest.fixture(scope="module")
def models(backend: Backend) -> list[DeviceModel]:
    """Two models whose answers differ."""
    return [wide_model(backend, f"m{place}", factor) for place, factor in enumerate(FACTORS)]


def _rows(seed: int, rows: int) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_requests_in_flight_together_have_their_own_answers(
    backend: Backend, models: list[DeviceModel], in_flight: int
) -> None:
    """Batches of two models overlap on the device, from staging memory that is used again."""
    served = sum(model.statistics.requests_served for model in models)
    clock, loop = SystemClock(), FakeLoop()
    scheduler = Scheduler(clock, Fifo(), 1024)
    for model in models:
        scheduler.add(model)
    dispatcher = Dispatcher(backend, scheduler, clock, loop.post, in_flight=in_flight)
    chosen = random.Random(in_flight)  # traffic
    sent: list[tuple[QueuedRequest, int, Array]] = []
    dispatcher.start()
    for seed in range(200):
        place, rows = chosen.randrange(2), _rows(seed, chosen.choice((1, 2, 3, 16)))
        (request,) = build_requests(models[place], [rows])
        sent.append((request, place, rows))
        scheduler.submit([request])
    loop.run_until_settled(*(request for request, _, _ in sent))
    scheduler.stop()
    assert dispatcher.join(10)

    for request, place, rows in sent:
        np.testing.assert_allclose(
            outcome_of(request)[0], np.tanh(FACTORS[place] * rows), rtol=1e-5, atol=1e-5
        )
    assert sum(model.statistics.requests_served for model in models) == served + len(sent)
    assert not any(model.statistics.failed_count for model in models)


def test_device_goes_on_after_a_wrong_call(backend: Backend, models: list[DeviceModel]) -> None:
    """A failure is told, and what comes after it is right."""
    model = models[0]
    wrong = backend.to_device([_rows(0, 3)])
    with pytest.raises(BackendFailed):
        backend.to_host(backend.execute(model.executables[()][1], wrong))
    backend.free(wrong)

    x = StagingArea().take((1, WIDTH), np.dtype(np.float32))
    x[...] = 0.25
    inputs = backend.to_device([x])
    (y,) = backend.to_host(backend.execute(model.executables[()][1], [*inputs, *model.weights]))

    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-5)


@pytest.mark.parametrize("mode", ["auto", "f32"])
def test_products_are_computed_as_the_numerics_say(backend: XlaBackend, mode: NumericsMode) -> None:
    """Mode `f32` is float32 bit for bit; without it a GPU may use TF32, and nothing in between."""
    result = classify(backend.probe(mode))

    if mode == "f32" or backend.platform == "cpu":
        assert result is ProbeResult.EXACT
    else:
        assert result in (ProbeResult.EXACT, ProbeResult.TF32)


@pytest.mark.gpu
def test_memory_of_a_gpu_is_reported(gpu_backend: Backend) -> None:
    """Its limit, what is in use and the peak are known, and what is freed is given back."""
    backend = gpu_backend
    before = backend.memory()
    assert before is not None
    assert before.limit_bytes is not None

    large = backend.to_device([np.zeros(2**24, np.float32)])
    backend.to_host(large)
    during = backend.memory()
    backend.free(large)
    after = backend.memory()

    assert during is not None
    assert after is not None
    assert during.in_use_bytes >= before.in_use_bytes + 2**26
    assert after.in_use_bytes < during.in_use_bytes
    assert after.peak_in_use_bytes is not None
    assert after.peak_in_use_bytes >= during.in_use_bytes


@pytest.mark.gpu
def test_memory_of_a_gpu_is_pinned_for_transfers(gpu_backend: Backend) -> None:
    """Staging memory is read by the device without a copy between, and can be given up."""
    memory = StagingArea().take((4, WIDTH), np.dtype(np.float32))
    memory[...] = _rows(0, 4)
    assert gpu_backend.pin(memory)

    buffers = gpu_backend.to_device([memory])
    (y,) = gpu_backend.to_host(buffers)
    gpu_backend.free(buffers)
    gpu_backend.unpin(memory)

    np.testing.assert_array_equal(y, memory)
    assert gpu_backend.pin(memory), "it was given up before"
    gpu_backend.unpin(memory)
