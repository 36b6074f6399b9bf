"""Both ends of a gRPC connection in memory, and what a test wants to do with them."""

from collections.abc import Mapping

from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import ClientEvent, RpcEnded, RpcReceived, ServerEvent
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.grpc_server import GrpcServerConnection

ECHO = "/test.Service/Echo"
TALK = "/test.Service/Talk"
METHODS: Mapping[bytes, str] = {ECHO.encode(): "echo", TALK.encode(): "talk"}


class Pair:
    """A client and a server whose bytes are carried by hand."""

    def __init__(
        self, limits: GrpcLimits | None = None, client_limits: GrpcLimits | None = None
    ) -> None:
        self.server: GrpcServerConnection[str] = GrpcServerConnection(
            METHODS, limits or GrpcLimits(), streaming={TALK.encode()}
        )
        self.client = GrpcClientConnection("localhost:1", client_limits)
        for _ in range(3):
            self.to_server()
            self.to_client()

    def to_server(self) -> list[ServerEvent[str]]:
        """Carry the client's output over."""
        return self.server.receive(self.client.take_output())

    def to_client(self) -> list[ClientEvent]:
        """Carry the server's output over."""
        return self.client.receive(self.server.take_output())

    def settle(self) -> tuple[list[ServerEvent[str]], list[ClientEvent]]:
        """Carry bytes both ways until both ends are silent."""
        at_server: list[ServerEvent[str]] = []
        at_client: list[ClientEvent] = []
        while True:
            up = self.client.take_output()
            at_server += self.server.receive(up)
            down = self.server.take_output()
            at_client += self.client.receive(down)
            if not up and not down:
                return at_server, at_client

    def received(self) -> list[RpcReceived[str]]:
        """Carry bytes both ways; the calls that came to the server."""
        return [event for event in self.settle()[0] if isinstance(event, RpcReceived)]

    def ended(self) -> list[RpcEnded]:
        """Carry bytes both ways; the calls that ended at the client."""
        return [event for event in self.settle()[1] if isinstance(event, RpcEnded)]

    def call(self, message: bytes, path: str = ECHO) -> RpcEnded:
        """One call to the end: the server echoes."""
        self.client.start(path, message)
        at_server, at_client = self.settle()
        for event in at_server:
            if isinstance(event, RpcReceived):
                self.server.respond(event.stream_id, event.message)
        ended = [event for event in at_client + self.settle()[1] if isinstance(event, RpcEnded)]
        assert len(ended) == 1, "a call ends exactly once"
        return ended[0]
