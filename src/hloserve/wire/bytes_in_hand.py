"""The bytes of requests that the process has in hand, over all connections: one budget.

What lives here: who may begin a large request, who waits, who is refused. What does not: holding
back a peer, which each transport does (`hloserve.wire.grpc_server`, `hloserve.server.rest_bodies`).
No I/O, no clock of its own. Loop thread, but for `Account.take` and `Growth`: any thread.

Rules.
1. A request that has brought `COUNTED_FROM_BYTES` is counted with all that it announces before it
   is read on, until it is answered. So whoever was let in can finish, and no two uploads wait for
   each other; and an announcement alone keeps nobody out.
2. What does not fit waits in the order of arrival, and is not read meanwhile, `_WAIT_NS` at most.
3. A connection has half of the budget, or one request: nobody is kept out by one peer alone.
4. While somebody waits, uploads that hardly move are refused, the largest first.
5. What has come for those who wait does not count against their own shares. If it is all there is,
   the last of them are refused.
6. What is there already, as its peer had credit for it, is counted over the limit, up to an eighth
   of it; beyond, it is refused. So that is the bound.
7. Smaller requests are counted while they are incomplete, or wait for a stream's handler. Whole
   ones are bounded by the cap on requests in flight.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

from hloserve.core.errors import BodyTooLarge, Overloaded

__all__ = ["COUNTED_FROM_BYTES", "Account", "BytesInHand", "Claim", "Growth"]

COUNTED_FROM_BYTES = 64 * 1024
"""Whole messages below are not counted; counting one takes some 2 us."""

_SETTING = "endpoints.max_request_bytes_in_hand"
_WAIT_NS = 5_000_000_000
_LOOK_NS = 900_000_000
"""Looks come about once a second."""
_LONGEST_LOOKS = 30
"""An upload that would take so many seconds at its pace hardly moves."""
_SLOW_LOOKS = 2
_SLACK_PARTS = 8
_SHARE_PARTS = 2
_GROWTH_BYTES = 1024 * 1024

Told: TypeAlias = Callable[[bool], None]
"""Told once whether a claim that waited was granted; and False later, if it is to be given up."""


class BytesInHand:
    """The budget of one process.

    Args:
        limit_bytes: most that requests hold together, but for the eighth of rule 6.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.refused = 0
        self._most_bytes = limit_bytes + limit_bytes // _SLACK_PARTS
        self._share_bytes = limit_bytes // _SHARE_PARTS
        self._lock = threading.Lock()
        self._waiting: dict[Claim, None] = {}
        self._waiting_bytes = 0
        self._unfinished: dict[Claim, None] = {}
        self._looked_ns = 0

    def account(self) -> "Account":
        """One for a new connection."""
        return Account(self)

    @property
    def waiting(self) -> int:
        """Claims that wait."""
        return len(self._waiting)

    def look(self, now_ns: int) -> None:
        """Refuse who has waited for too long, and who keeps others waiting; call it every second.

        Several callers may: what comes too soon does nothing.
        """
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        slow = [claim for claim in self._unfinished if claim.is_slow()]
        if not self._waiting:
            return
        self._grant()  # what other threads gave back
        self._settle()
        for claim in tuple(self._waiting):
            claim.waits_since_ns = claim.waits_since_ns or now_ns
            if now_ns - claim.waits_since_ns > _WAIT_NS:
                self._refuse(claim)
        slow.sort(key=lambda claim: claim.nbytes)
        while slow and any(now_ns > claim.waits_since_ns > 0 for claim in self._waiting):
            self._refuse(slow.pop())

    def problem(self) -> Overloaded:
        """Why a request is refused."""
        return Overloaded(
            f"requests hold {self.held_bytes} of {self.limit_bytes} bytes, and no room was made"
            f" in time; the server's setting is {_SETTING}; try again later"
        )

    def _settle(self) -> None:
        """When all that is held has come for those who wait, nobody else makes room for them.

        So the last ones do.
        """
        for claim in reversed(tuple(self._waiting)):
            if self.held_bytes > self._waiting_bytes or len(self._waiting) < 2:
                return
            if claim.nbytes:
                self._refuse(claim)
                self._grant()

    def _wait(self, claim: "Claim") -> None:
        self._waiting[claim] = None
        self._waiting_bytes += claim.nbytes
        claim.account.waiting_bytes += claim.nbytes

    def _end_wait(self, claim: "Claim") -> None:
        if claim in self._waiting:
            del self._waiting[claim]
            self._waiting_bytes -= claim.nbytes
            claim.account.waiting_bytes -= claim.nbytes

    def _refuse(self, claim: "Claim") -> None:
        told = claim.told
        claim.end()
        self.refused += 1
        told(False)

    def _add(self, account: "Account", nbytes: int, most_bytes: int) -> bool:
        with self._lock:
            if nbytes > 0 and self.held_bytes + nbytes > most_bytes:
                return False
            self.held_bytes += nbytes
            account.held_bytes += nbytes
            return True

    def _try(self, claim: "Claim") -> bool:
        """Grant a claim if it fits."""
        account, needed = claim.account, claim.total_bytes - claim.nbytes
        others_bytes = account.held_bytes - account.waiting_bytes
        if claim not in self._waiting:
            others_bytes -= claim.nbytes
        if others_bytes and others_bytes + claim.total_bytes > self._share_bytes:
            return False
        if not self._add(account, needed, self.limit_bytes):
            return False
        self._end_wait(claim)
        claim.nbytes = claim.total_bytes
        return True

    def _grant(self, but: "Claim | None" = None) -> None:
        """Let in who fits now: in the order of arrival, but who has his share holds up no one."""
        granted = []
        for claim in tuple(self._waiting):
            if self._try(claim):
                self._unfinished[claim] = None
                granted.append(claim)
            elif self.held_bytes + claim.total_bytes - claim.nbytes > self.limit_bytes:
                break
        for claim in granted:
            if claim is not but and claim in self._unfinished:  # others may have ended it
                claim.told(True)


class Account:
    """What one connection holds of a budget."""

    __slots__ = ("budget", "held_bytes", "waiting_bytes")

    def __init__(self, budget: BytesInHand) -> None:
        self.budget = budget
        self.held_bytes = 0
        self.waiting_bytes = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are here already. Any thread.

        Raises:
            Overloaded: the process has too many. Retryable.
        """
        budget = self.budget
        if not budget._add(self, nbytes, budget._most_bytes):
            budget.refused += 1
            raise budget.problem()

    def give(self, nbytes: int) -> None:
        """Count bytes as gone, and let in who waits for them."""
        self.budget._add(self, -nbytes, 0)
        if self.budget._waiting:
            self.budget._grant()

    def claim(self, nbytes: int, told: Told) -> "Claim":
        """Ask for all that a request announces. Look at `is_granted`: if not, `told` comes later.

        Raises:
            BodyTooLarge: it can never be had.
        """
        claim = Claim(self, told)
        claim.widen(nbytes)
        return claim

    def whole(self, nbytes: int) -> "Claim":
        """Count a request that is here already.

        Raises:
            Overloaded: the process has too many. Retryable.
        """
        self.take(nbytes)
        claim = Claim(self, _nobody)
        claim.nbytes = claim.total_bytes = nbytes
        return claim


class Claim:
    """What one request holds, or waits for, from its announcement to its answer.

    Attributes:
        account: of its connection.
        nbytes: what is counted for it now.
        total_bytes: what it asks for.
        came_bytes: how much of it has come.
        is_excused: its peer is held back by us, so that it cannot go on.
    """

    __slots__ = (
        "_seen_bytes",
        "_slow_looks",
        "account",
        "came_bytes",
        "is_excused",
        "nbytes",
        "told",
        "total_bytes",
        "waits_since_ns",
    )

    def __init__(self, account: Account, told: Told) -> None:
        self.account = account
        self.told = told
        self.nbytes = self.total_bytes = self.came_bytes = 0
        self.is_excused = False
        self.waits_since_ns = 0
        self._seen_bytes = self._slow_looks = 0

    @property
    def is_granted(self) -> bool:
        """False while it waits."""
        return self not in self.account.budget._waiting

    def widen(self, total_bytes: int) -> None:
        """Ask for more, as chunks do; it may have to wait again.

        Raises:
            BodyTooLarge: it can never be had.
        """
        budget = self.account.budget
        if total_bytes > budget.limit_bytes:
            raise BodyTooLarge(budget.limit_bytes, total_bytes, _SETTING)
        budget._end_wait(self)
        self.total_bytes = total_bytes
        if not budget._waiting and budget._try(self):
            budget._unfinished[self] = None
        else:
            budget._unfinished.pop(self, None)
            self.waits_since_ns = 0
            budget._wait(self)
            budget._grant(but=self)

    def came(self, nbytes: int) -> None:
        """Say how much has come in all.

        Raises:
            Overloaded: it waits, and too much has come all the same. Retryable.
        """
        self.came_bytes = nbytes
        more = nbytes - self.nbytes
        if more > 0:
            self.account.take(more)
            self.nbytes = nbytes
            if not self.is_granted:
                self.account.waiting_bytes += more
                self.account.budget._waiting_bytes += more
            self.total_bytes = max(self.total_bytes, nbytes)

    def finish(self, nbytes: int) -> None:
        """Say that all of it is here, and how much that is."""
        budget = self.account.budget
        budget._end_wait(self)
        budget._unfinished.pop(self, None)
        excess = self.nbytes - nbytes
        self.nbytes = nbytes
        if excess > 0:
            self.account.give(excess)

    def hand_over(self) -> int:
        """Say that somebody else gives back what it holds; returns how much that is."""
        self.finish(self.nbytes)
        nbytes, self.nbytes = self.nbytes, 0
        return nbytes

    def add(self, nbytes: int) -> None:
        """Count what was made of it, beside it.

        Raises:
            Overloaded: the process has too many. Retryable.
        """
        self.account.take(nbytes)
        self.nbytes += nbytes

    def end(self) -> None:
        """Give everything back. Idempotent."""
        self.finish(0)

    def is_slow(self) -> bool:
        """For the budget, at each look: it hardly moves, and has not for a while."""
        step = self.came_bytes - self._seen_bytes
        self._seen_bytes = self.came_bytes
        if self.is_excused or self.total_bytes - self.came_bytes <= step * _LONGEST_LOOKS:
            self._slow_looks = 0
        else:
            self._slow_looks += 1
        return self._slow_looks >= _SLOW_LOOKS


class Growth:
    """What is being decompressed on some thread; a context. Who has the result counts it anew."""

    __slots__ = ("_account", "_nbytes")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._nbytes = 0

    def __enter__(self) -> "Growth":
        return self

    def __exit__(self, *_: object) -> None:
        # Not `give`: others are let in on the loop, by what ends there next.
        self._account.budget._add(self._account, -self._nbytes, 0)

    def reach(self, nbytes: int) -> None:
        """Say that so many bytes are about to be there.

        Raises:
            Overloaded: the process has too many. Retryable.
        """
        if nbytes > self._nbytes:
            more = max(nbytes - self._nbytes, _GROWTH_BYTES)
            self._account.take(more)
            self._nbytes += more


def _nobody(is_granted: bool) -> None:
    """Stands for who need not be told: it does not wait."""
