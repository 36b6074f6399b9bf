"""The client against peers that misbehave, and connections that are lost."""

import socket

import numpy as np
import pytest
from support.client_peers import (
    REFUSED_STREAM,
    answer,
    answer_bytes,
    read_call,
    reset,
    scripted_peer,
    settings,
    wait_for_close,
)

from hloserve.client import Client
from hloserve.core.errors import BadRequest, DeadlineExceeded, HloserveError, Unavailable
from hloserve.core.requests import InferResponse
from hloserve.wire.v2_protobuf import encode_infer_response

ANSWER = encode_infer_response(InferResponse("m", {"y": np.arange(3)}))


def serve_one(peer: socket.socket) -> None:
    """Answer one call, then close the connection."""
    settings(peer)
    answer(peer, read_call(peer), ANSWER)


def serve_two(peer: socket.socket) -> None:
    """Answer two calls on one connection, then wait for the client to close it."""
    serve_one(peer)
    answer(peer, read_call(peer), ANSWER)
    wait_for_close(peer)


def test_calls_in_a_row_use_one_connection() -> None:
    """The second call does not connect again."""
    with scripted_peer(serve_two) as address, Client(address) as client:
        for _ in range(2):
            assert client.infer("m", {})["y"].tolist() == [0, 1, 2]


def test_a_connection_that_was_closed_while_idle_is_made_anew() -> None:
    """A restarted server costs the next call a connect, not an error."""
    with scripted_peer(serve_one, serve_one, serve_two) as address, Client(address) as client:
        for _ in range(2):
            client.infer("m", {})
            idle = client._idle[0]
            idle._poll.poll(20_000)  # until the close has arrived
        assert client.infer("m", {})["y"].tolist() == [0, 1, 2]


def test_a_connection_lost_in_a_call_is_unavailable_and_the_next_call_works() -> None:
    """Whether the server had run the call is not known, so it is not sent again unasked."""

    def hang_up(peer: socket.socket) -> None:
        settings(peer)
        read_call(peer)

    with scripted_peer(hang_up, serve_one) as address, Client(address) as client:
        with pytest.raises(Unavailable, match=f"connection lost: .*{address}") as caught:
            client.infer("m", {})
        assert client.infer("m", {})["y"].tolist() == [0, 1, 2]

    assert caught.value.retryable


def test_an_answer_that_breaks_off_is_unavailable() -> None:
    """A peer that closes in the middle of a message ends the read."""

    def break_off(peer: socket.socket) -> None:
        settings(peer)
        stream = read_call(peer)
        whole = answer_bytes(stream, ANSWER)
        peer.sendall(whole[: len(whole) // 2])

    with (
        scripted_peer(break_off) as address,
        Client(address) as client,
        pytest.raises(Unavailable, match="connection lost"),
    ):
        client.infer("m", {})


def test_a_refused_call_is_sent_again_once() -> None:
    """REFUSED_STREAM says that the server did not look at the call."""

    def refuse_then_serve(peer: socket.socket) -> None:
        settings(peer)
        reset(peer, read_call(peer), REFUSED_STREAM)
        answer(peer, read_call(peer), ANSWER)
        wait_for_close(peer)

    with scripted_peer(refuse_then_serve) as address, Client(address) as client:
        assert client.infer("m", {})["y"].tolist() == [0, 1, 2]


def test_a_call_refused_twice_is_unavailable() -> None:
    """The client does not go round in circles."""

    def refuse(peer: socket.socket) -> None:
        settings(peer)
        while True:
            reset(peer, read_call(peer), REFUSED_STREAM)

    with (
        scripted_peer(refuse) as address,
        Client(address) as client,
        pytest.raises(Unavailable, match=address),
    ):
        client.infer("m", {})


def test_a_peer_that_says_nothing_is_given_up_at_the_deadline() -> None:
    """A listener that never answers cannot hold a caller."""
    with (
        scripted_peer(wait_for_close) as address,
        Client(address, timeout_s=0.05) as client,
        pytest.raises(DeadlineExceeded, match=f"{address}: no answer within 0.05 s"),
    ):
        client.infer("m", {})


def test_a_connection_outlives_a_call_that_was_given_up() -> None:
    """A deadline ends one call, not the connection: the next call does not connect anew."""

    def hold_then_serve(peer: socket.socket) -> None:
        settings(peer)
        read_call(peer)
        answer(peer, read_call(peer), ANSWER)
        wait_for_close(peer)

    with scripted_peer(hold_then_serve) as address, Client(address) as client:
        with pytest.raises(DeadlineExceeded):
            client.infer("m", {}, timeout_s=0.05)
        assert client.infer("m", {})["y"].tolist() == [0, 1, 2]


def test_a_late_answer_is_not_taken_for_the_next_calls() -> None:
    """What comes for a call that was given up is dropped."""

    def answer_late(peer: socket.socket) -> None:
        settings(peer)
        late = read_call(peer)
        stream = read_call(peer)
        answer(peer, late, encode_infer_response(InferResponse("m", {"y": np.array([7])})))
        answer(peer, stream, ANSWER)
        wait_for_close(peer)

    with scripted_peer(answer_late) as address, Client(address) as client:
        with pytest.raises(DeadlineExceeded):
            client.infer("m", {}, timeout_s=0.05)
        assert client.infer("m", {})["y"].tolist() == [0, 1, 2]


def test_a_peer_that_reads_nothing_is_given_up_at_the_deadline() -> None:
    """A request that cannot be sent ends at the deadline too."""

    def ignore(peer: socket.socket) -> None:
        settings(peer)
        peer.recv(1)
        peer.recv(1)

    with (
        scripted_peer(ignore) as address,
        Client(address, timeout_s=0.2) as client,
        pytest.raises((DeadlineExceeded, Unavailable)),
    ):
        client.infer("m", {"x": np.zeros(4_000_000)})


def test_an_http1_server_is_told_apart() -> None:
    """Whoever gives the REST port is told which port to give."""

    def rest(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        wait_for_close(peer)

    with (
        scripted_peer(rest) as address,
        Client(address) as client,
        pytest.raises(BadRequest, match=f"{address} answers with HTTP/1; give the gRPC port"),
    ):
        client.infer("m", {})


@pytest.mark.parametrize(
    "noise", [b"", b"\0" * 100, b"\xff" * 1000, b"SSH-2.0-OpenSSH_9.2\r\n"], ids=repr
)
def test_a_peer_that_is_no_grpc_server_is_an_error_with_the_address(noise: bytes) -> None:
    """Noise, or a close without a word, ends the call with one of our errors."""

    def talk(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(noise)

    with (
        scripted_peer(talk) as address,
        Client(address) as client,
        pytest.raises(HloserveError, match=address),
    ):
        client.infer("m", {})


def test_an_answer_that_is_no_v2_message_is_an_error() -> None:
    """A server of another protocol under the same method name is found out."""

    def talk(peer: socket.socket) -> None:
        settings(peer)
        answer(peer, read_call(peer), b"\xff\xff\xff")
        wait_for_close(peer)

    with (
        scripted_peer(talk) as address,
        Client(address) as client,
        pytest.raises(HloserveError, match=f"the answer of {address} cannot be read") as caught,
    ):
        client.infer("m", {})

    assert not isinstance(caught.value, BadRequest)
