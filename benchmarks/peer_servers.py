"""Other model servers with the same small MLP, each in a virtual environment of its own.

What lives here: their versions, their models, and how they are started. What does not: the load
(`benchmarks.peers`). The environments are made by pip from PyPI, some 370 MB for Triton's, whose
binary comes in nvidia-pytriton's wheel; nothing is installed into this project's own.

All weights are those of `benchmarks.mlp`, and all servers listen on loopback alone.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from benchmarks.processes import Served

__all__ = ["PINS", "STARTERS", "environment"]

PINS: Mapping[str, tuple[str, ...]] = {
    "triton": ("nvidia-pytriton==0.7.0", "numpy==1.26.4"),
    "mlserver": ("mlserver==1.7.1",),
    "mosec": ("mosec==0.9.8", "numpy==2.3.3"),
}
"""What each environment holds."""

_READY_S = 60.0

_LAYERS = """
g = np.random.default_rng(0)
W1 = g.standard_normal((64, 64)).astype("float32") / 8
W2 = g.standard_normal((64, 10)).astype("float32") / 8
"""

_TRITON_MODEL = f"""
import numpy as np
import triton_python_backend_utils as pb
{_LAYERS}
class TritonPythonModel:
    def execute(self, requests):
        rows = [pb.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        y = np.tanh(np.concatenate(rows) @ W1) @ W2
        responses, at = [], 0
        for x in rows:
            responses.append(pb.InferenceResponse([pb.Tensor("y", y[at : at + len(x)])]))
            at += len(x)
        return responses
"""

_TRITON_CONFIG = """
name: "mlp"
backend: "python"
max_batch_size: 64
input [{ name: "x" data_type: TYPE_FP32 dims: [64] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [10] }]
dynamic_batching { max_queue_delay_microseconds: 0 }
instance_group [{ kind: KIND_CPU count: 1 }]
"""

_MLSERVER_MODEL = f"""
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
{_LAYERS}
class Mlp(MLModel):
    async def predict(self, payload):
        y = np.tanh(NumpyCodec.decode_input(payload.inputs[0]) @ W1) @ W2
        outputs = [NumpyCodec.encode_output("y", y)]
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=outputs)
"""

_MOSEC_MODEL = f"""
import numpy as np
from mosec import Server, Worker
{_LAYERS}
class Mlp(Worker):
    def forward(self, data):
        x = np.array([d["inputs"][0]["data"] for d in data], "float32")
        return [{{"outputs": [{{"data": y}}]}} for y in (np.tanh(x @ W1) @ W2).tolist()]

if __name__ == "__main__":
    server = Server()
    server.append_worker(Mlp, num=1, max_batch_size=64, max_wait_time=1)
    server.run()
"""


def environment(root: Path, peer: str) -> Path:
    """The virtual environment of a peer below `root`; made when it is not there."""
    home = root / peer
    done = home / ".done"
    pins = "\n".join(PINS[peer])
    if not done.exists() or done.read_text() != pins:
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", *PINS[peer]], check=True)
        done.write_text(pins)
    return home


@contextmanager
def triton(home: Path, directory: Path) -> Iterator[Served]:
    """Triton's own binary with its Python backend, as its users run it, without a delay.

    Its stub must find the interpreter's libpython and the environment's packages by PATH: with
    PYTHONPATH set, its answers are empty.
    """
    packages = next((home / "lib").glob("python3.*/site-packages"))
    install = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    backends = directory / "backends"
    shutil.copytree(install / "backends", backends)
    stub = install / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, backends / "python")
    model = directory / "models" / "mlp"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(_TRITON_CONFIG)
    (model / "1" / "model.py").write_text(_TRITON_MODEL)
    libraries = (sysconfig.get_config_var("LIBDIR"), str(packages / "nvidia_pytriton.libs"))
    http, grpc, metrics = _free_ports(3)
    command: list[str | Path] = [
        install / "bin" / "tritonserver",
        "--model-repository", directory / "models", "--backend-directory", backends,
        "--http-address", "127.0.0.1", "--http-port", str(http),
        "--grpc-address", "127.0.0.1", "--grpc-port", str(grpc), "--metrics-port", str(metrics),
    ]  # fmt: skip
    settings = {"LD_LIBRARY_PATH": ":".join(libraries)}
    with _running(home, directory, command, settings) as pid:
        _wait_ready(http, "/v2/models/mlp/ready")
        yield Served(pid, {"http": http, "grpc": grpc})


@contextmanager
def mlserver(home: Path, directory: Path) -> Iterator[Served]:
    """MLServer in one process and without batching, which is its best here."""
    http, grpc, metrics = _free_ports(3)
    settings = {
        "host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics,
        "parallel_workers": 0, "debug": False,
    }  # fmt: skip
    (directory / "settings.json").write_text(json.dumps(settings))
    model = {"name": "mlp", "implementation": "mlp_model.Mlp"}
    (directory / "model-settings.json").write_text(json.dumps(model))
    (directory / "mlp_model.py").write_text(_MLSERVER_MODEL)
    with _running(home, directory, [home / "bin" / "mlserver", "start", "."], {}) as pid:
        _wait_ready(http, "/v2/models/mlp/ready")
        yield Served(pid, {"http": http, "grpc": grpc})


@contextmanager
def mosec(home: Path, directory: Path) -> Iterator[Served]:
    """Mosec's front in Rust, with one worker; its protocol is JSON of one's own."""
    (http,) = _free_ports(1)
    (directory / "mlp.py").write_text(_MOSEC_MODEL)
    address = ("--address", "127.0.0.1", "--port", str(http))
    command: list[str | Path] = [home / "bin" / "python", "mlp.py", *address]
    with _running(home, directory, command, {}) as pid:
        _wait_ready(http, "/metrics")
        yield Served(pid, {"http": http})


Starter: TypeAlias = Callable[[Path, Path], AbstractContextManager[Served]]
STARTERS: Mapping[str, Starter] = {"triton": triton, "mlserver": mlserver, "mosec": mosec}
"""What starts a peer: its environment and an empty directory in, a context of `Served` out."""


@contextmanager
def _running(
    home: Path, directory: Path, command: list[str | Path], settings: Mapping[str, str]
) -> Iterator[int]:
    """Run a server in a directory; gives its process id."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{home / 'bin'}:{kept['PATH']}"
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=directory, env=kept | {"PATH": path, **settings}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield process.pid
        except TimeoutError:
            sys.stderr.write((directory / "log").read_text()[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_ports(count: int) -> list[int]:
    """Ports for servers that cannot pick their own."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_ready(port: int, path: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(f"the server on port {port} was not ready after {_READY_S:g} s")
