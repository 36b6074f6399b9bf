"""Models that come, change and go while their weights share a small budget, on the fake device."""

import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server_worker import RunningWorker, fake_program, rows, running_worker

from hloserve import Client, IOSpec, write_bundle
from hloserve.core.errors import Unavailable
from hloserve.engine.fake_backend import FakeBackend

pytestmark = pytest.mark.integration

PATIENCE_S = 30.0
WEIGHT_BYTES = 64  # four numbers, aligned
FOLLOWING = {"model_settle_seconds": 0.05, "model_removal_seconds": 0.05, "model_poll_seconds": 0.1}


def _write(repository: Path, name: str, factor: float, *, overwrite: bool = False) -> Path:
    return write_bundle(
        repository / name,
        name,
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        {n: fake_program("scale", [f"{n}x4xf32", "4xf32"], [f"{n}x4xf32"]) for n in (1, 4)},
        {"w": np.full(4, factor, np.float32)},
        overwrite=overwrite,
    )


def _metrics(worker: RunningWorker) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"{worker.addresses.urls['admin']}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _factor(client: Client, name: str) -> float:
    return float(client.infer(name, {"x": rows(1)})["y"][0, 0])


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come about"
        threading.Event().wait(0.02)


def _client(worker: RunningWorker) -> Client:
    return Client(worker.addresses.urls["grpc"].removeprefix("grpc://"))


def test_models_are_reloaded_renamed_and_removed_within_the_budget(tmp_path: Path) -> None:
    """Two of four fit; each change shows in the answers, and what has gone is freed."""
    for number, name in enumerate("abcd", 1):
        _write(tmp_path, name, number)
    backend = FakeBackend()
    settings = {"runtime.weight_cache_bytes": 2 * WEIGHT_BYTES, **FOLLOWING}
    with running_worker(tmp_path, backend, settings) as worker, _client(worker) as client:
        assert [1, 2, 3, 4, 1] == [_factor(client, name) for name in "abcda"]

        _write(tmp_path, "a", 10, overwrite=True)
        _wait_for(lambda: _factor(client, "a") == 10)
        (tmp_path / "b").rename(tmp_path / "e")
        _wait_for(lambda: "e" in {entry.name for entry in client.repository_index()})
        _wait_for(lambda: client.is_model_ready("e"))
        assert [2, 3, 4, 10, 2] == [_factor(client, name) for name in "ecdae"]

        for name in "acd":
            shutil.rmtree(tmp_path / name)
        _wait_for(lambda: ["e"] == [entry.name for entry in client.repository_index()])

        assert 2 == _factor(client, "e")
        _wait_for(lambda: backend.in_use_bytes <= WEIGHT_BYTES)
        found = _metrics(worker)
        assert 2 * WEIGHT_BYTES == found["worker_weight_cache_max_bytes", ""]
        assert WEIGHT_BYTES == found["worker_weight_cache_resident_bytes", ""]


def test_floor_of_the_new_name_holds_after_a_rename(tmp_path: Path) -> None:
    """A staged model that becomes the pinned one is pinned, and its budget counts."""
    _write(tmp_path, "staging", 2)
    settings = {
        "runtime.weight_cache_bytes": 2 * WEIGHT_BYTES,
        "scheduler.models": {"production": {"residency": "device"}},
        **FOLLOWING,
    }
    with running_worker(tmp_path, None, settings) as worker, _client(worker) as client:
        assert 0 == _metrics(worker)["worker_model_pinned", "staging"]

        (tmp_path / "staging").rename(tmp_path / "production")
        _wait_for(lambda: _metrics(worker).get(("worker_model_pinned", "production")) == 1)

        assert 2 == _factor(client, "production")
        assert WEIGHT_BYTES == _metrics(worker)["worker_weight_cache_max_bytes", ""]


def test_accelerator_that_tells_its_memory_has_a_budget_by_itself(tmp_path: Path) -> None:
    """Nothing needs to be set: what does not fit is loaded when it is asked for."""
    for number in range(1, 31):
        _write(tmp_path, f"m{number:02d}", number)
    backend = FakeBackend(runs_ahead=True, limit_bytes=32 * WEIGHT_BYTES)
    with running_worker(tmp_path, backend) as worker, _client(worker) as client:
        for _ in range(2):
            for number in range(1, 31):
                assert number == _factor(client, f"m{number:02d}")

        found = _metrics(worker)
        assert 0 < found["worker_weight_cache_max_bytes", ""] < 30 * WEIGHT_BYTES
        assert found["worker_weight_cache_max_scratch_bytes", ""] > 0
        assert found["worker_weight_loads_total", ""] > 30
    backend.close()


def test_fraction_of_zero_has_everything_on_the_device(tmp_path: Path) -> None:
    """Without a budget, models that do not fit fail to load, and the others serve."""
    for number in range(1, 31):
        _write(tmp_path, f"m{number:02d}", number)
    backend = FakeBackend(limit_bytes=20 * 16)
    settings = {"runtime.weight_cache_fraction": 0.0}
    with running_worker(tmp_path, backend, settings) as worker:
        found = _metrics(worker)

        assert ("worker_weight_cache_max_bytes", "") not in found
        assert found["worker_models_failed", ""] > 0


def test_others_than_the_pinned_models_wait_for_a_controller(tmp_path: Path) -> None:
    """With an outside controller, a model that is not on the device is refused and not ready."""
    for number, name in enumerate(("pinned", "other"), 1):
        _write(tmp_path, name, number)
    settings = {
        "runtime.weight_cache_bytes": 4 * WEIGHT_BYTES,
        "runtime.residency_mode": "external",
        "scheduler.models": {"pinned": {"residency": "device"}},
    }
    with running_worker(tmp_path, None, settings) as worker, _client(worker) as client:
        assert 1 == _factor(client, "pinned")
        with pytest.raises(Unavailable, match="not on the device"):
            _factor(client, "other")
        assert (True, False) == (client.is_model_ready("pinned"), client.is_model_ready("other"))

        client.control.set_residency("other", "device")

        assert 2 == _factor(client, "other")
        assert client.is_model_ready("other")


def test_changed_weights_are_never_served_as_if_they_were_the_old(tmp_path: Path) -> None:
    """A file that is written after the load is an error for those who need it read again."""
    for number, name in enumerate("ab", 1):
        _write(tmp_path, name, number)
    settings = {"runtime.weight_cache_bytes": WEIGHT_BYTES, "model_control_mode": "static"}
    with running_worker(tmp_path, None, settings) as worker, _client(worker) as client:
        assert 1 == _factor(client, "a")
        path = tmp_path / "a" / "weights.safetensors"
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.write(content[:-4] + b"\0\0\0\0")
        assert [1, 2] == [_factor(client, name) for name in "ab"]

        with pytest.raises(Unavailable, match="changed after the model was loaded"):
            _factor(client, "a")

        assert 2 == _factor(client, "b")
