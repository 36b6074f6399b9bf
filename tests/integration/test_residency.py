"""More weights than the budget, under a real server; and copies that processes share."""

import os
import random
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server_process import ServerProcess, running_server

from hloserve import Client, IOSpec, write_bundle

pytestmark = [pytest.mark.integration, pytest.mark.xla]

MODELS = 50
SIDE = 1024
WEIGHT_BYTES = 4 * SIDE * SIDE
PROGRAM = f"""module @scale {{
  func.func public @main(%x: tensor<?x4xf32>, %w: tensor<{SIDE}x{SIDE}xf32>) -> tensor<?x4xf32> {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<{SIDE}x{SIDE}xf32>, tensor<f32>) -> tensor<f32>
    %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %four = stablehlo.constant dense<4> : tensor<1xi32>
    %shape = stablehlo.concatenate %n1, %four, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %all = stablehlo.dynamic_broadcast_in_dim %sum, %shape, dims = []
      : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
    %y = stablehlo.multiply %x, %all : tensor<?x4xf32>
    return %y : tensor<?x4xf32>
  }}
}}"""
"""y = x times the sum of all weights."""


def _write(repository: Path, number: int, name: str = "") -> str:
    """A model whose weights sum up to its number."""
    name = name or f"m{number:02d}"
    write_bundle(
        repository / name,
        name,
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        {1: PROGRAM.replace("?", "1")},
        {"w": np.full((SIDE, SIDE), number / SIDE**2, np.float32)},
    )
    return name


def _node(directory: Path, text: str) -> str:
    file = directory / "node.yaml"
    file.write_text(text)
    return str(file)


@pytest.fixture(name="repository", scope="module")
def make_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty models of 4 MiB."""
    root = tmp_path_factory.mktemp("many") / "repository"
    root.mkdir()
    for number in range(1, MODELS + 1):
        _write(root, number)
    return root


@pytest.fixture(name="server")
def start_server(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with room for a fifth of their weights."""
    node = _node(
        tmp_path,
        f"runtime: {{weight_cache_bytes: {MODELS * WEIGHT_BYTES // 5},"
        f" executable_cache_dir: {tmp_path}/cache}}\nmodel_control_mode: static\n",
    )
    with running_server(tmp_path, "serve", str(repository), "--config", node) as server:
        yield server


def _metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(server.url("/metrics", "admin")) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "model" not in sample.labels
    }


def _rss_bytes(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_fifty_models_are_served_from_a_fifth_of_their_memory(server: ServerProcess) -> None:
    """Every answer is right, memory stays within the budget, and what loading costs is told."""
    at_start = _rss_bytes(server)
    highest = [at_start]
    popularity = [1 / (rank + 1) for rank in range(MODELS)]

    def call(seed: int) -> None:
        rng = random.Random(seed)
        x = np.array([[1, 2, 3, 4]], np.float32)
        with Client(server.grpc) as client:
            for number in rng.choices(range(1, MODELS + 1), popularity, k=120):
                y = client.infer(f"m{number:02d}", {"x": x})["y"]
                np.testing.assert_allclose(y, number * x, rtol=1e-3)
            highest.append(_rss_bytes(server))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(4)))
    found = _metrics(server)

    budget = MODELS * WEIGHT_BYTES / 5
    assert budget == found["worker_weight_cache_max_bytes"]
    assert 0 < found["worker_weight_cache_resident_bytes"] <= budget
    assert found["worker_weight_loads_total"] > MODELS
    assert found["worker_weight_evicts_total"] > MODELS - 10
    assert found["worker_weight_load_seconds_total"] > 0
    assert found["worker_weight_hits_total"] > 0
    # All weights are 200 MiB, of which 40 were there at the start.
    assert max(highest) - at_start < 0.4 * MODELS * WEIGHT_BYTES


def _shared(name: str) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"hlow-{name}-*"))


def test_copy_that_a_killed_server_left_is_used_by_the_next(tmp_path: Path) -> None:
    """Weights in shared memory outlive a SIGKILL, and go with the last server that drains."""
    repository = tmp_path / "repository"
    repository.mkdir()
    name = _write(repository, 7, f"shared{os.getpid()}")
    node = _node(
        tmp_path,
        f"runtime: {{shared_host_weights: true, executable_cache_dir: {tmp_path}/cache}}\n",
    )
    with running_server(tmp_path, "serve", str(repository), "--config", node) as server:
        (left,) = _shared(name)
        inode = left.stat().st_ino
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
    try:
        with (
            running_server(tmp_path, "serve", str(repository), "--config", node) as server,
            Client(server.grpc) as client,
        ):
            assert [inode] == [path.stat().st_ino for path in _shared(name)]
            x = np.ones((1, 4), np.float32)
            np.testing.assert_allclose(client.infer(name, {"x": x})["y"], 7 * x, rtol=1e-3)
            assert 0 == server.terminate()
        assert [] == _shared(name)
    finally:
        for path in _shared(name):
            path.unlink()
