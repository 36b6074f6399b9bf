"""Bytes from the network never raise, whatever they are, and cost a bounded amount of memory."""

import gzip
import itertools
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from support.grpc_frames import PREFACE, SETTINGS, frame, prefixed, request
from support.grpc_pair import ECHO, METHODS, TALK, Pair

from hloserve.core.errors import HloserveError
from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import RpcEnded, RpcReceived
from hloserve.wire.grpc_framing import MessageReader
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_SMALL = GrpcLimits(max_recv_msg_bytes=100_000, max_partial_bytes=200_000, max_unsent_bytes=100_000)
_WORDS = (b"grpc-timeout", b"content-type", b"POST", b"\0\0\0\0\5hello", b"\0\0\4\x08\0")


def _server() -> GrpcServerConnection[str]:
    return GrpcServerConnection(METHODS, _SMALL, streaming={TALK.encode()})


def _conversation() -> bytes:
    """What a client sends in three calls."""
    pair = Pair()
    client = GrpcClientConnection("localhost:1")
    client.start(ECHO, b"hello", 1.0, [("x-bin", b"\0")])
    client.start(ECHO, bytes(20_000))
    client.start("/no/such", b"")
    client.start(TALK, b"one", streaming=True)
    del pair
    return client.take_output() + client.take_output()


def _answers() -> bytes:
    """What a server sends in three calls."""
    server = _server()
    for event in server.receive(_conversation()):
        if isinstance(event, RpcReceived) and event.method == "echo":
            server.respond(event.stream_id, event.message)
    server.fail(7, 3, "enough")
    server.drain()
    return server.take_output()


_SENT, _ANSWERED = _conversation(), _answers()


def _mutations(original: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with some of them replaced, cut out, repeated or inserted."""
    position = st.integers(0, len(original))
    edit = st.tuples(
        position,
        st.integers(0, 40),
        st.one_of(st.binary(max_size=12), st.sampled_from(_WORDS)),
    )

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = original
        for start, removed, inserted in sorted(edits, reverse=True):
            data = data[:start] + inserted + data[start + removed :]
        return data

    return st.lists(edit, min_size=1, max_size=6).map(apply)


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(_mutations(_SENT), st.lists(st.integers(0, 30_000), max_size=5))
@settings(max_examples=400, deadline=None)
def test_a_server_bears_any_bytes(data: bytes, cuts: list[int]) -> None:
    """A mutated conversation ends in answers or in a closed connection, never in an exception."""
    server = _server()

    for piece in _pieces(data, cuts):
        for event in server.receive(piece):
            if isinstance(event, RpcReceived):
                assert len(event.message) <= _SMALL.max_recv_msg_bytes
                server.respond(event.stream_id, event.message)
        server.take_output()
    server.lose()

    assert server.open_rpcs == 0


@given(_mutations(_ANSWERED), st.lists(st.integers(0, 30_000), max_size=5))
@settings(max_examples=400, deadline=None)
def test_a_client_bears_any_bytes(data: bytes, cuts: list[int]) -> None:
    """Whatever a server sends, every call ends exactly once."""
    client = GrpcClientConnection("localhost:1", _SMALL)
    streams = [client.start(ECHO, b"x") for _ in range(3)]
    streams.append(client.start(TALK, b"x", streaming=True))
    client.take_output()

    events = []
    for piece in _pieces(data, cuts):
        events += client.receive(piece)
        client.take_output()
    events += client.lose("end of test")

    assert streams == sorted(event.stream_id for event in events if isinstance(event, RpcEnded))


@given(st.binary(max_size=200))
def test_a_server_bears_noise(data: bytes) -> None:
    """Noise instead of a preface, and after one."""
    for start in (b"", PREFACE, PREFACE + frame(SETTINGS)):
        server = _server()
        server.receive(start + data)
        server.take_output()


def test_a_server_bears_one_byte_at_a_time_and_an_end_anywhere() -> None:
    """The events do not depend on how the bytes are cut, and the end may come after any of them."""
    server, got = _server(), []

    for i in range(len(_SENT)):
        got += server.receive(_SENT[i : i + 1])
        server.take_output()
        if i % 97 == 0:
            other = _server()
            other.receive(_SENT[:i])
            other.lose()
            assert other.open_rpcs == 0

    whole = _server().receive(_SENT)
    assert [type(event) for event in whole] == [type(event) for event in got]
    messages = [event.message for event in got if isinstance(event, RpcReceived)]
    assert messages == [event.message for event in whole if isinstance(event, RpcReceived)]


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=6),
    st.lists(st.integers(0, 3_000), max_size=8),
)
def test_messages_do_not_depend_on_how_they_are_cut(
    messages: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    """Plain and compressed messages come out as they went in."""
    data = b"".join(
        prefixed(gzip.compress(message), 1) if packed else prefixed(message)
        for message, packed in messages
    )
    reader = MessageReader(1000, has_coding=True)

    got = [message for piece in _pieces(data, cuts) for message in reader.feed(piece)]

    assert [message for message, _ in messages] == got
    assert reader.is_between_messages
    assert reader.buffered_bytes == 0


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_a_reader_raises_only_our_errors(pieces: list[bytes]) -> None:
    """Random bytes are messages or a bad request."""
    reader = MessageReader(1000, has_coding=True)
    try:
        for piece in pieces:
            reader.feed(piece)
            assert reader.buffered_bytes <= 1000 + 5
    except HloserveError:
        pass


def test_memory_does_not_grow_with_the_calls_served() -> None:
    """Ten thousand calls on one connection leave nothing behind."""
    pair = Pair()
    payload = bytes(200)

    def serve(calls: int) -> None:
        for _ in range(calls):
            pair.client.start(ECHO, payload)
            for event in pair.to_server():
                assert isinstance(event, RpcReceived)
                pair.server.respond(event.stream_id, event.message)
            assert len(pair.to_client()) == 1

    serve(500)
    tracemalloc.start()
    serve(500)
    before = tracemalloc.get_traced_memory()[0]
    serve(9_500)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert after - before < 50_000


def test_a_flood_of_refused_calls_costs_bounded_memory() -> None:
    """Calls that are refused leave nothing behind either."""
    server = _server()
    server.receive(PREFACE + frame(SETTINGS))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    for stream in range(1, 20_001, 2):
        server.receive(request(stream, b"x", path=b"/no/such"))
        server.take_output()

    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert not server.is_closed
    assert after - before < 200_000
