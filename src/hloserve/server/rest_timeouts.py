"""How long an HTTP connection may keep the server waiting. Plain data; any thread."""

from dataclasses import dataclass

from hloserve.wire.http1_server import Phase

__all__ = ["HttpTimeouts"]


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long a connection may keep the server waiting.

    Attributes:
        header_timeout_s: from the first byte of a request to the end of its headers; also for the
            handshake of TLS.
        body_timeout_s: between two pieces of a request body, or of a response that the peer
            takes slowly.
        idle_timeout_s: between two requests.
        linger_s: for the peer to stop sending after it was refused, or got its last answer.
        leave_s: when the server leaves: for requests that are on their way on idle connections.
    """

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0
    leave_s: float = 0.2

    def patience_s(self, phase: int) -> float:
        """How long a connection may stay in a phase without anything new."""
        if phase == Phase.HEAD:
            return self.header_timeout_s
        return self.body_timeout_s if phase == Phase.BODY else self.idle_timeout_s
