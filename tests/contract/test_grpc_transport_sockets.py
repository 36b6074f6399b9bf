"""The gRPC transport on real sockets with peers that grpcio cannot be: raw, broken, over TLS."""

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.grpc_frames import (
    DATA,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    goaway_code,
    request,
)
from support.grpc_server import LOOPS, RunningServer, running_server

from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import RpcEnded
from hloserve.wire.grpc_limits import GrpcLimits

_MIB = 1 << 20


@pytest.fixture(params=list(LOOPS))
def loop_kind(request: pytest.FixtureRequest) -> str:
    """The event loop that the server runs on."""
    return str(request.param)


@pytest.fixture
def server(loop_kind: str) -> Iterator[RunningServer]:
    """A server with a small cap for unsent replies."""
    with running_server(loop_kind, limits=GrpcLimits(max_unsent_bytes=4 * _MIB)) as running:
        yield running


def _connect(server: RunningServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=20)


def _read_all(peer: socket.socket) -> bytes:
    data = bytearray()
    while chunk := peer.recv(65_536):
        data += chunk
    return bytes(data)


def _call(peer: socket.socket, client: GrpcClientConnection, message: bytes) -> RpcEnded:
    """One call over our own client connection."""
    client.start("/test.Service/Echo", message)
    while True:
        peer.sendall(client.take_output())
        for event in client.receive(peer.recv(1 << 20)):
            if isinstance(event, RpcEnded):
                return event


def _send_until_stuck(peer: socket.socket, body: bytes) -> int:
    """Send calls until the server reads no more; gives the bytes."""
    for count in range(1_000_000):
        try:
            peer.sendall(request(2 * count + 1, body))
        except TimeoutError:
            return count * len(body)
    raise AssertionError("the server reads without end")


def _still_serves(server: RunningServer) -> None:
    with _connect(server) as peer:
        ended = _call(peer, GrpcClientConnection(server.address), b"still here")
    assert ended.message == b"still here"


def test_our_own_client_is_served(server: RunningServer) -> None:
    """The two ends of this repository understand each other over TCP."""
    with _connect(server) as peer:
        client = GrpcClientConnection(server.address)
        for nbytes in (0, 10, 100_000, 10 * _MIB):
            assert _call(peer, client, bytes(nbytes)).message == bytes(nbytes)


def test_http1_on_this_port_is_told_so(server: RunningServer) -> None:
    """A browser on the wrong port reads where it is; the connection is closed."""
    with _connect(server) as peer:
        peer.sendall(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n")

        answer = _read_all(peer)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"gRPC" in answer


def test_a_flood_on_a_socket_ends_with_goaway(server: RunningServer) -> None:
    """A ping flood closes its own connection and no other."""
    with _connect(server) as peer:
        peer.sendall(PREFACE + frame(SETTINGS) + frame(6, 0, 0, bytes(8)) * 5_000)
        answer = _read_all(peer)

    assert goaway_code(answer) == 11
    _still_serves(server)


@pytest.mark.parametrize("abort", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        PREFACE[:10],
        PREFACE + frame(SETTINGS),
        PREFACE + frame(SETTINGS) + request(1, None),
        PREFACE + frame(SETTINGS) + request(1, None) + frame(DATA, 0, 1, b"\0\0\0\1\0half"),
        PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, b"")[:7],
        PREFACE + frame(SETTINGS) + request(1, b"x") + request(3, b"x" * 1000),
    ],
    ids=["nothing", "half a preface", "greeting", "headers", "half a message", "cut", "calls"],
)
def test_a_peer_may_vanish_at_any_point(server: RunningServer, data: bytes, abort: bool) -> None:
    """Whatever had been sent, the server forgets the connection and goes on."""
    with _connect(server) as peer:
        peer.sendall(data)
        if abort:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _still_serves(server)

    server.begin(server.server.drain(20)).result(20)
    assert server.on_loop(lambda: server.server.connections) == 0


def test_a_client_that_does_not_read_holds_a_bounded_amount(server: RunningServer) -> None:
    """Replies to a client that never reads stop piling up; others are served meanwhile."""
    credit = (2**31 - 1 - 65_535).to_bytes(4, "big")
    settings = frame(SETTINGS, 0, 0, b"\0\4" + (2**31 - 1).to_bytes(4, "big"))
    body = bytes(16_000)
    with _connect(server) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        peer.sendall(PREFACE + settings + frame(WINDOW_UPDATE, 0, 0, credit))
        peer.settimeout(2)

        sent = _send_until_stuck(peer, body)

        assert sent < 64 * _MIB
        _still_serves(server)


def test_a_handler_is_cancelled_when_its_peer_vanishes(server: RunningServer) -> None:
    """The end of the connection reaches `on_cancel`."""
    with _connect(server) as peer:
        peer.sendall(PREFACE + frame(SETTINGS) + request(1, b"x", path=b"/test.Service/Hold"))
        assert server.service.has_held.wait(20)

    assert server.service.has_cancelled.wait(20)
    assert server.service.cancelled == server.service.held


def test_grpc_over_tls(loop_kind: str, certificate: tuple[Path, Path]) -> None:
    """A server context is all that TLS needs; ALPN says h2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    trusted = certificate[0].read_bytes()
    with running_server(loop_kind, tls=context) as server:
        credentials = grpc.ssl_channel_credentials(trusted)
        with grpc.secure_channel(server.address, credentials) as channel:
            echo = channel.unary_unary("/test.Service/Echo")
            for nbytes in (0, 10, 3 * _MIB):
                assert echo(bytes(nbytes), timeout=20) == bytes(nbytes)
        own = ssl.create_default_context(cadata=trusted.decode())
        own.set_alpn_protocols(["h2"])
        with own.wrap_socket(_connect(server), server_hostname="127.0.0.1") as peer:
            assert peer.selected_alpn_protocol() == "h2"
            client = GrpcClientConnection(server.address, scheme="https")
            assert _call(peer, client, bytes(100_000)).message == bytes(100_000)
