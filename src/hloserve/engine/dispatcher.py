"""The dispatch thread: takes batches, runs them, sends the replies.

What lives here: the thread and its loop. What does not: what runs next
(`hloserve.engine.scheduling.scheduler`), what happens to a batch on the device
(`hloserve.engine.device_queue`), what becomes of one that failed (`hloserve.engine.recovery`), the
device (`hloserve.engine.backend`). The server starts one dispatcher per device.

Rules.
1. The device executes one dispatch at a time. On one that runs ahead, others are prepared behind
   it; no more than `in_flight` are taken and not answered.
2. All replies of a dispatch cross to the loop by one `post`.
3. A failed dispatch is recovered while nothing else is in flight.
4. Commands of the scheduler run while nothing is in flight.
5. Nothing that a dispatch raises ends the thread, but for the loss of the device.
6. A thread that hangs cannot be ended. `give_up` answers everybody in its place, and what it brings
   after all is dropped.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import isinf
from typing import Any, Protocol

from hloserve.core.clock import Clock
from hloserve.core.errors import DeadlineExceeded, DeviceLost
from hloserve.core.logging import log_event
from hloserve.core.tensors import Array
from hloserve.engine.assembly import slice_rows
from hloserve.engine.backend import Backend
from hloserve.engine.device_queue import DeviceQueue, RunningBatch
from hloserve.engine.execution_watch import UnderWay
from hloserve.engine.recovery import Recovery, as_ours
from hloserve.engine.residency.leasing import EverythingResident, Residency
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import Outcome, deliver
from hloserve.engine.scheduling.scheduler import Scheduler

__all__ = ["CHEAP_NS", "Dispatcher", "Post"]

log = logging.getLogger(__name__)


CHEAP_NS = 300_000
"""A batch that computes no longer than this runs on the loop thread while the other one sleeps.

Handing it over and taking the results back wakes two threads, on an idle machine two cores: that
takes as long, and the loop has nothing better to do.
"""


_HELD_NS = 1_000_000
"""A batch behind one that computes for longer than this is not taken before half of that time has
passed, unless it is full: who comes meanwhile goes along, and a more urgent model goes first.
"""


class Post(Protocol):
    """Runs a callable on the loop thread, soon and in order: `loop.call_soon_threadsafe`."""

    def __call__(self, callback: Callable[..., object], /, *args: Any) -> object:
        """Hand `callback(*args)` to the loop. Any thread."""
        ...


class Dispatcher:
    """Runs what the scheduler gives, until it gives no more.

    Args:
        backend: the device. From `start` on the dispatch thread uses it, or, while that one
            sleeps, the loop thread.
        scheduler: where the batches come from.
        clock: measures computing.
        post: brings replies to the loop.
        on_end: called on the loop when the thread has ended, after all its replies: with None
            after `Scheduler.drain` or `stop`, else with the fault that ended it: `DeviceLost`, or
            one of ours. Also after `give_up`, with its fault.
        soon: runs a callable on the loop thread at the end of this turn: `loop.call_soon`. With it,
            batches that cost less than a crossing of threads do not cross. Without, all do. Only
            for a device that does not run ahead.
        residency: gives the weights of a model; None when all weights are on the device.
        in_flight: most dispatches that are taken and not answered, at least 1.
        sleep: waits for seconds, before a batch is taken behind another one.

    Attributes:
        is_given_up: the thread hangs, and nobody need wait for it.
    """

    def __init__(  # noqa: PLR0913  # one object per process, wired once
        self,
        backend: Backend,
        scheduler: Scheduler,
        clock: Clock,
        post: Post,
        on_end: Callable[[Exception | None], object] | None = None,
        soon: Post | None = None,
        residency: Residency | None = None,
        in_flight: int = 1,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._scheduler = scheduler
        self._now_ns = clock.now_ns
        self._post = post
        self._on_end = on_end
        self._soon = soon
        self._most_in_flight = in_flight
        self._sleep = sleep
        self._residency = residency or EverythingResident()
        self._queue = DeviceQueue(
            backend, clock, self._residency, None if residency is None else self._prefetch
        )
        self._recovery = Recovery(self._queue, clock, self._residency)
        self._running: deque[tuple[Dispatch, RunningBatch]] = deque()  # the oldest first
        self.is_given_up = False
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def start(self) -> None:
        """Start the thread. Once."""
        self._scheduler.answer_by(self._post)
        if self._soon is not None:
            self._scheduler.announce_to(partial(self._soon, self._run_cheap))
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end after `Scheduler.drain` or `stop`; False when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        """True from `start` until the thread has ended. Any thread."""
        return self._thread.is_alive()

    def under_way(self) -> UnderWay | None:
        """What the device is at; None while it is at nothing. Any thread.

        A batch that has to wait until a model is warmed up is not at the device yet.
        """
        running = self._scheduler.running
        if not running or self._residency.is_held_up:
            return None
        waiting = self._scheduler.in_flight - sum(len(each.requests) for each in running)
        since_ns = max(running[0].started_ns, self._queue.moved_ns)
        return UnderWay(running[0], since_ns, max(0, waiting))

    def give_up(self, fault: DeviceLost) -> None:
        """Answer everybody in place of the thread, which hangs.

        Args:
            fault: for those in flight; those who wait are told that the server shuts down.

        Threading: loop thread.
        """
        self.is_given_up = True
        running = self._scheduler.running
        for dispatch in running:
            dispatch.model.statistics.failed_count += len(dispatch.requests)
        self._tell_end(fault, running)

    def _run(self) -> None:
        fault = self._serve_until_closed()
        with suppress(RuntimeError):  # a loop that is closed has nobody left to be told
            if not self.is_given_up:
                self._tell_end(fault, [dispatch for dispatch, _ in self._running])
        self._queue.close()

    def _tell_end(self, fault: Exception | None, left: Sequence[Dispatch]) -> None:
        """Say that the thread has ended, with a fault also to those whose batches it has left."""
        if fault is not None:
            for dispatch in left:
                everybody = dispatch.requests + dispatch.expired
                answer = as_ours(fault, dispatch.model.name)
                self._post(deliver, everybody, [answer for _ in everybody])
            self._post(self._scheduler.stop)
        if self._on_end is not None:
            self._post(self._on_end, fault)

    def _serve_until_closed(self) -> Exception | None:
        """Serve until the scheduler is closed, or until nothing can be served any more."""
        try:
            serve = self._serve_alone if self._most_in_flight == 1 else self._serve_overlapping
            while self._recovery.lost is None and serve():
                pass  # a call each: nothing of a dispatch is kept while the thread waits
        except Exception as error:  # noqa: BLE001  # our own fault, or a closed loop: logged
            log_event(log, "dispatch_thread_died", level=logging.CRITICAL, error=error)
            return error
        return self._recovery.lost

    def _serve_alone(self) -> bool:
        """Run one dispatch from its beginning to its end; False when the scheduler is closed."""
        dispatch = self._scheduler.next_dispatch()
        if dispatch is None:
            return False
        self._post(_deliver_dispatch, dispatch, *self._run_whole(dispatch))
        self._scheduler.end(dispatch)
        return True

    def _serve_overlapping(self) -> bool:
        """Begin the next dispatch or end the oldest; False when the scheduler is closed."""
        running = self._running
        if not running:
            dispatch = self._scheduler.next_dispatch()
        elif len(running) < self._most_in_flight:
            dispatch = self._next_behind()
        else:
            dispatch = None
        if dispatch is not None:
            self._start(dispatch)
        elif running:
            self._finish_oldest()
        else:
            return False
        return True

    def _next_behind(self) -> Dispatch | None:
        """Take the batch to prepare while others run, neither too early nor too late.

        None when nobody waits, or when it should run after them: its weights do not fit beside
        theirs.
        """
        scheduler = self._scheduler
        upcoming = scheduler.upcoming()
        if upcoming is None or scheduler.depth(upcoming) < upcoming.effective_max_batch_size:
            self._hold()
            upcoming = scheduler.upcoming()
        if upcoming is None or not self._residency.fits(upcoming):
            return None
        return scheduler.poll_dispatch()

    def _hold(self) -> None:
        """Let requests gather until half of the oldest running batch has passed."""
        dispatch, batch = self._running[0]
        cost_ns = dispatch.cost_ns
        if cost_ns > _HELD_NS and not isinf(cost_ns):
            wait_ns = self._queue.started_ns(batch) + cost_ns / 2 - self._now_ns()
            if wait_ns > 0:
                self._sleep(wait_ns / 1e9)

    def _prefetch(self) -> None:
        """Have the weights of the next model brought while a batch runs."""
        upcoming = self._scheduler.upcoming()
        if upcoming is not None and not self._residency.is_resident(upcoming):
            self._residency.prefetch(upcoming)

    def _start(self, dispatch: Dispatch) -> None:
        if not dispatch.requests:
            self._reply(dispatch, None, [])
            return
        try:
            batch = self._queue.begin(
                dispatch.model, dispatch.requests, dispatch.rows, dispatch.size
            )
        except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
            self._fail(dispatch, error, had_company=bool(self._running))
        else:
            self._running.append((dispatch, batch))

    def _finish_oldest(self) -> None:
        dispatch, batch = self._running.popleft()
        try:
            outputs = self._queue.end(batch)
        except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
            had_company = bool(self._running) or not batch.is_alone
            self._fail(dispatch, error, had_company=had_company)
        else:
            self._reply(dispatch, outputs, [])

    def _fail(self, dispatch: Dispatch, error: Exception, *, had_company: bool) -> None:
        while self._running:
            self._finish_oldest()
        self._reply(dispatch, *self._recover(dispatch, error, had_company=had_company))

    def _recover(
        self, dispatch: Dispatch, error: Exception, *, had_company: bool
    ) -> tuple[list[Array] | None, list[Outcome]]:
        try:
            return self._recovery.recover(dispatch, error, had_company=had_company)
        except Exception as fault:  # noqa: BLE001  # our own fault: logged, and nobody waits for ever
            log_event(log, "recovery_failed", level=logging.CRITICAL, error=fault)
            answer = as_ours(fault, dispatch.model.name)
            return None, [answer for _ in dispatch.requests]

    def _reply(
        self, dispatch: Dispatch, outputs: list[Array] | None, outcomes: list[Outcome]
    ) -> None:
        self._post(_deliver_dispatch, dispatch, outputs, [*outcomes, *_shed(dispatch)])
        self._scheduler.end(dispatch)

    def _run_cheap(self) -> None:
        """Run the next batch here, on the loop thread, if that is quicker than waking the other."""
        scheduler = self._scheduler
        try:
            dispatch = scheduler.take_cheap(CHEAP_NS, self._residency.is_resident)
        except Exception as error:  # noqa: BLE001  # our own fault: logged
            log_event(log, "take_cheap_failed", level=logging.CRITICAL, error=error)
            scheduler.wake()  # the other thread meets the same fault, and ends in order
            return
        if dispatch is None:
            return
        try:
            _deliver_dispatch(dispatch, *self._run_whole(dispatch))
        except Exception as error:  # noqa: BLE001  # our own fault: logged, and nobody waits for ever
            log_event(log, "cheap_dispatch_failed", level=logging.CRITICAL, error=error)
            everybody = dispatch.requests + dispatch.expired
            deliver(everybody, [as_ours(error, dispatch.model.name) for _ in everybody])
        finally:
            scheduler.end_cheap(dispatch)
        if self._recovery.lost is not None:
            scheduler.stop()  # the other thread wakes, finds nothing to do and tells why

    def _run_whole(self, dispatch: Dispatch) -> tuple[list[Array] | None, list[Outcome]]:
        outputs: list[Array] | None = None
        outcomes: list[Outcome] = []
        if dispatch.requests:
            try:
                outputs = self._queue.run(
                    dispatch.model, dispatch.requests, dispatch.rows, dispatch.size
                )
            except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
                outputs, outcomes = self._recover(dispatch, error, had_company=False)
        if dispatch.expired:
            outcomes = [*outcomes, *_shed(dispatch)]
        return outputs, outcomes


def _deliver_dispatch(
    dispatch: Dispatch, outputs: list[Array] | None, outcomes: list[Outcome]
) -> None:
    """Settle everybody whom a dispatch answers.

    What needs a look at each request is done here if it can be, and not on the dispatch thread,
    which meanwhile starts the next batch.

    Args:
        dispatch: what ran.
        outputs: those of the batch, checked, not yet cut; None when it failed or nothing ran.
        outcomes: of the requests if the batch failed, then of those that expired.

    Threading: loop thread.
    """
    model, requests = dispatch.model, dispatch.requests
    if outputs is not None:
        if len(requests) == 1 and (dispatch.rows == dispatch.size or not model.can_coalesce):
            outcomes = [outputs, *outcomes]
        else:
            rows = [request.rows for request in requests]
            outcomes = [*slice_rows(model.outputs, outputs, rows), *outcomes]
    model.statistics.record_waits([dispatch.started_ns - r.enqueued_ns for r in requests])
    deliver(requests + dispatch.expired, outcomes)


def _shed(dispatch: Dispatch) -> list[Outcome]:
    model, started_ns = dispatch.model, dispatch.started_ns
    model.statistics.shed_count += len(dispatch.expired)
    return [
        DeadlineExceeded(model.name, late_ns=started_ns - request.deadline_ns)
        for request in dispatch.expired
    ]
