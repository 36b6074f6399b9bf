"""Large REST bodies on their way: what they take of the bytes that the process has in hand.

What lives here: claiming for the body that a connection receives, and what becomes of it when there
is no room. What does not: the budget (`hloserve.wire.bytes_in_hand`), sockets
(`hloserve.server.rest_transport`). Loop thread.
"""

from collections.abc import Callable
from functools import partial

from hloserve.core.errors import HloserveError
from hloserve.wire.bytes_in_hand import COUNTED_FROM_BYTES, Account
from hloserve.wire.http1_body import BodyAssembly
from hloserve.wire.http1_server import HttpServerConnection
from hloserve.wire.status import http_status

__all__ = ["RETRY_LATER", "mind_body"]

RETRY_LATER = (("Retry-After", "1"),)
"""The header of answers to requests that may succeed later."""


def mind_body(http: HttpServerConnection, account: Account, proceed: Callable[[], None]) -> bool:
    """Claim for a body that is not complete, before more of it is read.

    Args:
        http: has a part of it.
        account: of the connection.
        proceed: called when the body that had to wait may come, or was refused.

    Returns:
        True when nothing more of it may be read until `proceed`.
    """
    assembly = http.assembly
    if assembly is None:
        return False
    try:
        _claim(http, assembly, account, proceed)
    except HloserveError as error:
        http.refuse(http_status(error), str(error), RETRY_LATER if error.retryable else ())
        return False
    claim = assembly.claim
    return claim is not None and not claim.is_granted


def _claim(
    http: HttpServerConnection,
    assembly: BodyAssembly,
    account: Account,
    proceed: Callable[[], None],
) -> None:
    came, claim = assembly.came_bytes, assembly.claim
    wanted = assembly.length
    if wanted is None:  # chunks tell no more than their own lengths
        wanted = max(came, min(2 * came, account.budget.limit_bytes))
    if claim is None:
        if came < COUNTED_FROM_BYTES:
            return
        told = partial(_told, http, account, proceed)
        claim = assembly.claim = account.claim(wanted, told)
    elif came > claim.total_bytes:
        claim.widen(wanted)
    claim.came(came)


def _told(
    http: HttpServerConnection, account: Account, proceed: Callable[[], None], is_granted: bool
) -> None:
    if not is_granted:
        problem = account.budget.problem()
        http.refuse(http_status(problem), str(problem), RETRY_LATER)
    proceed()
