"""Large uploads to a real server whose budget of bytes in hand is small.

`STRESS_S` sets the seconds of what goes on for a while; the default keeps the suite quick.
"""

import contextlib
import gzip
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.grpc_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    frame,
    hpack,
    prefixed,
    request_fields,
)
from support.hostile_peers import (
    INFER,
    PATIENCE_S,
    Bystander,
    affine_server,
    connected,
    forget_peak,
    greet,
    metric,
    peak_mib,
    resident_mib,
    serve_bystander,
    wait_until,
)
from support.models_bundles import affine
from support.server_process import ServerProcess

from hloserve import Client
from hloserve.core.errors import Overloaded

SECONDS = float(os.environ.get("STRESS_S", "2"))
BUDGET_MIB = 64
MESSAGE_MIB = 16
PROOF_BYTES = 100_000
"""What an upload must bring before its announcement counts, and more."""
ROWS = MESSAGE_MIB << 16
"""Of four FP32."""

pytestmark = [pytest.mark.stress, pytest.mark.xla, pytest.mark.timeout(10 * SECONDS + 120)]


@pytest.fixture(name="server", scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server with the affine model, which was called once."""
    directory: Path = tmp_path_factory.mktemp("bytes")
    config = directory / "node.yaml"
    config.write_text(f"endpoints: {{max_request_bytes_in_hand: {BUDGET_MIB}MiB}}\n")
    with affine_server(directory, "--config", str(config), sizes=(1, 8192)) as server:
        yield server


def _held(server: ServerProcess) -> float:
    """Bytes in hand, by the server's own count."""
    return metric(server, "worker_request_bytes_in_hand")


def _upload_grpc(server: ServerProcess) -> str:
    x = np.ones((ROWS, 4), np.float32)
    with Client(server.grpc, timeout_s=60) as client:
        try:
            y = client.infer("affine", {"x": x})["y"]
        except Overloaded:
            return "refused"
    np.testing.assert_allclose(affine(x[:1]), y[:1], rtol=1e-5)
    return "served"


def _upload_rest(server: ServerProcess) -> str:
    x = np.ones((ROWS, 4), np.float32)
    binary = {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": binary}
    output = {"name": "y", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    rest = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)
    length = {"Inference-Header-Content-Length": str(len(head))}
    with contextlib.closing(rest):
        rest.request("POST", "/v2/models/affine/infer", head + x.tobytes(), length)
        answer = rest.getresponse()
        text = answer.read()
    if answer.status == 429:
        assert answer.headers["Retry-After"] == "1"
        assert b"try again later" in text
        return "refused"
    assert answer.status == 200
    return "served"


def test_more_large_requests_than_memory_are_served_in_turn(server: ServerProcess) -> None:
    """Sixteen at once of what four have room for: they wait, and memory stays bounded."""
    forget_peak(server)
    before_mib = resident_mib(server)
    bystander = Bystander(server)
    bystander.start()
    with ThreadPoolExecutor(16) as pool:
        uploads = [pool.submit(_upload_grpc, server) for _ in range(8)]
        uploads += [pool.submit(_upload_rest, server) for _ in range(8)]
        outcomes = [upload.result() for upload in uploads]
    bystander.stop()
    grown_mib = peak_mib(server) - before_mib
    print(f"{outcomes.count('served')} served, +{grown_mib:.0f} MiB, {bystander.worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert outcomes.count("served") >= 4
    assert grown_mib < 8 * BUDGET_MIB  # answers, and what the device works on, are as large again
    assert bystander.worst_s < PATIENCE_S
    wait_until(lambda: _held(server) == 0, "bytes stay counted")


def _begin_rest(peer: socket.socket, size: int) -> None:
    head = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
    peer.sendall(head.encode() + bytes(PROOF_BYTES))


def _begin_grpc(peer: socket.socket, size: int) -> None:
    greet(peer)
    head = frame(HEADERS, END_HEADERS, 1, hpack(request_fields(INFER)))
    peer.sendall(head + frame(DATA, 0, 1, b"\0" + size.to_bytes(4, "big")))
    peer.sendall(frame(DATA, 0, 1, bytes(10_000)) * (PROOF_BYTES // 10_000))


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_uploads_that_do_not_move_keep_nobody_out(server: ServerProcess, port: str) -> None:
    """They hold all there is to hold, until somebody else needs it."""
    begin = _begin_rest if port == "http" else _begin_grpc
    with contextlib.ExitStack() as stack:
        for _ in range(7):
            peer = stack.enter_context(connected(server, port))
            begin(peer, BUDGET_MIB << 18)
        wait_until(lambda: _held(server) >= BUDGET_MIB << 20, "announcements are not counted")
        outcomes = []
        until = time.monotonic() + PATIENCE_S
        while "served" not in outcomes:
            assert time.monotonic() < until, "a large request is never served"
            outcomes.append(_upload_grpc(server) if port == "http" else _upload_rest(server))
        worst_s = serve_bystander(server)
    print(f"{outcomes}, worst {worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert worst_s < PATIENCE_S
    wait_until(lambda: _held(server) == 0, "bytes stay counted")


def test_what_could_be_decompressed_is_counted(server: ServerProcess) -> None:
    """A message that grows over the budget is refused on the way; the others go on."""
    forget_peak(server)
    before_mib = resident_mib(server)
    packed = gzip.compress(bytes(BUDGET_MIB << 21), 1)
    fields = [*request_fields(INFER), (b"grpc-encoding", b"gzip")]
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            grpc, rest = (stack.enter_context(connected(server, port)) for port in ("grpc", "http"))
            greet(grpc)
            grpc.sendall(frame(HEADERS, END_HEADERS, 1, hpack(fields)))
            message = prefixed(packed, 1)
            for at in range(0, len(message), 16_000):
                grpc.sendall(frame(DATA, 0, 1, message[at : at + 16_000]))
            grpc.sendall(frame(DATA, END_STREAM, 1))
            head = "POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"
            rest.sendall(f"{head}Content-Length: {len(packed)}\r\n\r\n".encode() + packed)
            rest.settimeout(30)
            assert rest.recv(12) == b"HTTP/1.1 429"
        worst_s = serve_bystander(server)
    grown_mib = peak_mib(server) - before_mib
    print(f"+{grown_mib:.0f} MiB, worst {worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert grown_mib < 4 * BUDGET_MIB
    wait_until(lambda: _held(server) == 0, "bytes stay counted")
