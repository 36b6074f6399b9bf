"""Who waits for the device: one queue per model.

What lives here: admission to the queues, leaving them, and the choice of what is taken next. What
does not: the lock that guards all of it, and who may run what was taken
(`hloserve.engine.scheduling.scheduler`).

Rules.
1. What a choice costs depends on the models that wait, not on those that are idle.
2. Committed requests, the sub-calls of a meta model that already runs, stand before all others of
   their queue, and are served before all other models, in the order in which they came.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from hloserve.core.errors import ModelNotFound, QueueFull
from hloserve.core.requests import NEVER_NS
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.dispatch import Dispatch, Runway, take_batch
from hloserve.engine.scheduling.in_flight import InFlight
from hloserve.engine.scheduling.model_queue import ModelPolicy, ModelQueue
from hloserve.engine.scheduling.queued_request import QueuedRequest

__all__ = ["Queues"]


class Queues:
    """The queues of all models of one device.

    Args:
        discipline: picks the next model.
        max_depth: most requests that wait per model.
        policies: what operators set, by served name.
        weighs_costs: padded batches are taken when they are known to be cheaper.
        withdraw: what a request calls when it is cancelled while it waits.

    Attributes:
        waiting: the queues that are not empty.
        is_patient: batches may be held back until they are full.

    Threading: guarded by the scheduler's lock.
    """

    def __init__(
        self,
        discipline: Discipline,
        max_depth: int,
        policies: Mapping[str, ModelPolicy],
        withdraw: Callable[[QueuedRequest], None],
        *,
        weighs_costs: bool,
    ) -> None:
        self._discipline = discipline
        self._max_depth = max_depth
        self._policies = dict(policies)
        self._withdraw = withdraw
        self._weighs_costs = weighs_costs
        self.is_patient = any(policy.max_delay_ns for policy in policies.values())
        self._of: dict[DeviceModel, ModelQueue] = {}
        self.waiting: dict[DeviceModel, ModelQueue] = {}
        self._committed: dict[QueuedRequest, None] = {}  # of all queues, in order of arrival

    def open(self, model: DeviceModel) -> None:
        """Give a model a queue."""
        assert model not in self._of, f"model {model.name!r} is already scheduled"
        queue = self._of[model] = ModelQueue(model, self._policy(model))
        queue.weighs_costs = self._weighs_costs
        self._discipline.joined(queue)

    def _policy(self, model: DeviceModel) -> ModelPolicy:
        return self._policies.get(model.name) or ModelPolicy()

    def close(self, model: DeviceModel) -> list[QueuedRequest]:
        """Take a model's queue away, if it has one; returns who waited in it."""
        queue = self._of.pop(model, None)
        if queue is None:
            return []
        self.waiting.pop(model, None)
        self._discipline.left(queue)
        self._forget(queue.requests)
        return list(queue.requests)

    def empty(self) -> list[QueuedRequest]:
        """Let everybody go; returns who waited."""
        orphans = [request for queue in self.waiting.values() for request in queue.requests]
        for queue in self.waiting.values():
            queue.requests.clear()
            queue.emptied()
        self.waiting.clear()
        self._committed.clear()
        return orphans

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model; 0 for one without a queue. Any thread."""
        queue = self._of.get(model)
        return len(queue.requests) if queue is not None else 0

    def weight(self, model: DeviceModel) -> float:
        """A model's share of the device, relative to the others. Any thread."""
        return self._policy(model).weight

    def set_weight(self, model: DeviceModel, weight: float) -> None:
        """Change a model's share, also for later generations of the same name."""
        self._policies[model.name] = self._policy(model)._replace(weight=weight)
        self.apply_policy(model)

    def apply_policy(self, model: DeviceModel) -> None:
        """Let what was set for a model's present name hold from now on."""
        queue = self._of.get(model)
        if queue is not None:
            queue.policy = self._policy(model)
            self._discipline.joined(queue)

    def put(
        self, requests: Sequence[QueuedRequest], now_ns: int, *, is_committed: bool
    ) -> ModelQueue:
        """Queue the parts of one request, all or, on an error, none; returns their queue.

        Raises:
            ModelNotFound: the model has no queue.
            QueueFull: its queue is at its cap.
        """
        model = requests[0].model
        queue = self._of.get(model)
        if queue is None:
            raise ModelNotFound(model.name)
        depth = len(queue.requests)
        if depth and depth + len(requests) > self._max_depth:
            raise QueueFull(model.name, depth)
        withdraw = self._withdraw
        for request in requests:
            request.enqueued_ns = now_ns
            request.withdraw = withdraw
        if is_committed or self._committed:
            place = self._committed_in_front(queue)
            if is_committed:
                queue.place(requests, place)
                self._committed.update(dict.fromkeys(requests))
            else:
                queue.insert(requests, place)
        elif requests[0].shift_ns or now_ns < queue.last_rank_ns:
            queue.insert(requests)
        else:
            queue.requests.extend(requests)
        if not depth:
            self.waiting[model] = queue
        return queue

    def _committed_in_front(self, queue: ModelQueue) -> int:
        committed = self._committed
        return next(
            (place for place, request in enumerate(queue.requests) if request not in committed),
            len(queue.requests),
        )

    def remove(self, request: QueuedRequest) -> None:
        """Take a request out of its queue; ignored when it has left it already."""
        self._committed.pop(request, None)
        queue = self.waiting.get(request.model)
        if queue is None:
            return
        try:
            queue.requests.remove(request)
        except ValueError:
            return
        if not queue.requests:
            queue.emptied()
            del self.waiting[request.model]

    def pick(self, now_ns: int) -> DeviceModel | None:
        """Whose batch is next, None when all who wait are held back; somebody waits."""
        if self._committed:
            for request in self._committed:
                if not request.is_cancelled:  # else it may have left its queue already
                    return request.model
        waiting = self.waiting
        if self.is_patient:
            waiting = {m: q for m, q in waiting.items() if q.held_until_ns() <= now_ns}
            if not waiting:
                return None
        return self._discipline.pick(waiting, now_ns)

    def upcoming(self, now_ns: int, running: InFlight) -> DeviceModel | None:
        """Whose batch is next, also when it is held back; None when nobody waits."""
        if not self.waiting:
            return None
        if self._discipline.is_charged:
            self._charge_ahead(running, now_ns)
        return self.pick(now_ns) or min(self.waiting.values(), key=ModelQueue.held_until_ns).model

    def is_held(self, queue: ModelQueue, now_ns: int, seen_ns: int) -> bool:
        """True when a batch is held back, and somebody looks at `seen_ns` whether it is due."""
        if not queue.policy.max_delay_ns or not self.is_patient:
            return False
        until_ns = queue.held_until_ns()
        return now_ns < until_ns and seen_ns <= until_ns

    def due_ns(self) -> int:
        """When the first of those who are held back will have waited enough; else `NEVER_NS`."""
        if not self.is_patient:
            return NEVER_NS
        return min((queue.held_until_ns() for queue in self.waiting.values()), default=NEVER_NS)

    def take(self, now_ns: int, running: InFlight) -> Dispatch | None:
        """Take the next batch, None when all who wait are held back; somebody waits.

        It may be of nobody, when all who waited there had cancelled.

        Args:
            now_ns: the instant.
            running: what runs before it.
        """
        if running.dispatches and self._discipline.is_charged:
            self._charge_ahead(running, now_ns)
        model = self.pick(now_ns)
        if model is None:
            return None
        queue = self.waiting[model]
        runway = None
        if self._discipline.sheds_hopeless:
            runway = Runway(running.free_ns(now_ns), self._committed)
        dispatch = take_batch(queue, now_ns, runway)
        queue.served_ns = now_ns
        if self._committed:
            self._forget(dispatch.requests)
            self._forget(dispatch.expired)
        if not queue.requests:
            queue.emptied()
            del self.waiting[model]
        return dispatch

    def charge(self, dispatch: Dispatch) -> None:
        """Tell the discipline what a dispatch has taken of the device, which has ended."""
        queue = self._of.get(dispatch.model)
        if queue is None:
            return
        spent_ns = dispatch.model.statistics.compute_ns
        used_ns, queue.charged_ns = spent_ns - queue.charged_ns, spent_ns
        left_ns = used_ns - dispatch.charged_ns
        if left_ns:
            self._discipline.charge(queue, left_ns, dispatch.started_ns + used_ns)

    def _charge_ahead(self, running: InFlight, now_ns: int) -> None:
        """Let a choice know what those will have used who are in flight, as far as one can tell."""
        for dispatch in running.dispatches:
            queue = self._of.get(dispatch.model)
            cost_ns = dispatch.cost_ns
            if queue is not None and not dispatch.charged_ns and cost_ns != inf:
                dispatch.charged_ns = round(cost_ns)
                self._discipline.charge(queue, dispatch.charged_ns, now_ns)

    def _forget(self, requests: Iterable[QueuedRequest]) -> None:
        for request in requests:
            self._committed.pop(request, None)
