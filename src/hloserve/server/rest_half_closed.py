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
from collections.abc import Callable

__all__ = ["probe_peer"]

_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_S = 0.05
_LONGEST_S = 10.0


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
        transport.write(_PROBE)
    following_s = min(2 * delay_s, _LONGEST_S)
    asyncio.get_running_loop().call_later(delay_s, probe_peer, transport, may_write, following_s)
