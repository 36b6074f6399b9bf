"""A worker process whose device hangs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hanging_worker import TIMEOUT_S
from support.server_worker import rows, write_scale

from hloserve import Client
from hloserve.core.errors import Unavailable


@pytest.fixture
def process(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """It loads one model, which runs one row at a time."""
    write_scale(tmp_path / "models", sizes=[1])
    command = [
        sys.executable, "-m", "support.hanging_worker", str(tmp_path / "models"),
        str(tmp_path / "ports.json"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_worker_whose_device_hangs_sends_its_callers_elsewhere_and_ends_with_status_1(
    tmp_path: Path, process: "subprocess.Popen[str]"
) -> None:
    """Here one with two rows, of which one runs and one waits. A supervisor starts it again."""
    assert process.stderr is not None
    started = any(json.loads(line)["event"] == "startup_done" for line in process.stderr)
    assert started, "the worker ended"
    ports = json.loads((tmp_path / "ports.json").read_text())
    with Client(f"127.0.0.1:{ports['grpc']}") as client:
        assert client.infer("scale", {"x": rows(3)})["y"][0, 0] == 6
        with pytest.raises(Unavailable, match="the device is lost"):
            client.infer("scale", {"x": rows(-1, -1)})
    log = [json.loads(line) for line in process.stderr]

    assert process.wait() == 1
    (stuck,) = [line for line in log if line["event"] == "execution_stuck"]
    assert ("critical", "scale", 1, 1) == tuple(
        stuck[field] for field in ("level", "model", "size", "waiting")
    )
    assert stuck["seconds"] >= TIMEOUT_S
    assert {"status": 1}.items() <= log[-1].items(), "the last line says that it has stopped"
