"""When a gRPC connection is too slow, too idle or dead: the decisions of the transport's sweep.

What lives here: the timeouts and the verdict on one connection. What does not: carrying it out
(`hloserve.server.grpc_transport`). No I/O, no clock of its own; loop thread.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hloserve.wire.grpc_server import GrpcServerConnection

__all__ = ["GrpcTimeouts", "Verdict", "Watch"]

_PING_ANSWER_S = 20.0
# A drained connection waits so long for its PING before it is taken for one whose client does not
# read while it has no calls, and a left one for its peer to read the last words.
_DRAIN_PING_S = 1.0
_LEAVE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcTimeouts:
    """How long a peer may take. Checked by a sweep about once a second.

    Attributes:
        handshake_s: from the connection to the end of the HTTP/2 preface.
        receive_s: without a byte of a request that is half received, whatever else comes.
        send_s: without progress while replies wait for the socket, or for the peer's credit. A
            stream that its peer does not read may wait: what it can hold is bounded.
        idle_s: without any call; the connection is then drained, and clients open another.
        keepalive_s: without a byte from the peer before it is asked for a sign of life.
    """

    handshake_s: float = 10.0
    receive_s: float = 60.0
    send_s: float = 60.0
    idle_s: float = 3600.0
    keepalive_s: float = 120.0


class Verdict(Enum):
    """What the sweep does about a connection."""

    NONE = 0
    PING = 1
    DRAIN = 2
    FINISH_DRAIN = 3
    CLOSE = 4
    ABORT = 5


class Watch:
    """When a connection last did what; a decision about its timeouts.

    The hot path only sets `has_read`; instants are as coarse as the sweep.
    """

    __slots__ = (
        "draining_since_ns",
        "has_pinged",
        "has_read",
        "last_call_ns",
        "last_read_ns",
        "last_stream_id",
        "last_write_ns",
        "left_ns",
        "partial",
        "partial_since_ns",
        "unread",
        "unread_since_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.has_read = False
        self.has_pinged = False
        self.last_read_ns = self.last_write_ns = self.last_call_ns = now_ns
        self.last_stream_id = 0
        self.draining_since_ns: int | None = None
        self.left_ns: int | None = None
        self.partial: tuple[int, int] | None = None
        self.partial_since_ns = self.unread_since_ns = now_ns
        self.unread = (0, 0)

    def judge(
        self,
        now_ns: int,
        timeouts: GrpcTimeouts,
        http2: GrpcServerConnection[Any],
        *,
        is_paused: bool,
    ) -> Verdict:
        """Say what is due."""
        if self.has_read:
            self.has_read = self.has_pinged = False
            self.last_read_ns = now_ns
        if http2.open_rpcs or http2.last_stream_id != self.last_stream_id:
            self.last_stream_id, self.last_call_ns = http2.last_stream_id, now_ns
        if self.left_ns is not None:
            is_past = _is_past(now_ns, self.left_ns, _LEAVE_S)
            return Verdict.ABORT if is_past else Verdict.NONE
        if is_paused:  # nothing is read then, so silence says nothing
            is_past = _is_past(now_ns, self.last_write_ns, timeouts.send_s)
            return Verdict.ABORT if is_past else Verdict.NONE
        if not http2.is_open:
            is_past = _is_past(now_ns, self.last_call_ns, timeouts.handshake_s)
            return Verdict.ABORT if is_past else Verdict.NONE
        if self._is_stuck(now_ns, timeouts, http2):
            return Verdict.CLOSE
        if http2.is_draining:
            return self._judge_drain(now_ns, http2)
        if _is_past(now_ns, self.last_call_ns, timeouts.idle_s):
            return Verdict.DRAIN
        return self._judge_silence(now_ns, timeouts)

    def _is_stuck(
        self, now_ns: int, timeouts: GrpcTimeouts, http2: GrpcServerConnection[Any]
    ) -> bool:
        """Look for a request that does not go on, and for replies that the peer does not let go.

        PINGs and other calls are no excuse: both hold memory.
        """
        partial = http2.oldest_partial
        if partial is None or partial != self.partial:
            self.partial, self.partial_since_ns = partial, now_ns
        unread_bytes, credits = http2.unread_bytes, http2.credits
        began = not self.unread[0]
        if began or unread_bytes < self.unread[0] or credits != self.unread[1]:
            self.unread_since_ns = now_ns
        self.unread = (unread_bytes, credits)
        return _is_past(now_ns, self.partial_since_ns, timeouts.receive_s) or _is_past(
            now_ns, self.unread_since_ns, timeouts.send_s
        )

    def _judge_drain(self, now_ns: int, http2: GrpcServerConnection[Any]) -> Verdict:
        if self.draining_since_ns is None:
            self.draining_since_ns = now_ns
        is_past = _is_past(now_ns, self.draining_since_ns, _DRAIN_PING_S)
        return Verdict.FINISH_DRAIN if is_past and not http2.is_drained else Verdict.NONE

    def _judge_silence(self, now_ns: int, timeouts: GrpcTimeouts) -> Verdict:
        if _is_past(now_ns, self.last_read_ns, timeouts.keepalive_s):
            if not self.has_pinged:
                self.has_pinged = True
                return Verdict.PING
            if _is_past(now_ns, self.last_read_ns, timeouts.keepalive_s + _PING_ANSWER_S):
                return Verdict.ABORT
        return Verdict.NONE


def _is_past(now_ns: int, since_ns: int, timeout_s: float) -> bool:
    return now_ns - since_ns > timeout_s * 1e9
