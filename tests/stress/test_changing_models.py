"""Models are reloaded and renamed under constant load: no request fails, every answer is right.

`RELOADS` and `RENAMES` set how often; the defaults keep the suite quick, and a release is tried
with 1,000 and 200.
"""

import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.models_bundles import affine_text
from support.server_process import ServerProcess, running_server

from hloserve import Client, IOSpec, write_bundle

RELOADS = int(os.environ.get("RELOADS", "8"))
RENAMES = int(os.environ.get("RENAMES", "8"))
CLIENTS = 16
PATIENCE_S = 60.0
ROWS = 3
MOST_GROWTH_BYTES = 64 << 20

pytestmark = [
    pytest.mark.stress,
    pytest.mark.xla,
    pytest.mark.timeout(120 + 2 * (RELOADS + RENAMES)),
]


def _write(root: Path, name: str, generation: int) -> Path:
    """A model whose every output is its generation: y = x @ 0 + generation."""
    return write_bundle(
        root / name,
        name,
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (1, 3), batch_axis=0)],
        {size: affine_text(size) for size in (1, 4)},
        {"w": np.zeros((4, 3), np.float32), "b": np.full(3, generation, np.float32)},
        overwrite=True,
    )


def _quick(directory: Path) -> str:
    """Settings with which a change counts almost at once."""
    file = directory / "node.yaml"
    file.write_text("model_settle_seconds: 0.05")
    return str(file)


class _Caller(threading.Thread):
    """Asks one model all the time; what it answers must be one of the generations allowed now."""

    def __init__(self, address: str, model: str, allowed: Callable[[], set[int]]) -> None:
        super().__init__(name=f"caller-{model}", daemon=True)
        self._address, self._model, self._allowed = address, model, allowed
        self._is_over = threading.Event()
        self.requests = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Ask and check."""
        x = np.ones((ROWS, 4), np.float32)
        try:
            with Client(self._address, timeout_s=PATIENCE_S) as client:
                while not self._is_over.is_set():
                    before = self._allowed()
                    y = client.infer(self._model, {"x": x})["y"]
                    assert y.shape == (ROWS, 3)
                    assert np.all(y == y[0, 0]), f"one answer of two generations: {y}"
                    assert int(y[0, 0]) in before | self._allowed(), f"{self._model} gave {y[0, 0]}"
                    self.requests += 1
        except BaseException as problem:  # noqa: BLE001  # the test reports it
            self.problem = problem

    def end(self) -> None:
        """Stop asking, and wait."""
        self._is_over.set()
        self.join(PATIENCE_S)


@contextmanager
def _load(
    server: ServerProcess, models: list[str], allowed: Callable[[], set[int]]
) -> Iterator[list[_Caller]]:
    callers = [
        _Caller(server.grpc, models[number % len(models)], allowed) for number in range(CLIENTS)
    ]
    for caller in callers:
        caller.start()
    try:
        yield callers
    finally:
        for caller in callers:
            caller.end()
    assert [caller.problem for caller in callers if caller.problem is not None] == []
    assert all(caller.requests for caller in callers)


def _metrics(server: ServerProcess) -> dict[str, float]:
    """One scrape: value by name and labels."""
    with urllib.request.urlopen(server.url("/metrics", "admin")) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def _requests(metrics: dict[str, float]) -> dict[str, float]:
    """Answered requests by status, over all models."""
    counts: dict[str, float] = {}
    for name, value in metrics.items():
        if name.startswith("worker_requests_total{"):
            status = name.rsplit('status="', 1)[1].split('"')[0]
            counts[status] = counts.get(status, 0) + value
    return counts


def _wait_for_generation(client: Client, model: str, generation: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    x = np.ones((1, 4), np.float32)
    while client.infer(model, {"x": x})["y"][0, 0] != generation:
        assert time.monotonic() < deadline, f"{model} is not reloaded"
        threading.Event().wait(0.01)


def test_reloads_fail_no_request(tmp_path: Path) -> None:
    """Each answer is that of a generation that was there while it was asked for; memory is flat."""
    repository = tmp_path / "repository"
    _write(repository, "model", 0)
    written = [0]
    memory = "process_resident_memory_bytes"
    at_rest = 0.0
    with (
        running_server(tmp_path, "serve", str(repository), "--config", _quick(tmp_path)) as server,
        Client(server.grpc, timeout_s=PATIENCE_S) as client,
    ):
        with _load(server, ["model"], lambda: {written[-1] - 1, written[-1]}):
            for generation in range(1, RELOADS + 1):
                written.append(generation)
                _write(repository, "model", generation)
                _wait_for_generation(client, "model", generation)
                if generation == max(RELOADS // 4, 4):
                    at_rest = _metrics(server)[memory]
        metrics = _metrics(server)

    assert {"OK"} == _requests(metrics).keys()
    assert metrics['worker_model_changes_total{change="reload"}'] >= RELOADS
    grown = metrics[memory] - at_rest
    assert grown < MOST_GROWTH_BYTES, f"{RELOADS} reloads took {grown / 2**20:.0f} MiB"


def test_swapped_names_fail_no_request(tmp_path: Path) -> None:
    """Two bundles swap names again and again: both names serve all the while, nothing compiles."""
    repository = tmp_path / "repository"
    _write(repository, "red", 1)
    _write(repository, "blue", 2)
    with (
        running_server(tmp_path, "serve", str(repository), "--config", _quick(tmp_path)) as server,
        Client(server.grpc, timeout_s=PATIENCE_S) as client,
    ):
        with _load(server, ["red", "blue"], lambda: {1, 2}):
            for swap in range(RENAMES // 2):
                (repository / "red").rename(repository / ".swap")
                (repository / "blue").rename(repository / "red")
                (repository / ".swap").rename(repository / "blue")
                _wait_for_generation(client, "red", 1 if swap % 2 else 2)
        metrics = _metrics(server)

    changes = {
        change: metrics[f'worker_model_changes_total{{change="{change}"}}']
        for change in ("load", "reload", "rename", "remove", "fail")
    }
    renames = 2 * (RENAMES // 2)
    assert {"load": 2, "reload": 0, "rename": renames, "remove": 0, "fail": 0} == changes
    assert {"OK"} == _requests(metrics).keys()
