"""How many bytes of weights a device may hold: arithmetic, no effects.

What lives here: `plan_budget`. What does not: what its inputs are measured by
(`hloserve.engine.residency.weight_cache`). It is asked again whenever one of them changes: models
come and go, floors change, the scratch of a new model is known. Pure; any thread.

Source: spec "Residency and the on-demand weight cache".
"""

from dataclasses import dataclass
from math import floor

__all__ = ["Budget", "MemoryLimits", "plan_budget"]


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What an operator allows of a device's memory.

    Attributes:
        arena_bytes: memory that the device has for us; None when it does not say.
        fraction: of it, the share that weights may take at most.
        wiggle_fraction: the share that is left alone in any case.
        cap_bytes: most bytes of weights, whatever the device has; None for no cap. Needed where the
            device does not say what it has.
    """

    arena_bytes: int | None = None
    fraction: float = 1.0
    wiggle_fraction: float = 0.1
    cap_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What follows from the limits.

    Attributes:
        pool_bytes: for all weights.
        on_demand_bytes: for those that are not pinned.
        is_over_committed: the pinned ones are more than the pool.
    """

    pool_bytes: int
    on_demand_bytes: int
    is_over_committed: bool


def plan_budget(limits: MemoryLimits, max_scratch_bytes: int, pinned_bytes: int) -> Budget:
    """Divide a device's memory among scratch, pinned weights and the others.

    Args:
        limits: what is allowed; `arena_bytes` or `cap_bytes` is given.
        max_scratch_bytes: what the programs of one model take beside weights, at most.
        pinned_bytes: weights of models that are never evicted.

    Example:
        >>> plan_budget(MemoryLimits(1000), max_scratch_bytes=300, pinned_bytes=200)
        Budget(pool_bytes=600, on_demand_bytes=400, is_over_committed=False)
    """
    pools = []
    if limits.arena_bytes is not None:
        ceiling = floor((1 - limits.wiggle_fraction) * limits.arena_bytes)
        pools += [floor(limits.fraction * limits.arena_bytes), ceiling - max_scratch_bytes]
    if limits.cap_bytes is not None:
        pools.append(limits.cap_bytes)
    assert pools, "a budget needs the memory of the device, or a cap"
    pool = max(0, min(pools))
    return Budget(pool, max(0, pool - pinned_bytes), pinned_bytes > pool)
