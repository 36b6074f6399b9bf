"""A whole worker on the fake device: its ports, its start, its end."""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.server_worker import (
    RunningWorker,
    rows,
    run_to_the_end,
    running_worker,
    start_listening,
    write_scale,
)

from hloserve import Client
from hloserve.core.errors import ConfigProblem, HloserveError, ModelNotReady, Unavailable
from hloserve.engine.fake_backend import FakeBackend


def fetch(worker: RunningWorker, port: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST when there is a body."""
    host, number = getattr(worker.addresses, port)
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://{host}:{number}{path}", data, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def grpc_address(worker: RunningWorker) -> str:
    """Where clients connect."""
    return "{}:{}".format(*worker.addresses.grpc)


class SlowStart(FakeBackend):
    """A device whose compiler waits until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def compile(self, program: Any, model: str) -> Any:
        """Wait, then compile."""
        assert self.go.wait(30)
        return super().compile(program, model)


def test_server_is_live_before_it_has_compiled_anything(tmp_path: Path) -> None:
    """Listeners come first: live at once, ready when the start-up set is decided."""
    write_scale(tmp_path)
    backend = SlowStart()
    worker = RunningWorker(tmp_path, backend, {}, wait=False)
    try:
        with Client(grpc_address(worker)) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
            assert fetch(worker, "admin", "/healthz") == (200, b"ok\n")
            assert fetch(worker, "admin", "/readyz")[0] == 503
            assert fetch(worker, "http", "/v2/health/ready")[0] == 503
            backend.go.set()
            worker.wait_decided()
            assert client.is_server_ready()
            assert client.is_model_ready("scale")
            assert fetch(worker, "admin", "/readyz") == (200, b"ok\n")
    finally:
        backend.go.set()
        worker.stop()
        assert worker.join() == 0


def test_model_that_is_loading_is_unavailable_not_unknown(tmp_path: Path) -> None:
    """A request that comes too early is told to come again."""
    write_scale(tmp_path)
    backend = SlowStart()
    worker = RunningWorker(tmp_path, backend, {}, wait=False)
    try:
        with Client(grpc_address(worker)) as client, pytest.raises(HloserveError) as caught:
            client.infer("scale", {"x": rows(1)})
        assert isinstance(caught.value, Unavailable)
        assert "loading" in str(caught.value) or "starting" in str(caught.value)
    finally:
        backend.go.set()
        worker.stop()
        worker.join()


def test_broken_bundle_is_reported_and_the_others_serve(tmp_path: Path) -> None:
    """One bundle's faults are its own: named in the index, metrics and errors."""
    write_scale(tmp_path, "good")
    broken = write_scale(tmp_path, "broken")
    (broken / "weights.safetensors").write_bytes(b"nonsense")
    with running_worker(tmp_path) as worker, Client(grpc_address(worker)) as client:
        np.testing.assert_array_equal(rows(4), client.infer("good", {"x": rows(2)})["y"])
        status, index = fetch(worker, "http", "/v2/repository/index", {})
        by_name = {entry["name"]: entry for entry in json.loads(index)}
        assert status == 200
        assert by_name["good"]["state"] == "READY"
        assert by_name["broken"]["state"] == "UNAVAILABLE"
        assert "weights.safetensors" in by_name["broken"]["reason"]
        assert client.is_server_ready()
        assert not client.is_model_ready("broken")
        with pytest.raises(Unavailable, match=r"weights\.safetensors"):
            client.infer("broken", {"x": rows(1)})
        assert b"worker_models_failed 1.0" in fetch(worker, "admin", "/metrics")[1]


def test_strict_startup_ends_with_an_error_when_a_bundle_is_broken(tmp_path: Path) -> None:
    """Who asks for strictness gets no half server."""
    broken = write_scale(tmp_path)
    (broken / "model.b4.mlir").unlink()
    worker = RunningWorker(tmp_path, FakeBackend(), {"strict_startup": True})

    assert worker.join() == 1


def test_metrics_tell_requests_batches_and_queues(tmp_path: Path) -> None:
    """One scrape shows what was served, under the names of the original server."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as worker, Client(grpc_address(worker)) as client:
        client.infer("scale", {"x": rows(1, 2, 3)})
        text = fetch(worker, "admin", "/metrics")[1].decode()
    for line in (
        'worker_requests_total{model="scale",status="OK"} 1.0',
        'worker_request_latency_seconds_count{model="scale"} 1.0',
        'worker_dispatch_total{model="scale"} 1.0',
        'worker_rows_served_total{model="scale"} 3.0',
        'worker_padded_rows_total{model="scale"} 4.0',
        'worker_batch_size_total{model="scale",size="4"} 1.0',
        'worker_queue_depth{model="scale"} 0.0',
        'worker_model_max_batch_size{model="scale"} 8.0',
        "worker_inflight_requests 0.0",
    ):
        assert line in text.splitlines()
    assert 'worker_compute_seconds_total{model="scale"}' in text


def test_drain_answers_what_is_in_flight_and_refuses_what_comes(tmp_path: Path) -> None:
    """SIGTERM loses nothing: running and queued requests get their answers."""
    write_scale(tmp_path)
    backend = FakeBackend()
    worker = RunningWorker(tmp_path, backend, {})
    backend.gate.close()
    before = backend.gate.arrivals
    answers: list[Any] = []

    def ask(value: float) -> None:
        with Client(grpc_address(worker)) as client:
            answers.append(client.infer("scale", {"x": rows(value)})["y"][0, 0])

    callers = [threading.Thread(target=ask, args=(value,)) for value in (1, 2, 3)]
    for caller in callers:
        caller.start()
    backend.gate.wait_for_arrivals(before + 1)
    while worker.on_loop(lambda: worker.worker.inference.in_flight) < 3:
        pass
    worker.stop()
    while worker.on_loop(lambda: worker.worker.is_ready):
        pass
    with pytest.raises(HloserveError), Client(grpc_address(worker)) as late:
        late.infer("scale", {"x": rows(9)})
    backend.gate.open()
    for caller in callers:
        caller.join()

    assert worker.join() == 0
    assert sorted(answers) == [2, 4, 6]


def test_drain_answers_what_is_held_back_for_a_full_batch(tmp_path: Path) -> None:
    """Nobody comes any more, so the batch goes as it is; it would have waited for an hour."""
    write_scale(tmp_path)
    policy = {"scale": {"max_queue_delay_seconds": 3600.0}}
    worker = RunningWorker(tmp_path, FakeBackend(), {"scheduler.models": policy})
    answers: list[Any] = []

    def ask() -> None:
        with Client(grpc_address(worker), timeout_s=None) as client:
            answers.append(client.infer("scale", {"x": rows(1)})["y"][0, 0])

    caller = threading.Thread(target=ask)
    caller.start()
    while worker.on_loop(lambda: worker.worker.inference.in_flight) < 1:
        pass
    worker.stop()

    assert worker.join() == 0
    caller.join()
    assert answers == [2]


def test_drain_ends_in_time_when_the_device_does_not(tmp_path: Path) -> None:
    """A stuck dispatch cannot hold the process for longer than the drain timeout."""
    write_scale(tmp_path)
    backend = FakeBackend()
    worker = RunningWorker(tmp_path, backend, {"drain_timeout_s": 0.2})
    backend.gate.close()
    before = backend.gate.arrivals
    failures: list[HloserveError] = []

    def ask() -> None:
        with Client(grpc_address(worker)) as client:
            try:
                client.infer("scale", {"x": rows(1)})
            except HloserveError as error:
                failures.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    backend.gate.wait_for_arrivals(before + 1)
    worker.stop()
    assert worker.join() == 0
    caller.join()
    backend.gate.open()

    assert len(failures) == 1


def test_port_that_is_taken_is_named_with_its_setting(tmp_path: Path) -> None:
    """Two servers on one port: the second says which setting to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigProblem, match=f"port {port}.*--http-port"):
            start_listening({"endpoints.http_port": port})


def test_version_one_and_no_version_are_the_bundle(tmp_path: Path) -> None:
    """Bundles have no versions; what a Triton repository would call 1 is served."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as worker:
        for path, status in (
            ("/v2/models/scale", 200),
            ("/v2/models/scale/versions/1", 200),
            ("/v2/models/scale/versions/1/ready", 200),
            ("/v2/models/scale/versions/2", 404),
            ("/v2/models/nobody", 404),
            ("/v2/models/nobody/ready", 404),
        ):
            assert (path, fetch(worker, "http", path)[0]) == (path, status)


def test_startup_without_a_device_ends_with_an_error(tmp_path: Path) -> None:
    """When nothing can be served the process says why and ends, instead of idling."""
    write_scale(tmp_path)

    class NoDevice(FakeBackend):
        def __init__(self) -> None:
            raise ModelNotReady("device", "there is none")

    assert run_to_the_end(tmp_path, NoDevice) == 1


def test_bundle_whose_name_is_not_utf8_is_listed_as_failed(tmp_path: Path) -> None:
    """Bytes that no protocol can carry break neither the index nor the other bundles."""
    write_scale(tmp_path, "good")
    os.rename(write_scale(tmp_path, "odd"), os.path.join(os.fsencode(tmp_path), b"odd\xff"))
    with running_worker(tmp_path) as worker, Client(grpc_address(worker)) as client:
        index = {
            e["name"]: e for e in json.loads(fetch(worker, "http", "/v2/repository/index", {})[1])
        }
        assert index["good"]["state"] == "READY"
        assert "not UTF-8" in index["odd\ufffd"]["reason"]
        assert client.repository_index()


def test_repository_without_bundles_says_what_it_looked_for(tmp_path: Path) -> None:
    """An empty repository, or one that is a bundle itself, is not ready and says why."""
    bundle = write_scale(tmp_path)
    command = [
        sys.executable, "-m", "hloserve", "serve", str(bundle),
        "--http-port", "0", "--grpc-port", "0", "--admin-port", "0",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "startup_done" in line:
                break
        server.terminate()
        server.stderr.read()
        assert server.wait(30) == 0
    hints = [json.loads(line)["hint"] for line in lines if "no_bundles" in line]
    assert len(hints) == 1
    assert "is a bundle itself" in hints[0]


def test_settings_for_names_that_no_bundle_has_are_told_once_at_the_end_of_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not those of a bundle that fails, whose name is right, nor a wildcard."""
    write_scale(tmp_path)
    (write_scale(tmp_path, "broken") / "manifest.yaml").write_text("{")
    models = {name: {"weight": 2.0} for name in ("scale", "broken", "sclae", "later")}

    with running_worker(
        tmp_path,
        settings={"scheduler.models": models, "metas.exposed_models": ["*", "never"]},
    ):
        told = [r for r in caplog.records if "settings_without_model" in r.getMessage()]

    fields = [vars(record)["hloserve_fields"] for record in told]
    assert [
        ("scheduler.models", ["later", "sclae"]),
        ("metas.exposed_models", ["never"]),
    ] == [(each["setting"], each["models"]) for each in fields]


def test_server_runs_with_its_standard_streams_closed(tmp_path: Path) -> None:
    """A parent that closed stdin and stdout does not abort the server."""
    write_scale(tmp_path)
    ports = tmp_path / "ports.json"
    script = (
        f"exec {sys.executable} -m hloserve serve {tmp_path} --http-port 0 --grpc-port 0"
        f" --admin-port 0 --ports-file {ports} <&- >&-"
    )
    with subprocess.Popen(["/bin/sh", "-c", script], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "startup_done" in line:
                break
        assert json.loads(ports.read_text())["grpc"] > 0
        server.terminate()
        server.stderr.read()
        assert server.wait(30) == 0
