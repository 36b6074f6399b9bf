"""A real server, peers of it that mean harm, and a bystander who must not notice them."""

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from support.grpc_frames import ACK, PREFACE, SETTINGS, frame
from support.models_bundles import affine, write_affine
from support.server_process import ServerProcess, running_server

from hloserve import Client
from hloserve.core.errors import Overloaded
from hloserve.core.requests import InferRequest
from hloserve.wire import v2_protobuf

INFER = b"/inference.GRPCInferenceService/ModelInfer"
PATIENCE_S = 30.0
"""Nobody waits longer on a machine that the attackers share; what it excludes is a stalled loop."""
Attack: TypeAlias = Callable[[socket.socket], object]

_REST_BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
).encode()


def infer_message(rows: int = 1) -> bytes:
    """A ModelInferRequest for the affine model."""
    return v2_protobuf.encode_infer_request(
        InferRequest("affine", {"x": np.ones((rows, 4), np.float32)})
    )


def rest_request(rows: int = 1, *headers: str, body: bytes | None = None) -> bytes:
    """The same over REST."""
    if body is None:
        tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": [1] * rows * 4}
        body = json.dumps({"inputs": [tensor]}).encode()
    lines = ["POST /v2/models/affine/infer HTTP/1.1", "Host: a", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Bystander(threading.Thread):
    """Asks over gRPC and REST, one request after the other, until told to stop.

    Attributes:
        requests: answers that came and were right.
        worst_s: how long the slowest took.
        problem: what went wrong.
    """

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(name="bystander", daemon=True)
        self._server = server
        self._is_over = threading.Event()
        self.requests, self.worst_s = 0, 0.0
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Ask and check."""
        rest = http.client.HTTPConnection("127.0.0.1", self._server.ports["http"], timeout=60)
        try:
            with Client(self._server.grpc, timeout_s=60) as client, contextlib.closing(rest):
                while not self._is_over.is_set():
                    self._time(self._ask_grpc, client)
                    self._time(self._ask_rest, rest)
        except BaseException as problem:  # noqa: BLE001  # the test reports it
            self.problem = problem

    def wait_served(self) -> None:
        """Wait for the first answers."""
        deadline = time.monotonic() + 30
        while self.requests < 2 and self.problem is None and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert self.requests >= 2, f"nobody is served: {self.problem!r}"

    def stop(self) -> None:
        """Stop asking, and check that every answer came and was right."""
        self._is_over.set()
        self.join()
        if self.problem is not None:
            raise self.problem

    def _time(self, ask: Callable[[object], None], peer: object) -> None:
        began_s = time.monotonic()
        while True:  # a queue that is full says so, and has room a moment later
            try:
                ask(peer)
                break
            except Overloaded:
                assert time.monotonic() < began_s + 30, "the queue stays full"
        self.worst_s = max(self.worst_s, time.monotonic() - began_s)
        self.requests += 1

    def _ask_grpc(self, client: object) -> None:
        assert isinstance(client, Client)
        x = np.full((1, 4), self.requests % 100, np.float32)
        np.testing.assert_allclose(affine(x), client.infer("affine", {"x": x})["y"], rtol=1e-5)

    def _ask_rest(self, rest: object) -> None:
        assert isinstance(rest, http.client.HTTPConnection)
        rest.request("POST", "/v2/models/affine/infer", _REST_BODY)
        answer = rest.getresponse()
        text = answer.read()
        if answer.status == 429:
            raise Overloaded(text.decode())
        assert answer.status == 200, text


def serve_bystander(server: ServerProcess) -> float:
    """Let a bystander be served; returns its longest wait."""
    bystander = Bystander(server)
    bystander.start()
    bystander.wait_served()
    bystander.stop()
    return bystander.worst_s


@contextlib.contextmanager
def affine_server(
    directory: Path, *flags: str, sizes: Sequence[int], prefix: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run a real server with the affine model, and have it called once.

    Args:
        directory: empty; for the model, too.
        flags: further flags of `hloserve serve`.
        sizes: compiled batch sizes.
        prefix: a command that runs it, given its words.
    """
    repository = directory / "repository"
    write_affine(repository, sizes=tuple(sizes))
    with running_server(directory, "serve", str(repository), *flags, prefix=prefix) as server:
        serve_bystander(server)
        yield server


@contextlib.contextmanager
def attacked(
    server: ServerProcess, port: str, attack: Attack, seconds: float, connections: int = 3
) -> Iterator[Bystander]:
    """Attack a port on several connections, each made anew when it is cut, beside a bystander.

    Args:
        server: whom.
        port: the name of its port.
        attack: called again and again with a connected socket; raises OSError when it is cut.
        seconds: for how long; then all is cut.
        connections: how many at once.
    """
    until = time.monotonic() + seconds
    peers: set[socket.socket] = set()

    def keep_attacking() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), connected(server, port) as peer:
                peers.add(peer)
                while time.monotonic() < until:
                    attack(peer)

    bystander = Bystander(server)
    bystander.start()
    attackers = [threading.Thread(target=keep_attacking, daemon=True) for _ in range(connections)]
    for attacker in attackers:
        attacker.start()
    try:
        for attacker in attackers:
            attacker.join(max(until - time.monotonic(), 0))
        while any(attacker.is_alive() for attacker in attackers):
            for peer in tuple(peers):
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
            for attacker in attackers:
                attacker.join(0.1)
        yield bystander
    finally:
        bystander.stop()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; `what` says what is wrong if it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what


def connected(server: ServerProcess, port: str) -> socket.socket:
    """A socket to one of the ports; its calls end after a second."""
    peer = socket.create_connection(("127.0.0.1", server.ports[port]), timeout=30)
    peer.settimeout(1)
    return peer


def greet(peer: socket.socket, settings: bytes = b"") -> None:
    """Begin HTTP/2."""
    peer.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK))


def hang_up(peer: socket.socket) -> None:
    """Close with a reset: whatever comes is refused at once."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def throw_away(peer: socket.socket) -> None:
    """Take what has come and forget it; raises ConnectionError at the end of the stream."""
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while peer.recv(1 << 20):
            pass
        raise ConnectionError("the server has closed")
    peer.settimeout(1)


def peak_mib(server: ServerProcess) -> float:
    """The most memory that the server ever had."""
    return _status_mib(server, "VmHWM")


def resident_mib(server: ServerProcess) -> float:
    """The memory that the server has."""
    return _status_mib(server, "VmRSS")


def open_files(server: ServerProcess) -> int:
    """Descriptors of the server."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def forget_peak(server: ServerProcess) -> None:
    """Let the peak begin anew."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def metric(server: ServerProcess, name: str) -> float:
    """A figure of the server's own, one that has no labels."""
    with urllib.request.urlopen(server.url("/metrics", "admin"), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def _status_mib(server: ServerProcess, field: str) -> float:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 1024
