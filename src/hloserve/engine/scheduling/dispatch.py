"""One execution to be, and how it is drawn from the front of a queue.

What lives here: `Dispatch`, and `take_batch`, which changes a queue and nothing else. What does
not: whose queue goes next (`hloserve.engine.scheduling.discipline`) and how many of its requests
(`hloserve.engine.scheduling.batching`). Called by the scheduler, under its lock.
"""

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from hloserve.core.requests import NEVER_NS
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.scheduling.batching import BatchPlan, plan_batch, saturation_rows
from hloserve.engine.scheduling.model_queue import ModelQueue, known_cost_ns
from hloserve.engine.scheduling.queued_request import QueuedRequest, lone_size

__all__ = ["Dispatch", "Runway", "take_batch"]


@dataclass(slots=True, eq=False)
class Dispatch:
    """One execution to be, and the requests that it answers.

    Attributes:
        model: whose program runs.
        requests: the batch, oldest first; all of one variant. Empty when all had expired.
        rows: rows they carry together.
        size: compiled batch size; 0 for a program without one.
        expired: requests whose deadline had passed, or would pass before their end where the
            discipline heeds that; they are answered, not run.
        started_ns: instant at which the batch was taken from the queue.
        charged_ns: computing time that the discipline was told of before the batch has ended.
    """

    model: DeviceModel
    requests: list[QueuedRequest]
    rows: int
    size: int
    expired: list[QueuedRequest]
    started_ns: int
    charged_ns: int = 0

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


def take_batch(queue: ModelQueue, now_ns: int, runway: "Runway | None" = None) -> Dispatch:
    """Take the next batch from the front of a queue.

    Who is cancelled or late leaves the queue first, so the size fits those who are served. The
    batch is drawn from the leading run of one variant.

    Args:
        queue: not empty.
        now_ns: the instant.
        runway: knows who would end too late; None when everybody runs whose deadline has not
            passed.

    Source: spec "plan_batch", "Deadline admission".
    """
    model, waiting = queue.model, queue.requests
    live: list[QueuedRequest] = []
    gone: list[QueuedRequest] = []
    variant: VariantKey = ()
    sizes: tuple[int, ...] = ()
    rows = enough = 0
    for request in waiting:
        if (
            request.is_cancelled
            or request.deadline_ns <= now_ns
            or (runway is not None and runway.is_hopeless(request))
        ):
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
    costs_ns = model.statistics.costs_ns.get(variant) if queue.weighs_costs else None
    plan = plan_batch([r.rows for r in live], sizes, model.max_batch_size, costs_ns)
    if runway is not None:
        plan = runway.shorten(plan, live, sizes, costs_ns)
    waiting.extendleft(reversed(live[plan.taken :]))
    del live[plan.taken :]
    return Dispatch(model, live, plan.rows, plan.size, expired, now_ns)


class Runway:
    """Who ends before their deadline, if their batch starts at a certain instant.

    Costs are those of the quickest runs (`ModelStatistics.learn_cost`), so nobody is left out who
    could have made it.

    Args:
        start_ns: when the device is free for the batch.
        committed: requests that are run as long as their deadline has not passed.
    """

    __slots__ = ("_committed", "_start_ns")

    def __init__(self, start_ns: int, committed: Container[QueuedRequest]) -> None:
        self._start_ns = start_ns
        self._committed = committed

    def is_hopeless(self, request: QueuedRequest) -> bool:
        """True when a request would be late even if it ran alone and at once."""
        if request.deadline_ns == NEVER_NS:
            return False
        return self._is_late(request, lone_size(request.model, request))

    def _is_late(self, request: QueuedRequest, size: int) -> bool:
        end_ns = self._start_ns + known_cost_ns(request.model, request.variant, size)
        return request.deadline_ns <= end_ns and request not in self._committed

    def shorten(
        self,
        plan: BatchPlan,
        live: Sequence[QueuedRequest],
        sizes: Sequence[int],
        costs_ns: Mapping[int, float] | None,
    ) -> BatchPlan:
        """Make a batch so small that all who are in it end in time.

        The batch ends before the first request that it would make late, which leads the next one.
        If that is the front request, it runs in a smaller program.

        Args:
            plan: of what is live.
            live: of one variant, oldest first, none of them hopeless.
            sizes: compiled batch sizes.
            costs_ns: as for `plan_batch`.
        """
        cap = live[0].model.max_batch_size
        rows = [request.rows for request in live]
        while True:
            late = (n for n in range(plan.taken) if self._is_late(live[n], plan.size))
            first = next(late, None)
            if first is None:
                return plan
            if first > 0:
                del rows[first:]
            else:
                sizes = sizes[: bisect_left(sizes, plan.size)]
            plan = plan_batch(rows, sizes, cap, costs_ns)
