"""Meta models on a real server: over gRPC and REST, while what they call is changed under them."""

import json
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.models_bundles import OUT3, ROWS4, affine, affine_text, write_affine
from support.server_process import ServerProcess, running_server
from tritonclient.utils import InferenceServerException

from hloserve import Client, write_bundle, write_meta_bundle
from hloserve.core.errors import DeadlineExceeded, HloserveError, NotPossibleNow, Unavailable
from hloserve.core.tensors import Array

PATIENCE_S = 30.0
X = np.arange(8, dtype=np.float32).reshape(2, 4)

RUN = """
from hloserve import register_meta_model

def run(inputs, call):
    first, second = call.map("affine", [{"x": inputs["x"]}, {"x": inputs["x"] + 1}])
    return {"y": first["y"] + second["y"]}

register_meta_model(run=run)
"""

pytestmark = [pytest.mark.integration, pytest.mark.xla]


def _write_meta(root: Path, name: str = "sum", run: str = RUN, **more: Any) -> Path:
    calls = more.pop("calls", ["affine"])
    return write_meta_bundle(root / name, name, calls, [ROWS4], [OUT3], run, **more)


def _write_both(root: Path) -> Path:
    """The affine model, and a meta model over it."""
    write_affine(root)
    _write_meta(root)
    return root


@pytest.fixture(name="server", scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server of both, which no test changes."""
    directory = tmp_path_factory.mktemp("served")
    with running_server(directory, "serve", str(_write_both(directory / "repository"))) as server:
        yield server


def _expected(x: Array) -> Array:
    return affine(x) + affine(x + 1)


def _get(server: ServerProcess, path: str, port: str = "http") -> Any:
    with urllib.request.urlopen(server.url(path, port)) as answer:
        text = answer.read().decode()
    return text if port == "admin" else json.loads(text)


def _index(server: ServerProcess) -> dict[str, str]:
    request = urllib.request.Request(server.url("/v2/repository/index"), data=b"{}")
    with urllib.request.urlopen(request) as answer:
        return {entry["name"]: entry["state"] for entry in json.load(answer)}


def test_published_clients_call_it_like_any_model(server: ServerProcess) -> None:
    """Metadata, configuration, readiness, answers and statistics, on both transports."""
    for module, port in ((tritonclient.grpc, "grpc"), (tritonclient.http, "http")):
        client = module.InferenceServerClient(f"127.0.0.1:{server.ports[port]}")
        given = module.InferInput("x", [2, 4], "FP32")
        given.set_data_from_numpy(X)

        answer = client.infer("sum", [given]).as_numpy("y")

        np.testing.assert_allclose(_expected(X), answer, rtol=1e-5)
        assert client.is_model_ready("sum")
        wrong = module.InferInput("x", [1, 3], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
        with pytest.raises(InferenceServerException, match="input 'x': extent of axis 1"):
            client.infer("sum", [wrong])
        client.close()

    metadata = _get(server, "/v2/models/sum")
    assert ([-1, 4], [-1, 3]) == tuple(metadata[side][0]["shape"] for side in ("inputs", "outputs"))
    assert "meta" == _get(server, "/v2/models/sum/config")["backend"]
    (statistics,) = _get(server, "/v2/models/sum/stats")["model_stats"]
    assert int(statistics["inference_count"]) == int(statistics["execution_count"]) >= 2
    assert {"sum": "READY"} == _index(server)


def _figure(server: ServerProcess, name: str) -> float:
    found = re.search(f"^{re.escape(name)} (.*)$", _get(server, "/metrics", "admin"), re.M)
    return float(found[1]) if found else 0.0


def test_metrics_and_log_tell_of_it(server: ServerProcess) -> None:
    """Per-model counters include it; those of its sub-model count the calls."""
    names = (
        'worker_dispatch_total{model="sum"}',
        'worker_rows_served_total{model="affine"}',
        'worker_requests_total{model="sum",status="OK"}',
    )
    before = [_figure(server, name) for name in names]
    with Client(server.grpc) as client:
        client.infer("sum", {"x": X})

    assert [1, 4, 1] == [_figure(server, n) - b for n, b in zip(names, before, strict=True)]
    assert 0 == _figure(server, "worker_metas_in_flight")
    assert {"affine", "sum"} == {r["model"] for r in server.log if r["event"] == "model_loaded"}


FAILING = """
from hloserve import register_meta_model

def run(inputs, call):
    return {"y": undefined}

register_meta_model(run=run)
"""


def test_what_is_wrong_is_told_to_who_can_mend_it(tmp_path: Path) -> None:
    """A broken sub-model to the caller; a fault of the author to the log, with its line."""
    root = _write_both(tmp_path / "repository")
    (root / "affine" / "weights.safetensors").write_bytes(b"not weights")
    _write_meta(root, "bad", FAILING, calls=[])
    with running_server(tmp_path, "serve", str(root)) as server:
        with Client(server.grpc) as client:
            assert not client.is_model_ready("sum")
            text = "meta 'sum': call to 'affine': model 'affine' is not ready"
            with pytest.raises(Unavailable, match=text):
                client.infer("sum", {"x": X})
            with pytest.raises(HloserveError, match="request id") as told:
                client.infer("bad", {"x": X})
        server.terminate()

    assert any(record["event"] == "sub_model_missing" for record in server.log)
    (line,) = [record for record in server.log if record["event"] == "internal_error"]
    assert str(line["request_id"]) in str(told.value)
    assert "run hook of model 'bad' failed: model.py:5: NameError" in json.dumps(line)


ENDLESS = """
from hloserve import register_meta_model

def run(inputs, call):
    while True:
        call("affine", inputs)

register_meta_model(run=run)
"""


def test_client_that_goes_frees_the_place(tmp_path: Path) -> None:
    """A `run` without end is ended by the deadline, and by a client that closes its connection."""
    root = _write_both(tmp_path / "repository")
    _write_meta(root, "endless", ENDLESS)
    (tmp_path / "server.yaml").write_text("metas: {concurrency: 1}\n")
    with running_server(
        tmp_path, "serve", str(root), "--config", str(tmp_path / "server.yaml")
    ) as server:
        with Client(server.grpc) as client:
            with pytest.raises(DeadlineExceeded):
                client.infer("endless", {"x": X}, timeout_s=0.2)
            np.testing.assert_allclose(_expected(X), client.infer("sum", {"x": X})["y"], rtol=1e-5)

        leaving = tritonclient.grpc.InferenceServerClient(server.grpc)
        given = tritonclient.grpc.InferInput("x", [2, 4], "FP32")
        given.set_data_from_numpy(X)
        leaving.async_infer("endless", [given], lambda result, error: None)
        _wait_for(lambda: _figure(server, "worker_metas_in_flight"))
        leaving.close()

        with Client(server.grpc) as client:
            np.testing.assert_allclose(_expected(X), client.infer("sum", {"x": X})["y"], rtol=1e-5)


def _wait_for(is_so: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not come about"
        threading.Event().wait(0.02)


def test_sub_model_is_reloaded_and_renamed_under_load(tmp_path: Path) -> None:
    """Each answer is of one generation of it; while it is away, calls name what is missing."""
    repository = _write_both(tmp_path / "repository")
    node = tmp_path / "node.yaml"
    node.write_text("model_removal_seconds: 1\nmodel_settle_seconds: 0.25\n")
    with running_server(tmp_path, "serve", str(repository), "--config", str(node)) as server:
        _reload_under_load(server, repository)
        _rename_and_come_back(server, repository)


def _reload_under_load(server: ServerProcess, repository: Path) -> None:
    failures: list[str] = []
    answers: list[Array] = []
    is_over = threading.Event()
    later = {"w": np.zeros((4, 3), np.float32), "b": np.ones(3, np.float32)}

    def load() -> None:
        with Client(server.grpc) as client:
            while not is_over.is_set():
                try:
                    answers.append(client.infer("sum", {"x": X})["y"])
                except HloserveError as error:
                    failures.append(f"{type(error).__name__}: {error}")
                    return

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    write_bundle(
        repository / "affine", "affine", [ROWS4], [OUT3],
        {size: affine_text(size) for size in (1, 4)}, later, overwrite=True,
    )  # fmt: skip
    _wait_for(lambda: answers and np.allclose(answers[-1], 2))
    is_over.set()
    for thread in threads:
        thread.join()

    assert [] == failures
    assert all(np.allclose(a, 2) or np.allclose(a, _expected(X), rtol=1e-5) for a in answers)


def _rename_and_come_back(server: ServerProcess, repository: Path) -> None:
    with Client(server.grpc) as client:
        (repository / "affine").rename(repository / "other")
        _wait_for(lambda: "UNAVAILABLE" == _index(server)["sum"])
        assert not client.is_model_ready("sum")
        text = "meta 'sum': call to 'affine': model 'affine' is not served here"
        with pytest.raises(NotPossibleNow, match=text):
            client.infer("sum", {"x": X})
        shutil.copytree(repository / "other", repository / "affine")
        _wait_for(lambda: "READY" == _index(server)["sum"])
        assert np.allclose(client.infer("sum", {"x": X})["y"], 2)
