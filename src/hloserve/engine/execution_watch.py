"""Notices an execution that does not end.

What lives here: looking at the dispatch thread every few seconds, and the decision that what it
waits for will not come. What does not: answering everybody in its place
(`hloserve.engine.dispatcher`), and the end of the process (`hloserve.server.worker`).

Rules.
1. A dispatch pays no more for being watched than one attribute store: the instants that are looked
   at are known anyway.
2. Each execution has the whole time: one that waits behind another one, or is run again alone after
   a failure, is not charged with what came before it.
3. Time in which nobody looked, because the process was stopped or its machine asleep, counts as no
   more than two looks: the device may have stood still as well.

What is not watched: warm-up and compilation, which run on load threads, and batches that wait for
their end to have room for weights; commands, which may move all weights; cheap batches that run on
the loop thread, which hang the loop and its health checks.

Threading: loop thread.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from hloserve.core.clock import Clock, Later
from hloserve.core.errors import DeviceLost
from hloserve.core.logging import log_event
from hloserve.engine.scheduling.dispatch import Dispatch

__all__ = ["ExecutionWatch", "Sight", "UnderWay", "look", "period_s"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What the device is at.

    Attributes:
        dispatch: the oldest in flight.
        since_ns: when it was taken or, if later, when the device was last seen to get on: the batch
            before it ended, or one of its requests was run again.
        waiting: requests in the queues of all models.
    """

    dispatch: Dispatch
    since_ns: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found.

    Attributes:
        since_ns: as in `UnderWay`; it tells one execution from another.
        seen_ns: when it was looked.
        watched_ns: how long the execution has been under way by then.
    """

    since_ns: int
    seen_ns: int
    watched_ns: int


def period_s(timeout_s: float) -> float:
    """Seconds between two looks: a quarter of the timeout, but 5 at most and not below 0.05."""
    return max(0.05, min(5.0, timeout_s / 4))


def look(before: Sight | None, since_ns: int | None, now_ns: int, period_ns: int) -> Sight | None:
    """Add what has passed since the look before.

    Args:
        before: what that one found.
        since_ns: of what is under way; None while nothing is.
        now_ns: the instant.
        period_ns: between two looks, if nothing keeps the loop from them.

    Returns:
        What was found; None while nothing is under way.
    """
    if since_ns is None:
        return None
    most_ns = 2 * period_ns
    if before is None or before.since_ns != since_ns:
        return Sight(since_ns, now_ns, min(now_ns - since_ns, most_ns))
    passed_ns = min(now_ns - before.seen_ns, most_ns)
    return Sight(since_ns, now_ns, before.watched_ns + passed_ns)


class ExecutionWatch:
    """Looks at what is under way until it has been for too long, which it tells once.

    Args:
        under_way: what the device is at; None while it is at nothing.
        give_up: called with the reason when it is at it for too long. Then nothing more is looked
            at.
        clock: measures.
        later: brings the next look.
        timeout_s: how long one execution may take; more than 0.
        setting: where operators set that, for the log.
    """

    def __init__(
        self,
        under_way: Callable[[], UnderWay | None],
        give_up: Callable[[DeviceLost], object],
        clock: Clock,
        later: Later,
        timeout_s: float,
        setting: str,
    ) -> None:
        self._under_way = under_way
        self._give_up = give_up
        self._now_ns = clock.now_ns
        self._later = later
        self._timeout_s = timeout_s
        self._setting = setting
        self._period_s = period_s(timeout_s)
        self._sight: Sight | None = None

    def start(self) -> None:
        """Look after a while, and again and again. Once."""
        self._later(self._period_s, self._look)

    def _look(self) -> None:
        found = self._under_way()
        since_ns = None if found is None else found.since_ns
        self._sight = look(self._sight, since_ns, self._now_ns(), round(self._period_s * 1e9))
        if found is None or self._sight is None or self._sight.watched_ns < self._timeout_s * 1e9:
            self._later(self._period_s, self._look)
            return
        seconds = self._sight.watched_ns / 1e9
        dispatch = found.dispatch
        model = dispatch.model.name
        log_event(
            log, "execution_stuck", level=logging.CRITICAL, model=model, seconds=round(seconds, 3),
            size=dispatch.size, rows=dispatch.rows, requests=len(dispatch.requests),
            waiting=found.waiting, setting=self._setting,
            hint="the device does not come back, and nothing can interrupt it: this server ends",
        )  # fmt: skip
        self._give_up(DeviceLost(f"an execution of model {model!r} has not ended in {seconds:g} s"))
