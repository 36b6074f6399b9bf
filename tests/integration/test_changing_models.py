"""Bundles that come, change and go under a real server, and what is wrong with them."""

import json
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.models_bundles import OUT3, ROWS4, WEIGHTS, affine, affine_text, write_affine
from support.server_process import ServerProcess, running_server
from tritonclient.utils import InferenceServerException

from hloserve import Client, write_bundle
from hloserve.core.errors import ModelNotFound, NotPossibleNow, Unavailable

PATIENCE_S = 30.0
X = np.arange(8, dtype=np.float32).reshape(2, 4)

pytestmark = [pytest.mark.integration, pytest.mark.xla]


@pytest.fixture(name="repository")
def make_repository(tmp_path: Path) -> Path:
    """A repository with the affine model."""
    root = tmp_path / "repository"
    write_affine(root)
    return root


@pytest.fixture(name="server")
def start_server(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A real server that follows it."""
    with running_server(tmp_path, "serve", str(repository)) as server:
        yield server


def _index(server: ServerProcess) -> dict[str, tuple[str, str]]:
    request = urllib.request.Request(server.url("/v2/repository/index"), data=b"{}")
    with urllib.request.urlopen(request) as answer:
        entries: list[dict[str, str]] = json.load(answer)
    return {entry["name"]: (entry["state"], entry["reason"]) for entry in entries}


def _wait_for(server: ServerProcess, is_so: Callable[[dict[str, tuple[str, str]]], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so(index := _index(server)):
        assert time.monotonic() < deadline, f"it does not come about: {index}"
        threading.Event().wait(0.02)


def test_bundle_that_appears_is_served_and_one_that_vanishes_is_not(
    server: ServerProcess, repository: Path
) -> None:
    """Without a word to the server; the model beside it is not touched."""
    write_affine(repository, "late")
    _wait_for(server, lambda index: index.get("late") == ("READY", ""))
    with Client(server.grpc) as client:
        np.testing.assert_allclose(affine(X), client.infer("late", {"x": X})["y"], rtol=1e-5)

        shutil.rmtree(repository / "late")
        _wait_for(server, lambda index: "late" not in index)

        with pytest.raises(ModelNotFound):
            client.infer("late", {"x": X})
        assert client.is_model_ready("affine")


def test_changed_hook_file_is_a_reload(server: ServerProcess, repository: Path) -> None:
    """Also a file that no manifest names."""
    hook = "import hloserve\nhloserve.register_model(postprocess=lambda o: {'y': o['y'] + 1})\n"
    (repository / "affine" / "model.py").write_text(hook)

    with Client(server.grpc) as client:

        def has_hook(_: object) -> bool:
            return bool(np.allclose(affine(X) + 1, client.infer("affine", {"x": X})["y"]))

        _wait_for(server, has_hook)


@pytest.mark.parametrize("kind", ["truncated", "loop of links", "directory", "no manifest keys"])
def test_bundle_that_is_damaged_under_way_keeps_serving_the_old_one(
    server: ServerProcess, repository: Path, kind: str
) -> None:
    """The index says that the reload failed, and why; the mended bundle is taken up."""
    weights = repository / "affine" / "weights.safetensors"
    manifest = repository / "affine" / "manifest.yaml"
    good = weights.read_bytes(), manifest.read_bytes()
    match kind:
        case "truncated":
            os.truncate(weights, 100)
        case "loop of links":
            weights.unlink()
            weights.symlink_to(weights.name)
        case "directory":
            weights.unlink()
            weights.mkdir()
        case _:
            manifest.write_text("{}")
    _wait_for(server, lambda index: index["affine"][1].startswith("reload failed: "))
    with Client(server.grpc) as client:
        np.testing.assert_allclose(affine(X), client.infer("affine", {"x": X})["y"], rtol=1e-5)

    if kind == "directory":
        weights.rmdir()
    weights.unlink(missing_ok=True)
    weights.write_bytes(good[0])
    manifest.write_bytes(good[1])

    _wait_for(server, lambda index: index["affine"] == ("READY", ""))


def test_directory_that_is_swapped_for_a_link_is_a_reload(
    server: ServerProcess, repository: Path, tmp_path: Path
) -> None:
    """And the link that is led elsewhere is another one: how releases are promoted."""
    store = tmp_path / "store"
    for release, factor in (("v1", 2), ("v2", 3)):
        weights = {"w": factor * WEIGHTS["w"], "b": WEIGHTS["b"]}
        programs = {size: affine_text(size) for size in (1, 4)}
        bundle = store / release / "affine"
        write_bundle(bundle, "affine", [ROWS4], [OUT3], programs, weights)
    (repository / "affine").rename(repository / ".before")
    (repository / "affine").symlink_to(store / "v1" / "affine")

    with Client(server.grpc) as client:

        def serves(factor: int) -> Callable[[object], bool]:
            expected = factor * (X @ WEIGHTS["w"]) + WEIGHTS["b"]
            return lambda _: bool(np.allclose(expected, client.infer("affine", {"x": X})["y"]))

        _wait_for(server, serves(2))
        (repository / ".next").symlink_to(store / "v2" / "affine")
        os.replace(repository / ".next", repository / "affine")
        _wait_for(server, serves(3))


def test_broken_bundle_has_its_reason_everywhere(repository: Path, tmp_path: Path) -> None:
    """In the index, in metrics, in the log and in the answer to a request; the rest serves."""
    write_affine(repository, "broken")
    (repository / "broken" / "model.b4.mlir").write_bytes(b"ML\xefR nothing")
    with running_server(tmp_path, "serve", str(repository)) as server:
        state, reason = _index(server)["broken"]
        with Client(server.grpc) as client:
            with pytest.raises(Unavailable) as caught:
                client.infer("broken", {"x": X})
            assert client.is_model_ready("affine")
        with urllib.request.urlopen(server.url("/metrics", "admin")) as answer:
            metrics = answer.read().decode()
        logged = [line for line in server.log if line["event"] == "model_failed"]

    assert "UNAVAILABLE" == state
    assert "model.b4.mlir" in reason
    assert "model.b4.mlir" in str(caught.value)
    assert 'worker_model_failed{model="broken",reason="model.b4.mlir' in metrics
    assert "model.b4.mlir" in logged[0]["findings"][0]


def test_server_whose_disk_is_full_serves_without_a_cache(repository: Path, tmp_path: Path) -> None:
    """Programs cannot be kept; they are compiled, and the log says so once per program at most."""
    limited = ("sh", "-c", 'ulimit -f 1; exec "$0" "$@"')
    with running_server(tmp_path, "serve", str(repository), prefix=limited) as server:
        with Client(server.grpc) as client:
            np.testing.assert_allclose(affine(X), client.infer("affine", {"x": X})["y"], rtol=1e-5)
        events = [line["event"] for line in server.log]

    assert "executable_cache_unwritable" in events
    left = [path.name for path in (repository / "affine" / ".cache").iterdir()]
    assert all(name.startswith(("readable-", "cost-")) for name in left), "those are small enough"
    assert not [name for name in left if ".tmp-" in name]


def test_second_start_compiles_nothing(repository: Path, tmp_path: Path) -> None:
    """The programs of the first are restored, and give the same answers."""
    counts = []
    for _ in range(2):
        with running_server(tmp_path, "serve", str(repository)) as server:
            with Client(server.grpc) as client:
                got = client.infer("affine", {"x": X})["y"]
            np.testing.assert_allclose(affine(X), got, rtol=1e-5)
            loaded = next(line for line in server.log if line["event"] == "model_loaded")
            counts.append((loaded["programs"], loaded["restored"]))

    assert [(2, 0), (2, 2)] == counts


def test_cache_elsewhere_leaves_the_bundle_as_it_is(repository: Path, tmp_path: Path) -> None:
    """For bundles on read-only mounts."""
    before = sorted(path.name for path in (repository / "affine").iterdir())
    config = tmp_path / "node.yaml"
    config.write_text("runtime: {executable_cache_dir: compiled}")
    with running_server(tmp_path, "serve", str(repository), "--config", str(config)):
        pass

    assert before == sorted(path.name for path in (repository / "affine").iterdir())
    kept = [path.name.partition("-")[0] for path in (tmp_path / "compiled").iterdir()]
    assert 2 == len([kind for kind in kept if kind.endswith(".executable")])
    assert (2, 2) == (kept.count("readable"), kept.count("cost"))


@pytest.fixture(name="explicit")
def start_explicit(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that loads what it is told to, and nothing at start."""
    config = tmp_path / "node.yaml"
    config.write_text("{model_control_mode: explicit, startup_models: []}")
    with running_server(tmp_path, "serve", str(repository), "--config", str(config)) as server:
        yield server


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_triton_clients_load_and_unload(explicit: ServerProcess, way: str) -> None:
    """Their calls for the model repository work unchanged."""
    module = tritonclient.http if way == "http" else tritonclient.grpc
    client = module.InferenceServerClient(f"127.0.0.1:{explicit.ports[way]}")
    assert {"affine": ("UNAVAILABLE", "not loaded")} == _index(explicit)
    assert not client.is_model_ready("affine")

    client.load_model("affine")
    assert client.is_model_ready("affine")
    client.load_model("affine")
    client.unload_model("affine")

    assert not client.is_model_ready("affine")
    assert {"affine": ("UNAVAILABLE", "unloaded")} == _index(explicit)
    with pytest.raises(InferenceServerException, match="zebra"):
        client.load_model("zebra")
    with pytest.raises(InferenceServerException, match="config"):
        client.load_model("affine", config="{}")
    client.close()


def test_our_client_loads_and_is_told_what_is_wrong(
    explicit: ServerProcess, repository: Path
) -> None:
    """The reason of a failed load comes with the error."""
    os.truncate(repository / "affine" / "weights.safetensors", 10)
    with Client(explicit.grpc) as client:
        with pytest.raises(NotPossibleNow, match=r"weights\.safetensors"):
            client.load_model("affine")
        write_affine(repository, overwrite=True)
        client.load_model("affine")
        np.testing.assert_allclose(affine(X), client.infer("affine", {"x": X})["y"], rtol=1e-5)
