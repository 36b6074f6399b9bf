"""What one gRPC exchange costs, without sockets: both ends in memory, beside bare ngh2.

Run it with ``python benchmarks/grpc_exchange.py``. Each figure is the least of many short runs, so
that a busy machine disturbs it little; the bare ngh2 rows do the same frames with no checks at all.
"""

import sys
from collections.abc import Callable
from time import perf_counter_ns

import ngh2

from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import RpcEnded, RpcReceived
from hloserve.wire.grpc_framing import frame_message
from hloserve.wire.grpc_headers import OK_HEADERS, OK_TRAILERS
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

_PATH = "/inference.GRPCInferenceService/ModelInfer"
_RUNS = 400
_EXCHANGES_PER_RUN = 64


class Ours:
    """The two ends of this repository."""

    def __init__(self) -> None:
        self.server = GrpcServerConnection({_PATH.encode(): "infer"}, GrpcLimits())
        self.client = GrpcClientConnection("localhost:8001")
        for _ in range(3):
            self.server.receive(self.client.take_output())
            self.client.receive(self.server.take_output())

    def request(self, message: bytes, count: int) -> bytes:
        """The client's half, out."""
        for _ in range(count):
            self.client.start(_PATH, message)
        return self.client.take_output()

    def serve(self, data: bytes) -> bytes:
        """The server's half: echo."""
        server = self.server
        for event in server.receive(data):
            if type(event) is RpcReceived:
                server.respond(event.stream_id, event.message)
        return server.take_output()

    def finish(self, data: bytes) -> int:
        """The client's half, in; gives the calls that ended."""
        self.server.replenish()
        return sum(type(event) is RpcEnded for event in self.client.receive(data))


class Bare:
    """The same frames with ngh2 alone, nothing checked."""

    def __init__(self) -> None:
        self.server = ngh2.Connection(ngh2.Role.SERVER)
        self.client = ngh2.Connection(ngh2.Role.CLIENT)
        window = {4: 16 << 20}
        self.client.initiate_connection(window)
        self.server.initiate_connection({3: 1024, **window})
        self.server.set_local_window_size(32 << 20)
        self.client.set_local_window_size(32 << 20)
        for _ in range(3):
            self.server.receive_data(self.client.data_to_send())
            self.client.receive_data(self.server.data_to_send())
        self.server.events()
        self.client.events()
        self.headers = [
            (b":path", _PATH.encode()),
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", b"localhost:8001"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"hloserve"),
        ]

    def request(self, message: bytes, count: int) -> bytes:
        """The client's half, out."""
        body = frame_message(message)
        for _ in range(count):
            stream = self.client.send_request(self.headers)
            self.client.send_data(stream, body, end_stream=True)
        return self.client.data_to_send()

    def serve(self, data: bytes) -> bytes:
        """The server's half: echo."""
        server = self.server
        server.receive_data(data)
        for event in server.events():
            if type(event) is ngh2.DataReceived and event.end_stream:
                server.send_response(event.stream_id, OK_HEADERS)
                server.send_data(event.stream_id, event.data)
                server.send_trailers(event.stream_id, OK_TRAILERS)
        return server.data_to_send()

    def finish(self, data: bytes) -> int:
        """The client's half, in; gives the calls that ended."""
        self.client.receive_data(data)
        return sum(type(event) is ngh2.StreamClosed for event in self.client.events())


def _measure(make: Callable[[], Ours | Bare], message: bytes, streams: int) -> tuple[float, float]:
    """Least microseconds per exchange of the server's half and of the client's."""
    ends = make()
    server_ns, client_ns = sys.maxsize, sys.maxsize
    rounds = max(1, _EXCHANGES_PER_RUN // streams)
    for _ in range(_RUNS):
        at_server = at_client = 0
        for _ in range(rounds):
            t0 = perf_counter_ns()
            data = ends.request(message, streams)
            t1 = perf_counter_ns()
            data = ends.serve(data)
            t2 = perf_counter_ns()
            if ends.finish(data) != streams:
                raise SystemExit("an exchange was lost")
            at_client += perf_counter_ns() - t2 + t1 - t0
            at_server += t2 - t1
        server_ns, client_ns = min(server_ns, at_server), min(client_ns, at_client)
    per_exchange = rounds * streams * 1000
    return server_ns / per_exchange, client_ns / per_exchange


def main() -> None:
    """Print the table."""
    message = bytes(300)
    print("us per exchange, 300 bytes each way     server   client")
    for streams in (1, 8, 64):
        for name, make in (("hloserve", Ours), ("bare ngh2", Bare)):
            server, client = _measure(make, message, streams)
            print(f"{name:>10}, {streams:>2} streams at once     {server:10.2f} {client:8.2f}")


if __name__ == "__main__":
    main()
