"""Peers that are slow, silent or gone, by the thousand, at a real server.

`STRESS_S` sets the seconds of what goes on for a while; the default keeps the suite quick.
"""

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.grpc_frames import DATA, END_HEADERS, HEADERS, frame, hpack, request, request_fields
from support.hostile_peers import (
    INFER,
    PATIENCE_S,
    Bystander,
    affine_server,
    attacked,
    connected,
    forget_peak,
    greet,
    hang_up,
    infer_message,
    metric,
    open_files,
    peak_mib,
    resident_mib,
    rest_request,
    serve_bystander,
    wait_until,
)
from support.server_process import ServerProcess

SECONDS = float(os.environ.get("STRESS_S", "2"))
IDLE = 5_000

pytestmark = [pytest.mark.stress, pytest.mark.xla, pytest.mark.timeout(10 * SECONDS + 120)]


@pytest.fixture(name="server", scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server with the affine model, that was called once, begun as from a common shell."""
    directory: Path = tmp_path_factory.mktemp("patient")
    shell = ["sh", "-c", 'ulimit -S -n 1024; exec "$@"', "sh"]
    with affine_server(directory, sizes=(1, 64), prefix=shell) as server:
        yield server


@pytest.fixture(name="many_files")
def allow_many_files() -> Iterator[int]:
    """Let this process have as many sockets as the system allows; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_five_thousand_idle_connections_cost_little(server: ServerProcess, many_files: int) -> None:
    """Those that said nothing yet, those that were answered, and those of gRPC that greeted."""
    wanted = min(IDLE, many_files - 500)
    files, before_mib = open_files(server), resident_mib(server)
    openings = [
        ("http", b""),
        ("http", b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("grpc", None),
    ]
    with contextlib.ExitStack() as stack:
        for number in range(wanted):
            port, opening = openings[number % len(openings)]
            peer = stack.enter_context(connected(server, port))
            if opening is None:
                greet(peer)
            else:
                peer.sendall(opening)
        wait_until(lambda: open_files(server) >= wanted, "connections are not accepted")
        each_kib = (resident_mib(server) - before_mib) * 1024 / wanted
        worst_s = serve_bystander(server)
    print(f"{each_kib:.1f} KiB each, worst {worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert each_kib < 40
    assert worst_s < PATIENCE_S
    wait_until(
        lambda: open_files(server) <= files + 5, "connections of peers that left are not closed"
    )


def test_slow_readers_hold_a_bounded_number_of_bytes(server: ServerProcess) -> None:
    """Peers that ask for ever and take nothing stop being read, or are refused."""
    forget_peak(server)
    before_mib = resident_mib(server)
    rest = rest_request(2000)
    no_credit = b"\0\4" + bytes(4)
    calls = b"".join(request(s, infer_message(5000), INFER) for s in range(1, 4001, 2))

    def ask(port: str, data: bytes) -> None:
        with contextlib.suppress(OSError), connected(server, port) as peer:
            if port == "grpc":
                greet(peer, no_credit)
            for _ in range(50):
                peer.sendall(data)

    peers = [threading.Thread(target=ask, args=("http", rest * 20)) for _ in range(4)]
    peers += [threading.Thread(target=ask, args=("grpc", calls)) for _ in range(2)]
    bystander = Bystander(server)
    bystander.start()
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
    bystander.stop()
    grown_mib = peak_mib(server) - before_mib
    print(f"+{grown_mib:.0f} MiB, worst {bystander.worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert grown_mib < 400
    assert bystander.worst_s < PATIENCE_S


def test_slow_writers_hold_what_they_have_sent(server: ServerProcess) -> None:
    """What a request announces costs nothing until it comes."""
    forget_peak(server)
    before_mib = resident_mib(server)
    announced = (400 << 20).to_bytes(4, "big")
    head = frame(HEADERS, END_HEADERS, 1, hpack(request_fields(INFER)))
    large = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 400000000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            grpc, rest = (stack.enter_context(connected(server, port)) for port in ("grpc", "http"))
            greet(grpc)
            grpc.sendall(head + frame(DATA, 0, 1, b"\0" + announced + bytes(1000)))
            rest.sendall(large + bytes(1000))
        bystander = Bystander(server)
        bystander.start()
        bystander.wait_served()
        bystander.stop()
        grown_mib = peak_mib(server) - before_mib
    print(f"+{grown_mib:.0f} MiB, worst {bystander.worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert grown_mib < 150
    assert bystander.worst_s < PATIENCE_S


def _leave_with_calls(peer: socket.socket) -> None:
    greet(peer)
    peer.sendall(b"".join(request(s, infer_message(3), INFER) for s in range(1, 20, 2)))
    hang_up(peer)
    raise ConnectionError("left")


def _leave_with_requests(peer: socket.socket) -> None:
    peer.sendall(rest_request(3) * 3)
    hang_up(peer)
    raise ConnectionError("left")


@pytest.mark.parametrize(
    ("port", "leave"), [("grpc", _leave_with_calls), ("http", _leave_with_requests)]
)
def test_departures_with_requests_in_flight_leave_no_trace(
    server: ServerProcess, port: str, leave: Callable[[socket.socket], None]
) -> None:
    """Thousands of them: nobody else notices, and neither memory nor descriptors are left."""
    departures = [0]

    def count(peer: socket.socket) -> None:
        departures[0] += 1
        leave(peer)

    with attacked(server, port, count, SECONDS / 2):
        pass
    files, before_mib = open_files(server), resident_mib(server)
    with attacked(server, port, count, SECONDS) as bystander:
        bystander.stop()
    wait_until(lambda: metric(server, "worker_inflight_requests") == 0, "requests stay in flight")
    wait_until(lambda: open_files(server) <= files + 5, "connections stay open")
    grown_mib = resident_mib(server) - before_mib
    print(f"{departures[0]} departures, +{grown_mib:.1f} MiB, worst {bystander.worst_s:.3f} s")  # noqa: T201  # what a long run is for

    assert departures[0] > 100
    assert grown_mib < 30
    assert bystander.worst_s < PATIENCE_S


def test_a_server_out_of_descriptors_serves_those_it_has(tmp_path: Path) -> None:
    """Connections beyond them are turned away or wait, and find room when others leave."""
    limit = ["sh", "-c", 'ulimit -n 120; exec "$@"', "sh"]
    with affine_server(tmp_path, sizes=(1,), prefix=limit) as server:
        bystander = Bystander(server)
        bystander.start()
        bystander.wait_served()
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    stack.enter_context(connected(server, "grpc"))
            seen = bystander.requests
            wait_until(
                lambda: bystander.requests > seen + 2, "those that are connected are not served"
            )
            bystander.stop()
        wait_until(lambda: open_files(server) < 60, "connections of peers that left are not closed")
        serve_bystander(server)
