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

from hloserve.core.errors import ModelNotFound, QueueFull
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.dispatch import Dispatch, take_batch
from hloserve.engine.scheduling.queued_request import ModelQueue, QueuedRequest

__all__ = ["Queues"]


class Queues:
    """The queues of all models of one device.

    Args:
        discipline: picks the next model.
        max_depth: most requests that wait per model.
        weights: shares of the device by served name, 1 for who is not named.
        withdraw: what a request calls when it is cancelled while it waits.

    Attributes:
        waiting: the queues that are not empty.

    Threading: guarded by the scheduler's lock.
    """

    __slots__ = (
        "_committed",
        "_discipline",
        "_max_depth",
        "_of",
        "_weights",
        "_withdraw",
        "waiting",
    )

    def __init__(
        self,
        discipline: Discipline,
        max_depth: int,
        weights: Mapping[str, float],
        withdraw: Callable[[QueuedRequest], None],
    ) -> None:
        self._discipline = discipline
        self._max_depth = max_depth
        self._weights = dict(weights)
        self._withdraw = withdraw
        self._of: dict[DeviceModel, ModelQueue] = {}
        self.waiting: dict[DeviceModel, ModelQueue] = {}
        self._committed: dict[QueuedRequest, None] = {}  # of all queues, in order of arrival

    def open(self, model: DeviceModel) -> None:
        """Give a model a queue."""
        assert model not in self._of, f"model {model.name!r} is already scheduled"
        queue = self._of[model] = ModelQueue(model)
        queue.weight = self._weights.get(model.name, 1.0)

    def close(self, model: DeviceModel) -> list[QueuedRequest]:
        """Take a model's queue away, if it has one; returns who waited in it."""
        queue = self._of.pop(model, None)
        if queue is None:
            return []
        self.waiting.pop(model, None)
        self._forget(queue.requests)
        return list(queue.requests)

    def empty(self) -> list[QueuedRequest]:
        """Let everybody go; returns who waited."""
        orphans = [request for queue in self.waiting.values() for request in queue.requests]
        for queue in self.waiting.values():
            queue.requests.clear()
        self.waiting.clear()
        self._committed.clear()
        return orphans

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model; 0 for one without a queue. Any thread."""
        queue = self._of.get(model)
        return len(queue.requests) if queue is not None else 0

    def weight(self, model: DeviceModel) -> float:
        """A model's share of the device, relative to the others. Any thread."""
        queue = self._of.get(model)
        return queue.weight if queue is not None else self._weights.get(model.name, 1.0)

    def set_weight(self, model: DeviceModel, weight: float) -> None:
        """Change a model's share, also for later generations of the same name."""
        self._weights[model.name] = weight
        queue = self._of.get(model)
        if queue is not None:
            queue.weight = weight

    def put(self, requests: Sequence[QueuedRequest], now_ns: int, *, is_committed: bool) -> None:
        """Queue the parts of one request, all or, on an error, none.

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

    def _committed_in_front(self, queue: ModelQueue) -> int:
        committed = self._committed
        return next(
            (place for place, request in enumerate(queue.requests) if request not in committed),
            len(queue.requests),
        )

    def remove(self, request: QueuedRequest) -> None:
        """Take a request out of its queue; ignored when it has left it already."""
        self._forget((request,))
        queue = self.waiting.get(request.model)
        if queue is None:
            return
        try:
            queue.requests.remove(request)
        except ValueError:
            return
        if not queue.requests:
            del self.waiting[request.model]

    def pick(self, now_ns: int) -> DeviceModel:
        """Whose batch is next; somebody waits. Changes nothing."""
        for request in self._committed:
            if not request.is_cancelled:  # else it may have left its queue already
                return request.model
        return self._discipline.pick(self.waiting, now_ns)

    def take(self, now_ns: int) -> Dispatch:
        """Take the next batch; somebody waits.

        It may be of nobody, when all who waited there had cancelled.
        """
        model = self.pick(now_ns)
        queue = self.waiting[model]
        dispatch = take_batch(queue, now_ns)
        self._forget(dispatch.requests)
        self._forget(dispatch.expired)
        if not queue.requests:
            del self.waiting[model]
        return dispatch

    def _forget(self, requests: Iterable[QueuedRequest]) -> None:
        if self._committed:
            for request in requests:
                self._committed.pop(request, None)
