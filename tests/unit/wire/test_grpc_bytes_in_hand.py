"""What calls take of the bytes that the process has in hand, and how their peers are held back."""

from collections.abc import Sequence

from support.grpc_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    hpack,
    prefixed,
    request_fields,
    split_frames,
)

from hloserve.wire.bytes_in_hand import BytesInHand, Claim
from hloserve.wire.grpc_events import MessageReceived, RpcCancelled
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

UNARY, STREAM = b"/s/Unary", b"/s/Stream"
MIB = 1 << 20
PIECE = 100_000
PREFIX_BYTES = 5


class Server:
    """A connection with a budget of two mebibytes, and what it did late."""

    def __init__(self) -> None:
        self.budget = BytesInHand(2 * MIB)
        self.late: list[Sequence[RpcCancelled[str]]] = []
        self.http2: GrpcServerConnection[str] = GrpcServerConnection(
            {UNARY: "unary", STREAM: "stream"},
            GrpcLimits(),
            streaming=frozenset({STREAM}),
            account=self.budget.account(),
        )
        self.http2.on_late = self.late.append
        self.http2.receive(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK))
        self.output()

    def begin(self, stream: int, announced: int, nbytes: int = PIECE, path: bytes = UNARY) -> None:
        """A call whose message announces more than comes."""
        self.http2.receive(frame(HEADERS, END_HEADERS, stream, hpack(request_fields(path))))
        self.send(stream, b"\0" + announced.to_bytes(4, "big") + bytes(nbytes))

    def send(self, stream: int, data: bytes, flags: int = 0) -> list[object]:
        """Bytes of a call, in one frame."""
        return [*self.http2.receive(frame(DATA, flags, stream, data))]

    def output(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that the peer gets."""
        return [*split_frames(self.http2.take_output())]

    def occupy(self, nbytes: int) -> Claim:
        """Let somebody else hold so much."""
        return self.budget.account().whole(nbytes)


def test_a_large_call_holds_what_it_announces_until_it_is_answered() -> None:
    """From the piece on that proves that it is one; small ones are not counted."""
    server = Server()
    server.begin(1, MIB, 1000)
    assert 1000 == server.budget.held_bytes
    server.send(1, bytes(PIECE))
    assert MIB == server.budget.held_bytes
    [rpc] = server.send(1, bytes(MIB - 1000 - PIECE), END_STREAM)
    assert MIB == server.budget.held_bytes
    server.http2.respond(1, b"")

    assert 0 == server.budget.held_bytes
    assert MIB == len(rpc.message)  # type: ignore[attr-defined]


def test_a_call_that_finds_no_room_is_held_back_until_there_is() -> None:
    """Its connection is read no further when it has nothing else under way."""
    server = Server()
    other = server.occupy(3 * MIB // 2)
    server.begin(1, MIB)
    held_back = server.http2.is_held_back
    server.output()
    other.end()

    assert (True, False) == (held_back, server.http2.is_held_back)
    assert [()] == server.late
    assert MIB == server.budget.held_bytes


def test_a_connection_is_read_on_while_an_upload_of_it_may_go_on() -> None:
    """Or the one that has room could not end; the other one gets no credit."""
    server = Server()
    server.begin(1, MIB)
    server.begin(3, MIB)

    assert {3} == server.http2.waiting
    assert not server.http2.is_held_back


def test_a_call_that_waits_too_long_is_answered() -> None:
    """What it held is given back, and a stream's handler is told."""
    server = Server()
    other = server.occupy(2 * MIB)
    server.begin(1, MIB)
    server.begin(3, MIB, path=STREAM)
    for second in range(1, 8):
        server.budget.look(second * 1_000_000_000)
    answered = {stream for kind, _, stream, _ in server.output() if kind == HEADERS}

    assert {1, 3} == answered
    assert 0 == server.http2.open_rpcs
    assert [0, 1] == [len(over) for over in server.late]
    assert other.nbytes == server.budget.held_bytes


def test_cancelled_and_lost_calls_give_back_what_they_hold() -> None:
    """Also those that wait."""
    server = Server()
    server.begin(1, MIB)
    server.begin(3, MIB)
    server.http2.receive(frame(RST_STREAM, 0, 1, bytes(4)))
    assert MIB == server.budget.held_bytes
    assert set() == server.http2.waiting
    server.http2.lose()

    assert 0 == server.budget.held_bytes


def test_large_messages_of_a_stream_are_held_until_they_are_let_go() -> None:
    """At the latest when the call ends."""
    server = Server()
    server.begin(1, PIECE, PIECE, path=STREAM)
    found = server.send(1, prefixed(bytes(2 * PIECE)) + prefixed(b"small"))
    assert 3 == len(found) + 1
    assert all(isinstance(event, MessageReceived) for event in found)
    assert 3 * PIECE == server.budget.held_bytes
    server.http2.take(1, -PIECE)
    assert 2 * PIECE == server.budget.held_bytes
    server.http2.finish(1)

    assert 0 == server.budget.held_bytes


def test_a_frame_that_is_not_whole_is_counted_while_its_call_may_go_on() -> None:
    """It lies in the HTTP/2 library, which throws away what comes for calls that have ended."""
    server = Server()
    server.http2.receive(frame(HEADERS, END_HEADERS, 1, hpack(request_fields(UNARY))))
    data = frame(DATA, 0, 1, b"\0" + MIB.to_bytes(4, "big") + bytes(900_000))
    for start in range(0, 600_000, PIECE):
        server.http2.receive(data[start : start + PIECE])
    assert 600_000 == server.budget.held_bytes
    server.http2.fail(1, 8, "no")
    server.output()
    server.http2.receive(data[600_000:700_000])

    assert 0 == server.budget.held_bytes


def test_frames_that_are_not_whole_end_their_connection_when_there_is_no_room() -> None:
    """They cannot be held back, since they have come."""
    server = Server()
    server.occupy(2 * MIB)
    server.http2.receive(frame(HEADERS, END_HEADERS, 1, hpack(request_fields(UNARY))))
    data = frame(DATA, 0, 1, b"\0" + MIB.to_bytes(4, "big") + bytes(900_000))
    for start in range(0, 600_000, PIECE):
        server.http2.receive(data[start : start + PIECE])
    server.http2.lose()

    assert server.http2.is_closed
    assert 2 * MIB == server.budget.held_bytes


def test_calls_that_wait_make_room_for_a_frame_of_their_connection() -> None:
    """The last one is refused; the connection goes on."""
    server = Server()
    server.begin(1, MIB)
    server.begin(3, MIB, MIB // 2)
    server.occupy(MIB * 5 // 8)
    data = frame(DATA, 0, 1, bytes(MIB // 2))
    for start in range(0, MIB * 3 // 8, PIECE):
        server.http2.receive(data[start : start + PIECE])

    assert not server.http2.is_closed
    assert (1, set()) == (server.http2.open_rpcs, server.http2.waiting)
