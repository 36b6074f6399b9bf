"""What runs next on the device: one queue per model, one lock, one condition.

What lives here: the lock, which thread may take what when, and the end. What does not: the queues
(`hloserve.engine.scheduling.queues`), the choice of the model
(`hloserve.engine.scheduling.discipline`), of the batch (`hloserve.engine.scheduling.batching`), and
running it (`hloserve.engine.dispatcher`).

Rules.
1. The loop thread submits, withdraws, adds and removes; the dispatch thread calls `next_dispatch`
   and `poll_dispatch`, and takes its batches itself, so the device does not wait for the loop.
   While it sleeps, the loop thread may take a cheap batch with `take_cheap`; never both at once.
2. The lock is held for queue work only: no array is touched and no ticket is settled under it.
3. A request is in one place: a queue, one dispatch, or handed back by `remove` or `stop`. It is
   never lost and never given twice.
4. What a dispatch costs does not depend on how many idle models there are.
5. A queue belongs to a `DeviceModel`, not to a name: two generations of a model have two queues, so
   what was queued for the old one is answered by the old one while the new one serves.
6. A queue is in the order of arrival, but for requests of a priority (`ModelQueue`). Models are
   chosen by who is in front, whatever its priority.
7. A batch is in flight from its taking until `end`. Commands wait until none is.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from hloserve.core.clock import Clock
from hloserve.core.errors import ModelNotFound, ShuttingDown
from hloserve.core.requests import NEVER_NS
from hloserve.core.tickets import Ticket
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.commands import Command, run_commands
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.in_flight import InFlight
from hloserve.engine.scheduling.model_queue import ModelPolicy
from hloserve.engine.scheduling.queued_request import QueuedRequest, deliver
from hloserve.engine.scheduling.queues import Queues
from hloserve.engine.scheduling.sleep import Sleep

__all__ = ["Scheduler"]

T = TypeVar("T")


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
        policies: what operators set for models, by served name.
        weighs_costs: padded batches are taken when they are known to be cheaper.
    """

    def __init__(
        self,
        clock: Clock,
        discipline: Discipline,
        max_queue_depth: int,
        policies: Mapping[str, ModelPolicy] | None = None,
        *,
        weighs_costs: bool = True,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sleep = Sleep(self._lock, clock)  # of the dispatch thread
        self._phase = _Phase.OPEN
        self._queues = Queues(
            discipline, max_queue_depth, policies or {}, self.withdraw, weighs_costs=weighs_costs
        )
        self._is_charged = discipline.is_charged
        self._running = InFlight()
        self._commands: list[Command[Any]] = []
        self._post: Callable[..., object] | None = None
        self._handed: Dispatch | None = None  # taken for the dispatch thread, which is waking up
        self._on_work: Callable[[], object] | None = None
        self._is_announced = False

    def announce_to(self, on_work: Callable[[], object]) -> None:
        """Tell somebody of work that comes while the dispatch thread sleeps, and let it sleep.

        Args:
            on_work: called once per piece of news, on the loop thread, by `submit`. It must lead to
                a call of `take_cheap` soon.
        """
        self._on_work = on_work

    def answer_by(self, post: Callable[..., object]) -> None:
        """Bring results of commands to the loop by `post`: `loop.call_soon_threadsafe`."""
        self._post = post

    def add(self, model: DeviceModel) -> None:
        """Open a queue for a model. Threading: loop thread."""
        with self._lock:
            self._queues.open(model)

    def remove(
        self, model: DeviceModel, on_idle: Callable[[], object] | None = None
    ) -> list[QueuedRequest]:
        """Close a model's queue: who waits in it is failed with `ModelNotFound`.

        Batches of the model that are already in flight are answered as usual.

        Args:
            model: ignored when it is not scheduled.
            on_idle: called once no batch of the model is in flight and none will be: at once, or by
                the thread that ended the last one, under the lock, so let it do no more than post.
                From then on the model's memory may be freed.

        Returns:
            The requests that waited, now settled.

        Threading: loop thread.
        """
        with self._lock:
            orphans = self._queues.close(model)
            is_running = self._running.has(model)
            if is_running and on_idle is not None:
                self._running.when_idle(model, on_idle)
        deliver(orphans, [ModelNotFound(model.name) for _ in orphans])
        if on_idle is not None and not is_running:
            on_idle()
        return orphans

    def submit(self, requests: Sequence[QueuedRequest], *, is_committed: bool = False) -> None:
        """Queue one request, or all parts of a split one: all of them or, on an error, none.

        Args:
            requests: of one model, unsettled; not empty. An empty queue takes all parts of a
                request, even if they are more than its cap, since they would never fit otherwise.
            is_committed: what they are part of already runs: they go before all others, in the
                order in which they came, whatever the discipline and their priority.

        Raises:
            ShuttingDown: the server drains or has stopped. Retryable.
            ModelNotFound: the model is not, or no longer, scheduled.
            QueueFull: the model's queue is at its cap. Retryable.

        Threading: loop thread.
        """
        now_ns = self._clock.now_ns()
        with self._lock:
            if self._phase is not _Phase.OPEN:
                raise ShuttingDown
            queue = self._queues.put(requests, now_ns, is_committed=is_committed)
            if not self._sleep.is_on or self._is_announced:
                return
            if not is_committed and self._queues.is_held(queue, now_ns, self._sleep.until_ns):
                return  # the dispatch thread will see to it by itself
            if self._on_work is None:
                self._sleep.end()
                return
            self._is_announced = True
        self._on_work()

    def command(self, run: Callable[[], T]) -> Ticket[T]:
        """Have something done on the dispatch thread, while nothing is in flight.

        Commands go before batches, in the order in which they came.

        Args:
            run: what to do. No request is served meanwhile.

        Returns:
            Resolves to what `run` returns, or fails with what it raises; with `ShuttingDown` when
            the server drains, or stops before its turn.

        Threading: loop thread.
        """
        command = Command(run)
        with self._lock:
            is_open = self._phase is _Phase.OPEN
            if is_open:
                self._commands.append(command)
                self._sleep.end()
        if not is_open:
            command.fail(ShuttingDown())
        return command

    def take_cheap(
        self, budget_ns: int, is_resident: Callable[[DeviceModel], bool] = lambda _: True
    ) -> Dispatch | None:
        """Take the next batch to run it on this thread, if it costs no more than `budget_ns`.

        A batch that costs more, or nobody knows how much, goes to the dispatch thread: it is woken.
        When this gives a batch, call `end_cheap` after it ran, whatever became of it.

        Args:
            budget_ns: most computing time.
            is_resident: asked whether the model's weights are on the device; a batch that would
                have to load them is not cheap. Called under the lock.

        Threading: loop thread. The dispatch thread sleeps meanwhile: only `command`, `drain`,
        `stop` and this wake it, and they are called on this thread.
        """
        with self._lock:
            self._is_announced = False
            if not self._sleep.is_on or self._phase is _Phase.STOPPED:
                return None
            dispatch = self._take()
            if dispatch is None:
                if self._queues.due_ns() < self._sleep.until_ns:
                    self._sleep.end()  # it sees when the batches are due that are held back
                return None
            if dispatch.cost_ns <= budget_ns and is_resident(dispatch.model):
                return dispatch
            self._handed = dispatch
            self._sleep.end()
            return None

    def end_cheap(self, dispatch: Dispatch) -> None:
        """Say that the batch of `take_cheap` has run; what still waits is announced again.

        Threading: loop thread.
        """
        with self._lock:
            self._end(dispatch)
            if not self._sleep.is_on or not self._queues.waiting or self._is_announced:
                return  # the thread that a caller it answered woke takes what waits
            self._is_announced = True
        assert self._on_work is not None, "a cheap batch was taken, so somebody is told of work"
        self._on_work()

    def withdraw(self, request: QueuedRequest) -> None:
        """Take a cancelled request out of its queue; ignored when it has left it already.

        Threading: loop thread.
        """
        with self._lock:
            self._queues.remove(request)

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model; 0 for a model that is not scheduled. Any thread."""
        return self._queues.depth(model)

    def weight(self, model: DeviceModel) -> float:
        """A model's share of the device, relative to the other models. Any thread."""
        return self._queues.weight(model)

    def set_weight(self, model: DeviceModel, weight: float) -> None:
        """Change a model's share, which is more than 0, also for later generations of its name.

        Threading: loop thread.
        """
        assert weight > 0, f"the weight of model {model.name!r} is {weight}"
        with self._lock:
            self._queues.set_weight(model, weight)

    def renamed(self, model: DeviceModel) -> None:
        """Let what operators set for a model's new name hold. Threading: loop thread."""
        with self._lock:
            self._queues.apply_policy(model)

    @property
    def in_flight(self) -> int:
        """Requests that wait or run, over all models. Any thread."""
        with self._lock:
            waiting = sum(len(queue.requests) for queue in self._queues.waiting.values())
            return self._running.requests + waiting

    @property
    def running(self) -> Sequence[Dispatch]:
        """The batches that were taken and have not ended, the oldest first. Any thread."""
        with self._lock:
            return tuple(self._running.dispatches)

    def wake(self) -> None:
        """Let the dispatch thread take what waits, cheap or not. Threading: loop thread."""
        with self._lock:
            self._sleep.end()

    @property
    def is_thread_waiting(self) -> bool:
        """True while the dispatch thread sleeps, so that the loop may run batches. Any thread."""
        with self._lock:
            return self._sleep.is_on

    def hold_nothing(self) -> None:
        """Hold no batch back from now on, full or not. Threading: loop thread."""
        with self._lock:
            self._queues.is_patient = False
            self._sleep.end()

    def drain(self) -> None:
        """Accept nothing new; what is queued still runs, then `next_dispatch` gives None.

        Threading: loop thread.
        """
        with self._lock:
            self._close(_Phase.DRAINING)

    def stop(self) -> list[QueuedRequest]:
        """Accept and run nothing more: who waits is failed with `ShuttingDown`, commands as well.

        Batches in flight are answered as usual. Idempotent.

        Returns:
            The requests that waited, now settled.

        Threading: loop thread.
        """
        with self._lock:
            self._close(_Phase.STOPPED)
            orphans = self._queues.empty()
            if self._handed is not None:
                orphans = [*self._handed.requests, *self._handed.expired, *orphans]
                self._end(self._handed)
                self._handed = None
            commands, self._commands = self._commands, []
        deliver(orphans, [ShuttingDown() for _ in orphans])
        for command in commands:
            command.fail(ShuttingDown())
        return orphans

    def _close(self, phase: _Phase) -> None:
        if self._phase is not _Phase.STOPPED:
            self._phase = phase
        self._queues.is_patient = False
        self._sleep.end()

    def next_dispatch(self) -> Dispatch | None:
        """Wait for work and take it; None when there is none and there will be none.

        Runs the commands that wait, before anything else: so have no batch in flight. Blocks.

        Threading: the dispatch thread, always the same one.
        """
        self._sleep.check_thread()
        while True:
            with self._lock:
                dispatch = self._wait_for_work()
                if not self._commands:
                    return dispatch
                commands, self._commands = self._commands, []
            assert self._post is not None, "a command came, and nobody said how to answer it"
            run_commands(commands, self._post)

    def _wait_for_work(self) -> Dispatch | None:
        """The next batch; None when commands wait, or when there is nothing and will be nothing."""
        while not self._commands:
            dispatch, self._handed = self._handed or self._take(), None
            if dispatch is not None:
                return dispatch
            if self._phase is not _Phase.OPEN:
                return None
            self._sleep.begin(self.due_ns)
        return None

    def due_ns(self) -> int:
        """When the dispatch thread must look again at what is held back. Under the lock, or alone.

        While the loop runs a cheap batch the device is its own, and it comes for more after it.
        """
        return NEVER_NS if self._running.dispatches else self._queues.due_ns()

    def poll_dispatch(self) -> Dispatch | None:
        """Take the next batch while another one is in flight; None when nothing should be taken.

        Then end what is in flight and call `next_dispatch`. Threading: dispatch thread; at once.
        """
        self._sleep.check_thread()
        with self._lock:
            return None if self._commands else self._take()

    def upcoming(self) -> DeviceModel | None:
        """Whose batch would be taken now, None when nobody waits. Threading: dispatch thread."""
        with self._lock:
            return self._queues.upcoming(self._clock.now_ns(), self._running)

    def end(self, dispatch: Dispatch) -> None:
        """Say that a batch has ended, whatever became of it. Threading: dispatch thread."""
        with self._lock:
            self._end(dispatch)

    def _take(self) -> Dispatch | None:
        """The next batch, from now on in flight; None when there is none or the end has come."""
        queues = self._queues
        while queues.waiting and self._phase is not _Phase.STOPPED:
            now_ns = self._clock.now_ns()
            if (dispatch := queues.take(now_ns, self._running)) is None:
                return None
            if dispatch.requests or dispatch.expired:
                self._running.dispatches.append(dispatch)
                return dispatch
        return None

    def _end(self, dispatch: Dispatch) -> None:
        self._running.end(dispatch)
        if self._is_charged:
            self._queues.charge(dispatch)
