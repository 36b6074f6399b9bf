"""What runs next on the device: one queue per model, one lock, one condition.

What lives here: admission to the queues and taking batches from them. What does not: the choice of
the model (`hloserve.engine.scheduling.discipline`), of the batch
(`hloserve.engine.scheduling.batching`), and running it (`hloserve.engine.dispatcher`).

Rules.
1. The loop thread submits, withdraws, adds and removes; the dispatch thread calls `next_dispatch`,
   and takes its batch itself, so the device does not wait for the loop. While that thread sleeps,
   the loop thread may take a cheap batch with `take_cheap` and run it; never both at once.
2. The lock is held for queue work only: no array is touched and no ticket is settled under it.
3. A request is in one place: a queue, one dispatch, or handed back by `remove` or `stop`. It is
   never lost and never given twice.
4. What a dispatch costs does not depend on how many idle models there are.
5. A queue belongs to a `DeviceModel`, not to a name: two generations of a model have two queues, so
   what was queued for the old one is answered by the old one while the new one serves.
6. A queue is in the order of arrival, but for requests of a priority (`ModelQueue`). Models are
   chosen by who is in front, whatever its priority.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from hloserve.core.clock import Clock
from hloserve.core.errors import ModelNotFound, QueueFull, ShuttingDown
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.scheduling.batching import plan_batch, saturation_rows
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.queued_request import ModelQueue, QueuedRequest, deliver, lone_size

__all__ = ["Dispatch", "Scheduler", "take_batch"]


@dataclass(slots=True)
class Dispatch:
    """One execution to be, and the requests that it answers.

    Attributes:
        model: whose program runs.
        requests: the batch, oldest first; all of one variant. Empty when all had expired.
        rows: rows they carry together.
        size: compiled batch size; 0 for a program without one.
        expired: requests whose deadline had passed; they are answered, not run.
        started_ns: instant at which the batch was taken from the queue.
    """

    model: DeviceModel
    requests: list[QueuedRequest]
    rows: int
    size: int
    expired: list[QueuedRequest]
    started_ns: int

    @property
    def variant(self) -> VariantKey:
        """The compiled shape that all requests of the batch need."""
        return self.requests[0].variant

    @property
    def cost_ns(self) -> float:
        """What the execution is known to take; infinite while that is unknown."""
        if not self.requests:
            return 0
        return self.model.statistics.costs_ns.get(self.variant, {}).get(self.size, inf)


class _Phase(Enum):
    OPEN = auto()
    DRAINING = auto()
    STOPPED = auto()


class Scheduler:
    """Queues of all models of one device.

    Args:
        clock: tells when requests came and whether they are late.
        discipline: picks the next model.
        max_queue_depth: most requests that wait per model.
    """

    def __init__(self, clock: Clock, discipline: Discipline, max_queue_depth: int) -> None:
        self._clock = clock
        self._discipline = discipline
        self._max_queue_depth = max_queue_depth
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._is_thread_waiting = False
        self._phase = _Phase.OPEN
        self._queues: dict[DeviceModel, ModelQueue] = {}
        self._waiting: dict[DeviceModel, ModelQueue] = {}  # the queues that are not empty
        self._running = 0
        self._running_model: DeviceModel | None = None
        self._on_idle: dict[DeviceModel, Callable[[], object]] = {}
        self._dispatch_thread = 0
        self._handed: Dispatch | None = None  # taken for the dispatch thread, which is waking up
        self._on_work: Callable[[], object] | None = None
        self._is_announced = False
        self._withdraw = self.withdraw  # bound once, not per request

    def announce_to(self, on_work: Callable[[], object]) -> None:
        """Tell somebody of work that comes while the dispatch thread sleeps, and let it sleep.

        Args:
            on_work: called once per piece of news, on the loop thread, by `submit`. It must lead to
                a call of `take_cheap` soon.
        """
        self._on_work = on_work

    def add(self, model: DeviceModel) -> None:
        """Open a queue for a model. Threading: loop thread."""
        with self._lock:
            assert model not in self._queues, f"model {model.name!r} is already scheduled"
            self._queues[model] = ModelQueue(model)

    def remove(
        self, model: DeviceModel, on_idle: Callable[[], object] | None = None
    ) -> list[QueuedRequest]:
        """Close a model's queue: who waits in it is failed with `ModelNotFound`.

        A batch of the model that is already running is answered as usual.

        Args:
            model: ignored when it is not scheduled.
            on_idle: called once no batch of the model runs and none will: at once, or by the thread
                that ran the last one, under the lock, so let it do no more than post. From then on
                the model's memory may be freed.

        Returns:
            The requests that waited, now settled.

        Threading: loop thread.
        """
        with self._lock:
            queue = self._queues.pop(model, None)
            self._waiting.pop(model, None)
            orphans = list(queue.requests) if queue is not None else []
            is_running = self._running_model is model
            if is_running and on_idle is not None:
                self._on_idle[model] = on_idle
        deliver(orphans, [ModelNotFound(model.name) for _ in orphans])
        if on_idle is not None and not is_running:
            on_idle()
        return orphans

    def submit(self, requests: Sequence[QueuedRequest]) -> None:
        """Queue one request, or all parts of a split one: all of them or, on an error, none.

        Args:
            requests: of one model, unsettled; not empty. An empty queue takes all parts of a
                request, even if they are more than its cap, since they would never fit otherwise.

        Raises:
            ShuttingDown: the server drains or has stopped. Retryable.
            ModelNotFound: the model is not, or no longer, scheduled.
            QueueFull: the model's queue is at its cap. Retryable.

        Threading: loop thread.
        """
        model = requests[0].model
        now_ns = self._clock.now_ns()
        withdraw = self._withdraw
        with self._lock:
            if self._phase is not _Phase.OPEN:
                raise ShuttingDown
            queue = self._queues.get(model)
            if queue is None:
                raise ModelNotFound(model.name)
            depth = len(queue.requests)
            if depth and depth + len(requests) > self._max_queue_depth:
                raise QueueFull(model.name, depth)
            for request in requests:
                request.enqueued_ns = now_ns
                request.withdraw = withdraw
            if requests[0].shift_ns or now_ns < queue.last_rank_ns:
                queue.insert(requests)
            else:
                queue.requests.extend(requests)
            if not depth:
                self._waiting[model] = queue
            if not self._is_thread_waiting or self._is_announced:
                return
            if self._on_work is None:
                self._wake()
                return
            self._is_announced = True
        self._on_work()

    def _wake(self) -> None:
        self._is_thread_waiting = False
        self._work.notify()

    def take_cheap(self, budget_ns: int) -> Dispatch | None:
        """Take the next batch to run it on this thread, if it costs no more than `budget_ns`.

        A batch that costs more, or nobody knows how much, goes to the dispatch thread: it is woken.
        When this gives a batch, call `end_cheap` after it ran, whatever became of it.

        Threading: loop thread. The dispatch thread sleeps meanwhile: only `drain`, `stop` and
        this wake it, and they are called on this thread.
        """
        with self._lock:
            self._is_announced = False
            if not self._is_thread_waiting or self._phase is _Phase.STOPPED:
                return None
            while self._waiting:
                dispatch = self._take()
                if not dispatch.requests and not dispatch.expired:
                    continue
                self._begin_batch(dispatch)
                if dispatch.cost_ns <= budget_ns:
                    return dispatch
                self._handed = dispatch
                self._wake()
                return None
        return None

    def end_cheap(self) -> None:
        """Say that the batch of `take_cheap` has run; what still waits is announced again.

        Threading: loop thread.
        """
        with self._lock:
            if self._is_thread_waiting:  # else a caller that it answered closed the scheduler
                self._end_batch()
            if not self._waiting or self._phase is _Phase.STOPPED or self._is_announced:
                return
            self._is_announced = True
        assert self._on_work is not None, "a cheap batch was taken, so somebody is told of work"
        self._on_work()

    def withdraw(self, request: QueuedRequest) -> None:
        """Take a cancelled request out of its queue; ignored when it has left it already.

        Threading: loop thread.
        """
        model = request.model
        with self._lock:
            queue = self._waiting.get(model)
            if queue is None:
                return
            try:
                queue.requests.remove(request)
            except ValueError:
                return
            if not queue.requests:
                del self._waiting[model]

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model; 0 for a model that is not scheduled. Any thread."""
        queue = self._queues.get(model)
        return len(queue.requests) if queue is not None else 0

    @property
    def in_flight(self) -> int:
        """Requests that wait or run, over all models. Any thread."""
        with self._lock:
            return self._running + sum(len(q.requests) for q in self._waiting.values())

    def wake(self) -> None:
        """Let the dispatch thread take what waits, cheap or not. Threading: loop thread."""
        with self._lock:
            self._wake()

    @property
    def is_thread_waiting(self) -> bool:
        """True while the dispatch thread sleeps, so that the loop may run batches. Any thread."""
        with self._lock:
            return self._is_thread_waiting

    def drain(self) -> None:
        """Accept nothing new; what is queued still runs, then `next_dispatch` gives None.

        Threading: loop thread.
        """
        with self._lock:
            self._close(_Phase.DRAINING)

    def stop(self) -> list[QueuedRequest]:
        """Accept and run nothing more: who waits is failed with `ShuttingDown`.

        A running batch is answered as usual. Idempotent.

        Returns:
            The requests that waited, now settled.

        Threading: loop thread.
        """
        with self._lock:
            self._close(_Phase.STOPPED)
            orphans = [r for queue in self._waiting.values() for r in queue.requests]
            if self._handed is not None:
                orphans = [*self._handed.requests, *self._handed.expired, *orphans]
                self._handed = None
                self._end_batch()
            for queue in self._waiting.values():
                queue.requests.clear()
            self._waiting.clear()
        deliver(orphans, [ShuttingDown() for _ in orphans])
        return orphans

    def _close(self, phase: _Phase) -> None:
        if self._phase is not _Phase.STOPPED:
            self._phase = phase
        self._wake()

    def next_dispatch(self) -> Dispatch | None:
        """Wait for work and take it; None when there is none and there will be none.

        Calling it says that the dispatch before has ended.

        Threading: the dispatch thread, always the same one; blocks.
        """
        thread = threading.get_ident()
        assert self._dispatch_thread in (0, thread), "batches are taken by two threads"
        self._dispatch_thread = thread
        with self._lock:
            if self._handed is None:
                self._end_batch()
            while True:
                if self._handed is not None:
                    dispatch, self._handed = self._handed, None
                    return dispatch
                while self._waiting and self._phase is not _Phase.STOPPED:
                    dispatch = self._take()
                    if dispatch.requests or dispatch.expired:
                        self._begin_batch(dispatch)
                        return dispatch
                if self._phase is not _Phase.OPEN:
                    self._end_batch()  # a cheap one, whose caller closed the scheduler
                    return None
                self._is_thread_waiting = True
                self._work.wait()

    def _take(self) -> Dispatch:
        now_ns = self._clock.now_ns()
        model = self._discipline.pick(self._waiting, now_ns)
        queue = self._waiting[model]
        dispatch = take_batch(queue, now_ns)
        if not queue.requests:
            del self._waiting[model]
        return dispatch

    def _begin_batch(self, dispatch: Dispatch) -> None:
        self._running = len(dispatch.requests)
        self._running_model = dispatch.model

    def _end_batch(self) -> None:
        """Note that nothing runs, and tell who waited for that."""
        self._running = 0
        model, self._running_model = self._running_model, None
        if self._on_idle and model is not None and (on_idle := self._on_idle.pop(model, None)):
            on_idle()


def take_batch(queue: ModelQueue, now_ns: int) -> Dispatch:
    """Take the next batch from the front of a queue.

    Who is cancelled or late leaves the queue first, so the size fits those who are served. The
    batch is drawn from the leading run of one variant.

    Source: spec "plan_batch", "Deadline admission".
    """
    model, waiting = queue.model, queue.requests
    live: list[QueuedRequest] = []
    gone: list[QueuedRequest] = []
    variant: VariantKey = ()
    sizes: tuple[int, ...] = ()
    rows = enough = 0
    for request in waiting:
        if request.is_cancelled or request.deadline_ns <= now_ns:
            gone.append(request)
            continue
        if not live:
            variant = request.variant
            sizes = model.sizes(variant)
            if model.can_coalesce and sizes:
                enough = saturation_rows(sizes, model.max_batch_size)
        elif rows >= enough or request.variant != variant:
            break
        live.append(request)
        rows += request.rows
    for _ in range(len(live) + len(gone)):
        waiting.popleft()
    expired = [request for request in gone if not request.is_cancelled]
    if not live:
        return Dispatch(model, [], 0, 0, expired, now_ns)
    if not enough or len(live) == 1:
        return Dispatch(model, live, rows, lone_size(model, live[0]), expired, now_ns)
    costs_ns = model.statistics.costs_ns.get(variant)
    plan = plan_batch([r.rows for r in live], sizes, model.max_batch_size, costs_ns)
    waiting.extendleft(reversed(live[plan.taken :]))
    del live[plan.taken :]
    return Dispatch(model, live, plan.rows, plan.size, expired, now_ns)
