"""Peers whose side of a connection has ended while answers are due: gone, or only done sending.

What lives here: telling one from the other. What does not: connections
(`hloserve.server.rest_transport`). Loop thread only.

Both look the same from here: the end of the stream. A peer that has closed answers whatever it is
sent with a reset, so it is sent something that means nothing: an interim response. Every client of
HTTP/1.1 must skip those, also when it expects none (RFC 9110, 15.2); one that has half-closed and
waits, like a pipe into `nc`, does. The first probe provokes the reset, the next one notices it.
HTTP/1.0 has no interim responses: such a peer is answered as if it waited.
"""

import asyncio
import socket
from collections.abc import Callable

__all__ = ["PROBE", "has_ended", "probe_peer"]

PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_S = 0.05
_LONGEST_S = 10.0
_CLOSE_WAIT, _CLOSED = 8, 7
"""States of TCP: the peer has ended its side; it has reset the connection."""


def has_ended(transport: asyncio.Transport) -> bool:
    """Tell, while nothing is read, whether the peer's side of a TCP connection has ended.

    The end of a stream shows only behind what has not been read; the state of the connection tells.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state in (_CLOSE_WAIT, _CLOSED)


def probe_peer(
    transport: asyncio.Transport, may_write: Callable[[], bool], delay_s: float = _FIRST_S
) -> None:
    """Probe a peer until its last answer is sent, or `connection_lost` tells that it has gone.

    Args:
        transport: to the peer; all that was written to it so far are whole responses.
        may_write: False while the peer takes nothing of what it was sent, or must not be probed.
        delay_s: until the next probe; it doubles.
    """
    if transport.is_closing():
        return
    if may_write():
        transport.write(PROBE)
    following_s = min(2 * delay_s, _LONGEST_S)
    asyncio.get_running_loop().call_later(delay_s, probe_peer, transport, may_write, following_s)
