"""Many clients at once against a real server: every answer right, none lost, none doubled.

`STRESS_S` sets the seconds; the default keeps the suite quick, and a release is tried with
60 and more.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.models_bundles import affine, write_affine
from support.server_process import ServerProcess, running_server

from hloserve import Client

SECONDS = float(os.environ.get("STRESS_S", "6"))
CLIENTS = 64

pytestmark = [pytest.mark.stress, pytest.mark.xla, pytest.mark.timeout(SECONDS + 120)]


@pytest.fixture(name="server")
def start_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A real server with the affine model at several sizes."""
    write_affine(tmp_path / "repository", sizes=(1, 2, 4, 8))
    with running_server(tmp_path, "serve", str(tmp_path / "repository")) as server:
        yield server


class Caller(threading.Thread):
    """Asks until the time is over, each request different from every other, and checks."""

    def __init__(self, address: str, seed: int, until: float) -> None:
        super().__init__(name=f"caller-{seed}", daemon=True)
        self._address, self._until = address, until
        self._random = random.Random(seed)
        self._generator = np.random.default_rng(seed)
        self.requests = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Ask and check."""
        try:
            with Client(self._address, timeout_s=60) as client:
                while time.monotonic() < self._until:
                    self._ask(client)
        except BaseException as problem:  # noqa: BLE001  # the test reports it
            self.problem = problem

    def _ask(self, client: Client) -> None:
        rows = self._random.choice((0, 1, 1, 1, 2, 3, 5, 8, 13, 21))
        x = self._generator.standard_normal((rows, 4)).astype(np.float32)
        y = client.infer("affine", {"x": x})["y"]
        np.testing.assert_allclose(affine(x), y, rtol=1e-5, atol=1e-5)
        self.requests += 1


def served(server: ServerProcess) -> dict[str, float]:
    """The server's own count of requests, by status."""
    with urllib.request.urlopen(server.url("/metrics", "admin")) as answer:
        lines = answer.read().decode().splitlines()
    prefix = 'worker_requests_total{model="affine",status="'
    return {
        line.removeprefix(prefix).split('"')[0]: float(line.split()[-1])
        for line in lines
        if line.startswith(prefix)
    }


def test_sixty_four_clients_with_random_rows_get_their_own_answers(server: ServerProcess) -> None:
    """Whatever is coalesced, split or padded, each caller gets exactly what it asked for."""
    until = time.monotonic() + SECONDS
    callers = [Caller(server.grpc, seed, until) for seed in range(CLIENTS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert [caller.problem for caller in callers if caller.problem is not None] == []
    assert served(server) == {"OK": sum(caller.requests for caller in callers)}


_VICTIM = """
import sys, threading
import numpy as np
from hloserve import Client
client = Client(sys.argv[1])
print("up", flush=True)
def ask():
    while True:
        client.infer("affine", {"x": np.zeros((5, 4), "f4")})
for _ in range(8):
    threading.Thread(target=ask, daemon=True).start()
threading.Event().wait()
"""


def test_clients_that_are_killed_disturb_nobody(server: ServerProcess) -> None:
    """Processes killed with requests in flight, and half-sent requests, leave no trace."""
    until = time.monotonic() + SECONDS
    callers = [Caller(server.grpc, seed, until) for seed in range(8)]
    for caller in callers:
        caller.start()
    while time.monotonic() < until:
        command = [sys.executable, "-c", _VICTIM, server.grpc]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "up\n"
            _leave_half_a_request(server)
            victim.send_signal(signal.SIGKILL)
    for caller in callers:
        caller.join()

    assert [caller.problem for caller in callers if caller.problem is not None] == []
    deadline = time.monotonic() + 30
    while b"\nworker_inflight_requests 0.0\n" not in _metrics(server):
        assert time.monotonic() < deadline, "requests of dead clients stay in flight"


def _leave_half_a_request(server: ServerProcess) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.ports["http"])) as connection:
            connection.sendall(
                b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{"
            )
        with socket.create_connection(("127.0.0.1", server.ports["grpc"])) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\x10")


def _metrics(server: ServerProcess) -> bytes:
    with urllib.request.urlopen(server.url("/metrics", "admin")) as answer:
        content: bytes = answer.read()
    return content
