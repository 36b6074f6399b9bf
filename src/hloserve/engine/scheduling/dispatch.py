"""One execution to be, and how it is drawn from the front of a queue.

What lives here: `Dispatch`, and `take_batch`, which changes a queue and nothing else. What does
not: whose queue goes next (`hloserve.engine.scheduling.discipline`) and how many of its requests
(`hloserve.engine.scheduling.batching`). Called by the scheduler, under its lock.
"""

from dataclasses import dataclass
from math import inf

from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.scheduling.batching import plan_batch, saturation_rows
from hloserve.engine.scheduling.queued_request import ModelQueue, QueuedRequest, lone_size

__all__ = ["Dispatch", "take_batch"]


@dataclass(slots=True, eq=False)
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
