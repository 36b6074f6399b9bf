"""The queue of one model: who waits, in which order, and what its next batch would be.

What lives here: `ModelQueue`, what operators set for it, and `NextBatch`, an estimate for choices
between models. What does not: the choice (`hloserve.engine.scheduling.discipline`) and taking the
batch, which looks at every request (`hloserve.engine.scheduling.dispatch`). All of it is guarded by
the scheduler's lock.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from hloserve.core.requests import NEVER_NS
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.scheduling.batching import DISPATCH_OVERHEAD_NS, plan_batch, saturation_rows
from hloserve.engine.scheduling.queued_request import QueuedRequest, lone_size

__all__ = ["UNKNOWN_COST_NS", "ModelPolicy", "ModelQueue", "NextBatch", "known_cost_ns"]

UNKNOWN_COST_NS = 10_000_000
"""What a program is taken to cost that never ran. Source: spec "Selection"."""


def known_cost_ns(model: DeviceModel, variant: VariantKey, size: int) -> float:
    """What an execution is known to take; a guess when it was never timed."""
    costs = model.statistics.costs_ns.get(variant)
    return UNKNOWN_COST_NS if costs is None else costs.get(size, UNKNOWN_COST_NS)


class ModelPolicy(NamedTuple):
    """What operators set for one model.

    Attributes:
        weight: its share of the device, relative to the others; greater than 0.
        max_delay_ns: how long a batch that is not full waits for more rows.
    """

    weight: float = 1.0
    max_delay_ns: int = 0


class ModelQueue:
    """Requests that wait for one model, in the order of their turns.

    A request's turn is that of its arrival, moved by `PRIORITY_STEP_NS` for each step between its
    priority and the usual one. So a smaller priority passes a larger one, unless that has waited
    so much longer; among equals who came first goes first; and nobody is passed for ever: from some
    time after its arrival on, nothing that comes is put before a request.

    Attributes:
        requests: in that order.
        last_rank_ns: turns after this instant are those of requests of no priority that come from
            now on, so they go to the end.
        policy: what operators set.
        weighs_costs: a padded batch is taken when it is known to be cheaper.
        usage: how much of the device the model used lately, as its discipline counts it.
        charged_ns: of the model's computing time, what the discipline was told of.
        served_ns: when a batch was last taken from it.
    """

    __slots__ = (
        "_next_batch",
        "_soonest_ns",
        "_soonest_of",
        "charged_ns",
        "last_rank_ns",
        "model",
        "policy",
        "requests",
        "served_ns",
        "usage",
        "weighs_costs",
    )

    def __init__(self, model: DeviceModel, policy: ModelPolicy | None = None) -> None:
        self.model = model
        self.policy = policy or ModelPolicy()
        self.requests: deque[QueuedRequest] = deque()
        self.last_rank_ns = 0
        self.weighs_costs = True
        self.usage = 0.0
        self.charged_ns = model.statistics.compute_ns
        self.served_ns = 0
        self._next_batch: NextBatch | None = None
        self._soonest_of: tuple[object, ...] = ()
        self._soonest_ns = NEVER_NS

    def insert(self, requests: Sequence[QueuedRequest], first: int = 0) -> None:
        """Queue the parts of one request at their place, which is not before place `first`."""
        rank_ns = _rank_ns(requests[0])
        self.place(requests, bisect_right(self.requests, rank_ns, first, key=_rank_ns))
        self.last_rank_ns = max(self.last_rank_ns, rank_ns)

    def place(self, requests: Sequence[QueuedRequest], place: int) -> None:
        """Queue the parts of one request at that place, whatever their turn."""
        for offset, request in enumerate(requests):
            self.requests.insert(place + offset, request)

    def next_batch(self) -> "NextBatch":
        """What would be taken from the queue, which is not empty; remembered until it changes."""
        known = self._next_batch
        if known is None or not known.is_of(self):
            known = self._next_batch = NextBatch(self)
        return known

    def soonest_deadline_ns(self) -> int:
        """The soonest deadline of the queue, which is not empty; remembered until it changes."""
        waiting = self.requests
        seen = (len(waiting), waiting[0], waiting[-1])
        if seen != self._soonest_of:
            self._soonest_of = seen
            self._soonest_ns = min([request.deadline_ns for request in waiting])
        return self._soonest_ns

    def emptied(self) -> None:
        """Let go of the requests that the last answers were about."""
        self._next_batch, self._soonest_of = None, ()

    def held_until_ns(self) -> int:
        """The instant until which the next batch waits for more rows; 0 when it does not.

        It waits no longer than the policy's `max_delay_ns`, counted from its oldest request. Nobody
        in it waits for more than half of the time that their deadline leaves beside the execution:
        the rest is for what nobody knows, such as loading weights, hooks and the way of the answer.
        The queue is not empty.
        """
        max_delay_ns = self.policy.max_delay_ns
        if not max_delay_ns:
            return 0
        batch = self.next_batch()
        if batch.is_full:
            return 0
        inside = list(islice(self.requests, batch.run))
        until_ns = min(request.enqueued_ns for request in inside) + max_delay_ns
        needed_ns = round(batch.cost_ns) + DISPATCH_OVERHEAD_NS
        for request in inside:
            if request.deadline_ns != NEVER_NS:
                latest_ns = request.deadline_ns - needed_ns
                until_ns = min(until_ns, (request.enqueued_ns + latest_ns) // 2)
        return until_ns


def _rank_ns(request: QueuedRequest) -> int:
    """The instant of a request's turn; requests are served in the order of theirs."""
    return request.enqueued_ns + request.shift_ns


class NextBatch:
    """What would be taken from a queue, as far as one can tell without looking for who has gone.

    Attributes:
        variant: the compiled shape.
        size: compiled batch size.
        cost_ns: what it takes, or a guess; more than 0.
        taken: requests in it.
        run: requests at the front that could be in it.
        is_full: it cannot grow by what may come.
    """

    __slots__ = (
        "_back",
        "_front",
        "_waiting",
        "cost_ns",
        "is_full",
        "run",
        "size",
        "taken",
        "variant",
    )

    def __init__(self, queue: ModelQueue) -> None:
        waiting, model = queue.requests, queue.model
        front = self._front = waiting[0]
        self._back, self._waiting = waiting[-1], len(waiting)
        self.variant = front.variant
        self.is_full, self.run, self.taken = True, 1, 1
        sizes = model.sizes(front.variant)
        if not model.can_coalesce or not sizes:
            self._set_size(model, lone_size(model, front))
            return
        rows, self.is_full = _leading_rows(waiting, saturation_rows(sizes, model.max_batch_size))
        self.run = len(rows)
        if self.run == 1:
            self._set_size(model, lone_size(model, front))
            return
        costs_ns = model.statistics.costs_ns.get(front.variant) if queue.weighs_costs else None
        plan = plan_batch(rows, sizes, model.max_batch_size, costs_ns)
        self.taken = plan.taken
        self._set_size(model, plan.size)

    def _set_size(self, model: DeviceModel, size: int) -> None:
        self.size = size
        self.cost_ns = max(known_cost_ns(model, self.variant, size), 1.0)

    def is_of(self, queue: ModelQueue) -> bool:
        """True while the queue is as it was; what comes behind a full batch changes nothing."""
        waiting = queue.requests
        if waiting[0] is not self._front:
            return False
        return self.is_full or (len(waiting) == self._waiting and waiting[-1] is self._back)


def _leading_rows(waiting: Sequence[QueuedRequest], enough: int) -> tuple[list[int], bool]:
    """Rows of the requests that one batch could be drawn from, and whether it can grow no more."""
    variant = waiting[0].variant
    rows: list[int] = []
    total = 0
    for request in waiting:
        if total >= enough or request.variant != variant:
            return rows, True
        rows.append(request.rows)
        total += request.rows
    return rows, total >= enough
