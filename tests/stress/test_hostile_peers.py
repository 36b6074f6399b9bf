"""Peers that flood, bomb and talk nonsense to a real server: it serves the others meanwhile.

`STRESS_S` sets the seconds of each attack; the default keeps the suite quick, and a release is
tried with 30 and more.
"""

import gzip
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.grpc_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    hpack,
    prefixed,
    request,
    request_fields,
)
from support.hostile_peers import (
    INFER,
    PATIENCE_S,
    affine_server,
    attacked,
    forget_peak,
    greet,
    hang_up,
    infer_message,
    peak_mib,
    resident_mib,
    rest_request,
    throw_away,
)
from support.server_process import ServerProcess

SECONDS = float(os.environ.get("STRESS_S", "0.4"))
GROWTH_MIB = 600
"""Three connections hold 64 MiB each at most, and two threads unpack 100 MiB, kept twice, each."""

pytestmark = [pytest.mark.stress, pytest.mark.xla, pytest.mark.timeout(30 * SECONDS + 120)]


@pytest.fixture(name="server", scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server with the affine model; one for all attacks, as they must leave no trace."""
    directory: Path = tmp_path_factory.mktemp("hostile")
    with affine_server(directory, sizes=(1, 8)) as server:
        yield server


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


_INFER = prefixed(infer_message())
_FIELDS = request_fields(INFER)
_HEAD = hpack(_FIELDS)
_CANCEL = _u32(8)
_FLIPS = b"".join(b"\0\4" + _u32(size) for size in (0, 2**20) * 16)
# The long header enters the table of HPACK once, and costs one byte from then on.
_LONG = b"\x40\x06x-long\x7f\x81\x1e" + b"y" * 4000


def _calls(peer: socket.socket, tail: Callable[[int], bytes], streams: int = 500) -> None:
    """Open calls, each followed by something, on a connection of their own."""
    greet(peer)
    for stream in range(1, 2 * streams, 2):
        peer.sendall(frame(HEADERS, END_HEADERS, stream, _HEAD) + tail(stream))
        throw_away(peer)
    hang_up(peer)


def _rapid_reset(peer: socket.socket) -> None:
    greet(peer)
    for first in range(1, 2**30, 200):
        streams = range(first, first + 200, 2)
        peer.sendall(
            b"".join(
                frame(HEADERS, END_HEADERS, stream, _HEAD)
                + frame(DATA, END_STREAM, stream, _INFER)
                + frame(RST_STREAM, 0, stream, _CANCEL)
                for stream in streams
            )
        )
        throw_away(peer)


def _reset_before_the_message(peer: socket.socket) -> None:
    _calls(peer, lambda stream: frame(RST_STREAM, 0, stream, _CANCEL), 5000)


def _endless(unit: bytes) -> Callable[[socket.socket], None]:
    def attack(peer: socket.socket) -> None:
        greet(peer)
        while True:
            peer.sendall(unit)
            throw_away(peer)

    return attack


def _without_reading(unit: bytes) -> Callable[[socket.socket], None]:
    def attack(peer: socket.socket) -> None:
        greet(peer)
        while True:
            peer.sendall(unit)

    return attack


def _settings_over_many_calls(peer: socket.socket) -> None:
    """Each change of the window is applied to every open call."""
    greet(peer)
    peer.sendall(b"".join(frame(HEADERS, END_HEADERS, s, _HEAD) for s in range(1, 2001, 2)))
    while True:
        peer.sendall(frame(SETTINGS, 0, 0, _FLIPS) * 10)
        throw_away(peer)


def _endless_head(peer: socket.socket) -> None:
    greet(peer)
    peer.sendall(frame(HEADERS, 0, 1, _HEAD))
    while True:
        peer.sendall(frame(CONTINUATION, 0, 1, hpack([(b"x", b"y" * 1000)]) * 16))


def _header_bomb(peer: socket.socket) -> None:
    greet(peer)
    peer.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, _HEAD + _LONG + b"\xbe" * 16_000 * 60))
    throw_away(peer)


def _packed_bomb(peer: socket.socket) -> None:
    head = hpack([*_FIELDS, (b"grpc-encoding", b"gzip")])
    greet(peer)
    for stream in range(1, 21, 2):
        peer.sendall(frame(HEADERS, END_HEADERS, stream, head))
        for at in range(0, len(_BOMB), 16_000):
            peer.sendall(frame(DATA, 0, stream, _BOMB[at : at + 16_000]))
        peer.sendall(frame(DATA, END_STREAM, stream))
        throw_away(peer)


_ZEROS = gzip.compress(bytes(100 << 20), 1)
_BOMB = prefixed(_ZEROS, 1)


def _dripping_credit(peer: socket.socket) -> None:
    """Answers leave byte by byte."""
    greet(peer, b"\0\4" + _u32(0))
    peer.sendall(b"".join(request(s, infer_message(100), INFER) for s in range(1, 201, 2)))
    while True:
        for stream in range(1, 201, 2):
            peer.sendall(frame(WINDOW_UPDATE, 0, stream, _u32(1)))
        throw_away(peer)


def _noise(peer: socket.socket) -> None:
    greet(peer)
    peer.sendall(random.randbytes(100_000))
    throw_away(peer)


_GRPC_ATTACKS = {
    "rapid reset": _rapid_reset,
    "resets before the message": _reset_before_the_message,
    "PING": _endless(frame(PING, 0, 0, bytes(8)) * 100),
    "PING, answers unread": _without_reading(frame(PING, 0, 0, bytes(8)) * 100),
    "SETTINGS": _endless(frame(SETTINGS) * 100),
    "SETTINGS over many calls": _settings_over_many_calls,
    "WINDOW_UPDATE": _endless(frame(WINDOW_UPDATE, 0, 0, _u32(1)) * 100),
    "PRIORITY": _endless(frame(PRIORITY, 0, 1, bytes(5)) * 100),
    "unknown frames": _endless(frame(0x77, 0, 0, bytes(100)) * 100),
    "empty DATA": lambda peer: _calls(peer, lambda s: frame(DATA, 0, s) * 100),
    "endless head": _endless_head,
    "header bomb": _header_bomb,
    "packed bomb": _packed_bomb,
    "dripping credit": _dripping_credit,
    "calls unread": _without_reading(request(1, infer_message(1000), INFER) * 20),
    "noise": _noise,
}


@pytest.mark.parametrize("attack", _GRPC_ATTACKS.values(), ids=_GRPC_ATTACKS)
def test_others_are_served_while_grpc_is_attacked(
    server: ServerProcess, attack: Callable[[socket.socket], None]
) -> None:
    """Floods of frames, bombs and nonsense on a few connections harm those alone."""
    _check_attack(server, "grpc", attack)


def _pipelined(peer: socket.socket) -> None:
    """Ask for ever and read nothing."""
    peer.sendall(rest_request(500) * 20)


def _endless_rest(opening: bytes, unit: bytes) -> Callable[[socket.socket], None]:
    def attack(peer: socket.socket) -> None:
        peer.sendall(opening)
        while True:
            peer.sendall(unit)

    return attack


def _rest_once(data: bytes) -> Callable[[socket.socket], None]:
    def attack(peer: socket.socket) -> None:
        peer.sendall(data)
        throw_away(peer)

    return attack


_CHUNKED = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_GZIP = "Content-Encoding: gzip"
_NUMBERS = gzip.compress(b'{"inputs":[{"data":[' + b"1," * (20 << 20), 1)
_LISTS = gzip.compress(b'{"inputs":[{"data":[' + b"[]," * (20 << 20), 1)

_REST_ATTACKS = {
    "answers unread": _pipelined,
    "endless head": _endless_rest(b"GET / HTTP/1.1\r\nHost: a\r\n", b"x-y: " + b"z" * 95 + b"\r\n"),
    "endless target": _endless_rest(b"GET /", b"a" * 1000),
    "endless extension": _endless_rest(_CHUNKED + b"1;", b"a" * 1000),
    "endless trailer": _endless_rest(_CHUNKED + b"0\r\n", b"a: b\r\n" * 100),
    "crumbs of chunks": _endless_rest(_CHUNKED, b"1\r\n{\r\n" * 1000),
    "zeros": _rest_once(rest_request(1, _GZIP, body=_ZEROS)),
    "lists": _rest_once(rest_request(1, _GZIP, body=_LISTS)),
    "numbers": _rest_once(rest_request(1, _GZIP, body=_NUMBERS)),
    "empty members": _rest_once(rest_request(1, _GZIP, body=gzip.compress(b"") * 200_000)),
    "brackets": _rest_once(rest_request(1, body=b"[" * 1_000_000)),
    "noise": lambda peer: _rest_once(random.randbytes(100_000))(peer),
    "huge announcements": _rest_once(
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 500000000\r\n\r\n" + bytes(100)
    ),
}


@pytest.mark.parametrize("attack", _REST_ATTACKS.values(), ids=_REST_ATTACKS)
def test_others_are_served_while_rest_is_attacked(
    server: ServerProcess, attack: Callable[[socket.socket], None]
) -> None:
    """Endless requests, bombs and nonsense on a few connections harm those alone."""
    _check_attack(server, "http", attack)


def _check_attack(
    server: ServerProcess, port: str, attack: Callable[[socket.socket], None]
) -> None:
    forget_peak(server)
    before_mib = resident_mib(server)
    with attacked(server, port, attack, SECONDS) as bystander:
        bystander.stop()
    grown_mib = peak_mib(server) - before_mib
    print(f"worst {bystander.worst_s:.3f} s, {bystander.requests} answers, +{grown_mib:.0f} MiB")  # noqa: T201  # what a long run is for

    assert server.process.poll() is None
    assert bystander.requests > 0
    assert bystander.worst_s < PATIENCE_S
    assert grown_mib < GROWTH_MIB
