"""Real server processes for integration tests, and direct runs to compare their answers with.

What lives here: starting `hloserve` as a user does, waiting until it is ready, stopping it; and
running a bundle's program on the device without a server. What does not: clients
(`support.demo_clients`).
"""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hloserve
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend

__all__ = ["HLOSERVE", "ServerProcess", "run_program", "running"]

HLOSERVE = str(Path(sys.executable).with_name("hloserve"))

_STOP_S = 20.0


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready.

    Attributes:
        http: host and port of REST; `grpc` and `admin` likewise.
        process: the process, for signals.
        output_file: what it writes to standard output.
        log_file: what it writes to standard error.
    """

    http: str
    grpc: str
    admin: str
    process: subprocess.Popen[bytes]
    output_file: Path
    log_file: Path

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self.output_file.read_text("utf-8")


@contextmanager
def running(directory: Path, *arguments: str, start_s: float = 50.0) -> Iterator[ServerProcess]:
    """Run `hloserve ARGUMENTS` on ports of the system's choice; it must end well, too.

    Args:
        directory: for its output and the ports file; empty.
        arguments: command and what belongs to it.
        start_s: how long it may take to be ready.
    """
    ports_file, output, log = (directory / name for name in ("ports.json", "output", "log"))
    ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
    with output.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            [HLOSERVE, *arguments, *ports, "--ports-file", str(ports_file)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    try:
        addresses = _wait_until_ready(process, ports_file, log, start_s)
        yield ServerProcess(**addresses, process=process, output_file=output, log_file=log)
        process.terminate()
        status = process.wait(_STOP_S)
        assert status == 0, f"exit status {status} after SIGTERM:\n{log.read_text()}"
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(
    process: subprocess.Popen[bytes], ports_file: Path, log: Path, start_s: float
) -> dict[str, str]:
    deadline = time.monotonic() + start_s
    pause = threading.Event()
    addresses: dict[str, str] = {}
    while time.monotonic() < deadline and process.poll() is None:
        if not addresses and ports_file.exists():
            ports: Mapping[str, int] = json.loads(ports_file.read_text())
            addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        if addresses and _is_ready(addresses["http"]):
            return addresses
        pause.wait(0.05)
    raise AssertionError(f"not ready in {start_s} s, exit {process.poll()}:\n{log.read_text()}")


def _is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/v2/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def run_program(bundle: Path, file: str, inputs: Sequence[Array]) -> dict[str, Any]:
    """Run one program of a bundle on the CPU, without a server.

    Args:
        bundle: its directory.
        file: the program's file name.
        inputs: in the order of the manifest, of the program's batch size.
    """
    manifest = hloserve.load_manifest(bundle)
    backend = XlaBackend("cpu")
    program = backend.read_program((bundle / file).read_bytes(), file)
    executable = backend.compile(program, manifest.name)
    weights = list(hloserve.read_bundle_weights(bundle).values())
    arguments = backend.to_device([*inputs, *weights])
    outputs = backend.execute(executable, arguments)
    arrays = [array.copy() for array in backend.to_host(outputs)]
    backend.free([*arguments, *outputs])
    names = (spec.name for spec in manifest.executable_outputs)
    return dict(zip(names, arrays, strict=True))
