"""All weights on the device, from load to unload."""

import os
from pathlib import Path

import pytest
from support.engine_models import build_model
from support.engine_residency import UNIT_BYTES, AheadCpu, numbers, write_weights

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import DeviceMemoryFull, NotPossibleNow, WeightsProblem
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.floors import Floor, ResidencyMode
from hloserve.engine.residency.placement import AllOnDevice
from hloserve.engine.residency.shared_store import SharedStore


def _admit(placement: AllOnDevice, backend: FakeBackend, directory: Path) -> DeviceModel:
    model = build_model(backend, name="m", weights=[])
    path = write_weights(directory / "w", numbers(3))
    placement.admit(model, WeightsFile.open(path))
    return model


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """Where shared copies are."""
    directory = tmp_path / "shm"
    directory.mkdir()
    return directory


def test_weights_are_there_from_admission_on(tmp_path: Path) -> None:
    """A lease is the model's own list, and the file is closed."""
    backend = FakeBackend()
    placement = AllOnDevice(backend)
    path = write_weights(tmp_path / "w", numbers(3))
    weights = WeightsFile.open(path)
    model = build_model(backend, weights=[])

    placement.admit(model, weights)

    assert -1 == weights.fd
    assert placement.lease(model) is model.weights
    with placement.borrow(model) as borrowed:
        assert borrowed is model.weights
    assert 3 == backend.to_host(model.weights)[0][0, 0]
    placement.discard(model)
    placement.discard(model)
    assert ([], 0) == (model.weights, backend.in_use_bytes)


def test_status_says_that_everything_is_there(tmp_path: Path) -> None:
    """Floors mean nothing, and there is no budget."""
    backend = FakeBackend()
    placement = AllOnDevice(backend)
    model = _admit(placement, backend, tmp_path)

    status = placement.status()

    assert (ResidencyMode.EVERYTHING, None) == (status.mode, status.max_bytes)
    assert UNIT_BYTES == status.resident_bytes
    found = status.models[model]
    assert (Floor.DEVICE, True, True) == (found.floor, found.is_on_device, found.is_on_host)
    with pytest.raises(NotPossibleNow, match="weight_cache_bytes"):
        placement.set_floor(model, Floor.SYSTEM)
    assert (0, 0) == (placement.compact([model]), placement.make_room())
    assert placement.fits(model)
    assert placement.is_servable(model)
    placement.discard(model)


def test_device_with_memory_of_its_own_needs_no_copy_on_the_host(tmp_path: Path) -> None:
    """The copy goes when the weights are on their way to the device."""
    backend = FakeBackend(runs_ahead=True)
    placement = AllOnDevice(backend)
    model = _admit(placement, backend, tmp_path)

    assert not placement.status().models[model].is_on_host
    assert 3 == backend.to_host(model.weights)[0][0, 0]
    placement.discard(model)
    backend.close()


def test_cpu_that_runs_ahead_computes_with_the_copy_that_all_workers_share(
    tmp_path: Path, shm: Path
) -> None:
    """It has no memory of its own: the shared file stays, for the next worker to join."""
    backend = AheadCpu()
    placement = AllOnDevice(backend, SharedStore(directory=shm))

    model = _admit(placement, backend, tmp_path)

    assert 1 == len(os.listdir(shm))
    assert placement.status().models[model].is_on_host
    placement.discard(model)
    assert [] == os.listdir(shm)
    backend.close()


def test_load_that_does_not_fit_fails_and_leaves_nothing(tmp_path: Path, shm: Path) -> None:
    """Neither on the device nor in shared memory."""
    backend = FakeBackend(limit_bytes=1)

    with pytest.raises(DeviceMemoryFull):
        _admit(AllOnDevice(backend, SharedStore(directory=shm)), backend, tmp_path)

    assert [] == os.listdir(shm)


def test_file_that_cannot_be_read_is_closed(tmp_path: Path) -> None:
    """The error is that of the weights."""
    backend = FakeBackend()
    path = write_weights(tmp_path / "w", numbers(3))
    weights = WeightsFile.open(path)
    os.truncate(path, path.stat().st_size - 1)

    with pytest.raises(WeightsProblem):
        AllOnDevice(backend).admit(build_model(backend, weights=[]), weights)

    assert -1 == weights.fd


def test_closing_gives_shared_copies_back(tmp_path: Path, shm: Path) -> None:
    """The process ends: what others may share is theirs now, and the last removes it."""
    backend = FakeBackend()
    placement = AllOnDevice(backend, SharedStore(directory=shm))
    model = _admit(placement, backend, tmp_path)
    assert 1 == len(os.listdir(shm))

    placement.close()

    assert [] == os.listdir(shm)
    assert 3 == backend.to_host(model.weights)[0][0, 0], "a running batch still has its weights"
    placement.discard(model)
