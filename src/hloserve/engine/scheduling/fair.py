"""The fair discipline: each model gets the share of the device that its weight says.

What lives here: the formulas, pure, and `Fair`, which keeps who used the device lately. What does
not: other orders (`hloserve.engine.scheduling.discipline`). Guarded by the scheduler's lock.

Rules.
1. Usage is an exponential moving sum of computing time. It is kept at the scale of one instant, the
   epoch, at which all of it decays alike: so nothing has to be done for models that are idle.
2. A choice costs as much as there are models that wait.

Source: spec "Selection", "fair".
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import exp2, inf
from typing import Literal, TypeAlias

from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.model_queue import ModelQueue

__all__ = ["Fair", "FairFormula", "FairSettings", "corrected_priority", "decayed", "priority"]

FairFormula: TypeAlias = Literal["corrected", "original"]

_MOST_HALFLIVES = 256
"""Usage is brought to a new epoch after so many: 2 to this power is far from overflowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairSettings:
    """How a fair choice is made.

    Attributes:
        halflife_s: after so long, computing time counts half.
        penalty_cap: most that a model can be ahead of its share, or behind it, in a choice.
        coalescing_discount: by which part batches that serve several requests count as cheaper.
        formula: `corrected`, or that of the server this one follows.
    """

    halflife_s: float = 30.0
    penalty_cap: float = 0.25
    coalescing_discount: float = 0.1
    formula: FairFormula = "corrected"


def decayed(amount: float, elapsed_s: float, halflife_s: float) -> float:
    """What is left of an amount after some time.

    Example:
        >>> decayed(1.0, elapsed_s=60, halflife_s=30)
        0.25
    """
    return amount * exp2(-elapsed_s / halflife_s)


def priority(share: float, used: float, cost: float, cap: float) -> float:
    """The original formula: how much less a model used than its share, per cost of its batch.

    Among models that used more than their share, it prefers those of dear batches.

    Args:
        share: what the model should use of the device, 0..1.
        used: what it used lately, 0..1.
        cost: of its next batch, in any unit.
        cap: most of the difference that counts.

    Example:
        >>> round(priority(1 / 3, used=0.2, cost=27.0, cap=0.25), 5)
        0.00494
    """
    return max(-cap, min(cap, share - used)) / cost


def corrected_priority(share: float, used: float, cost: float, cap: float) -> float:
    """The same, but among models that used more than their share it prefers cheap batches too."""
    ahead = max(-cap, min(cap, share - used))
    return ahead / cost if ahead >= 0 else ahead * cost


class Fair(Discipline):
    """The model that is furthest behind its share, for what its next batch costs.

    The corrected formula differs from the original one in three ways. Shares and usage are those of
    the models that wait, so idle ones take nothing from the others. A model that is ahead of its
    share is not preferred for being dear. And nobody saves up: a model that comes back after a
    pause starts level with the one that is furthest behind, plus one batch of its own, so it is
    served soon and the others do not stand still until it has caught up.
    """

    is_charged = True

    def __init__(self, settings: FairSettings) -> None:
        self._settings = settings
        self._halflife_ns = settings.halflife_s * 1e9
        self._is_original = settings.formula == "original"
        self._formula = priority if self._is_original else corrected_priority
        self._queues: dict[ModelQueue, None] = {}
        self._epoch_ns = 0
        self._total_usage = 0.0
        self._total_weight = 0.0
        self._level = 0.0  # usage per weight of who was furthest behind when a choice was made

    @override
    def joined(self, queue: ModelQueue) -> None:
        self._queues[queue] = None
        self._add_up()

    @override
    def left(self, queue: ModelQueue) -> None:
        del self._queues[queue]
        self._add_up()

    def _add_up(self) -> None:
        if not self._is_original:
            return
        self._total_usage = sum(queue.usage for queue in self._queues)
        self._total_weight = sum(queue.policy.weight for queue in self._queues)

    @override
    def charge(self, queue: ModelQueue, compute_ns: int, now_ns: int) -> None:
        scaled = compute_ns * self._scale(now_ns)  # first: it may bring usage to a new epoch
        before = queue.usage
        queue.usage = max(0.0, before + scaled)
        self._total_usage += queue.usage - before

    def _scale(self, now_ns: int) -> float:
        """What one unit of now is at the epoch."""
        halflives = (now_ns - self._epoch_ns) / self._halflife_ns
        if halflives > _MOST_HALFLIVES:
            factor = exp2(-halflives)
            for queue in self._queues:
                queue.usage *= factor
            self._total_usage *= factor
            self._level *= factor
            self._epoch_ns, halflives = now_ns, 0.0
        return exp2(halflives)

    def used_s(self, queue: ModelQueue, now_ns: int) -> float:
        """What a model used lately, in seconds as of now."""
        return queue.usage / self._scale(now_ns) * 1e-9

    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        if len(waiting) == 1:
            model, queue = next(iter(waiting.items()))
            self._level = max(self._level, queue.usage / queue.policy.weight)
            return model
        first: ModelQueue | None = None
        most = 0.0
        for queue, share, used, cost_ns in self._standings(waiting.values(), now_ns):
            if first is not None and share < used and most >= 0:
                continue  # ahead of its share, while somebody is not
            value = self._formula(share, used, cost_ns, self._settings.penalty_cap)
            if first is None or value > most or (value == most and _is_before(queue, first)):
                first, most = queue, value
        assert first is not None, "a choice among nobody"
        return first.model

    def _standings(
        self, queues: Collection[ModelQueue], now_ns: int
    ) -> Iterator[tuple[ModelQueue, float, float, float]]:
        """Each queue with the model's share, what it used of the device, and what it would cost."""
        if not self._is_original:
            self._lift(queues, now_ns)
            self._total_weight = sum([queue.policy.weight for queue in queues])
            self._total_usage = sum([queue.usage for queue in queues])
        weight, usage = self._total_weight, self._total_usage or 1.0
        discount = 1 - self._settings.coalescing_discount
        for queue in queues:
            batch = queue.next_batch()
            # The original formula discounts all batches, which comes to the same as none.
            is_cheaper = self._is_original or batch.taken > 1
            cost_ns = batch.cost_ns * discount if is_cheaper else batch.cost_ns
            yield queue, queue.policy.weight / weight, queue.usage / usage, cost_ns

    def _lift(self, queues: Collection[ModelQueue], now_ns: int) -> None:
        """Bring those who come back after a pause to the level of the others."""
        scale, level, lowest = self._scale(now_ns), self._level, inf
        for queue in queues:
            weight = queue.policy.weight
            least = level * weight - queue.next_batch().cost_ns * scale
            if queue.usage < least:
                queue.usage = least
            if queue.usage < lowest * weight:
                lowest = queue.usage / weight
        if lowest > level:
            self._level = lowest


def _is_before(one: ModelQueue, other: ModelQueue) -> bool:
    """Of two equally entitled models: the one whose front request is older, or the smaller name."""
    ours, theirs = one.requests[0].enqueued_ns, other.requests[0].enqueued_ns
    return (ours, one.model.name) < (theirs, other.model.name)
