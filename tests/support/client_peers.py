"""Peers of the client that do what no server should: scripted, one script per connection."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from support.grpc_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    frame,
    hpack,
    prefixed,
)

__all__ = [
    "REFUSED_STREAM",
    "Script",
    "answer",
    "answer_bytes",
    "read_call",
    "reset",
    "scripted_peer",
    "settings",
    "wait_for_close",
]

Script: TypeAlias = Callable[[socket.socket], None]
REFUSED_STREAM = 7


@contextmanager
def scripted_peer(*scripts: Script) -> Iterator[str]:
    """Accept one connection per script, in order, and run it; gives host:port.

    A script that fails because the client has gone ends quietly; the test looks at the client.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def run() -> None:
        for script in scripts:
            with suppress(OSError):
                peer, _ = listener.accept()
                peer.settimeout(20)
                with peer:
                    script(peer)

    thread = threading.Thread(target=run, name="scripted peer")
    thread.start()
    try:
        host, port = listener.getsockname()
        yield f"{host}:{port}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(20)


def settings(peer: socket.socket) -> None:
    """Begin HTTP/2 from the server's side."""
    peer.sendall(frame(SETTINGS))


def read_call(peer: socket.socket) -> int:
    """Read frames until a stream is ended by the client; gives its number."""
    data = b""
    while True:
        if data.startswith(b"PRI"):
            data = data[24:]
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            stream = int.from_bytes(data[5:9], "big")
            data = data[9 + length :]
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                return stream
        received = peer.recv(65536)
        if not received:
            raise OSError("the client closed the connection")
        data += received


def answer_bytes(stream: int, message: bytes) -> bytes:
    """The answer to a call: one message and status OK."""
    head = hpack([(b":status", b"200"), (b"content-type", b"application/grpc")])
    tail = hpack([(b"grpc-status", b"0")])
    return (
        frame(HEADERS, END_HEADERS, stream, head)
        + frame(DATA, 0, stream, prefixed(message))
        + frame(HEADERS, END_HEADERS | END_STREAM, stream, tail)
    )


def answer(peer: socket.socket, stream: int, message: bytes) -> None:
    """Answer a call."""
    peer.sendall(answer_bytes(stream, message))


def reset(peer: socket.socket, stream: int, error_code: int) -> None:
    """Reset a call."""
    peer.sendall(frame(RST_STREAM, 0, stream, error_code.to_bytes(4, "big")))


def wait_for_close(peer: socket.socket) -> None:
    """Read until the client closes."""
    while peer.recv(65536):
        pass
