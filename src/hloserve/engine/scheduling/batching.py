"""How many queued requests one execution serves, and at which compiled size.

What lives here: the decision, pure. What does not: taking requests from a queue
(`hloserve.engine.scheduling.scheduler`) and copying their rows together
(`hloserve.engine.assembly`). Any thread.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "DISPATCH_OVERHEAD_NS",
    "MOST_PARTS",
    "BatchPlan",
    "plan_batch",
    "saturation_rows",
    "smallest_fitting",
    "split_rows",
]


class BatchPlan(NamedTuple):
    """One execution to be.

    Attributes:
        taken: requests, from the front of the queue.
        rows: rows they carry together.
        size: compiled batch size of the program; the rows beyond `rows` are zeros.
    """

    taken: int
    rows: int
    size: int


def smallest_fitting(sizes: Sequence[int], rows: int) -> int:
    """The smallest size that holds `rows`, or the largest when none does.

    Example:
        >>> smallest_fitting((1, 4, 8), 3)
        4
    """
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else sizes[-1]


def saturation_rows(sizes: Sequence[int], cap: int | None) -> int:
    """From how many waiting rows on `plan_batch` does not look further down the queue."""
    return sizes[-1] if cap is None else min(cap, sizes[-1])


DISPATCH_OVERHEAD_NS = 150_000
"""What a dispatch costs beside computing: two thread crossings, assembly, delivery. Measured."""


def plan_batch(
    queued_rows: Sequence[int],
    sizes: Sequence[int],
    cap: int | None,
    costs_ns: Mapping[int, float] | None = None,
) -> BatchPlan:
    """Choose how many queued requests one execution serves: full, or padded when that is cheaper.

    Two plans are weighed. The full one aims at the largest size that the waiting rows fill, so a
    program runs without padding when it can; the rows left over go with the next dispatch. The
    padded one takes all that waits, up to the largest size. A row should cost as little time as
    possible, so the plan with the smaller cost per row is taken; the full one while the cost of
    either is unknown. A front request that is larger goes in the smallest size that holds it,
    together with what else fits. What was taken runs in the smallest size that holds it.

    Takes only from the front, never splits a request, and always takes at least one, so the oldest
    request cannot starve.

    Args:
        queued_rows: rows of each queued request of one variant, oldest first; not empty.
        sizes: compiled batch sizes, ascending; not empty.
        cap: most rows to coalesce, None for no cap. A single larger request still goes, alone.
        costs_ns: computing time by size, as far as it is known.

    Example:
        >>> plan_batch([2, 2, 2], sizes=(1, 4, 8), cap=None)
        BatchPlan(taken=2, rows=4, size=4)
        >>> plan_batch([2, 2, 2], sizes=(1, 4, 8), cap=None, costs_ns={4: 20_000, 8: 30_000})
        BatchPlan(taken=3, rows=6, size=8)

    Source: spec "plan_batch"; its proposal "min_cost".
    """
    enough = saturation_rows(sizes, cap)
    available = min(sum(queued_rows), enough)
    fillable = sizes[max(bisect_right(sizes, available) - 1, 0)]
    full = _take(queued_rows, sizes, smallest_fitting(sizes, max(fillable, queued_rows[0])), enough)
    if fillable >= available or not costs_ns:
        return full
    padded = _take(queued_rows, sizes, smallest_fitting(sizes, available), enough)
    if padded.taken == full.taken or full.size not in costs_ns or padded.size not in costs_ns:
        return full
    return min(full, padded, key=lambda plan: _cost_per_row(plan, costs_ns))


def _take(queued_rows: Sequence[int], sizes: Sequence[int], target: int, enough: int) -> BatchPlan:
    limit = min(target, enough)
    taken, rows = 1, queued_rows[0]
    for more in queued_rows[1:]:
        if rows + more > limit:
            break
        taken, rows = taken + 1, rows + more
    return BatchPlan(taken, rows, smallest_fitting(sizes, rows))


def _cost_per_row(plan: BatchPlan, costs_ns: Mapping[int, float]) -> float:
    return (costs_ns[plan.size] + DISPATCH_OVERHEAD_NS) / plan.rows


MOST_PARTS = 1024
"""Dispatches that one request may take: more would keep the server busy with a single caller."""


def split_rows(rows: int, largest: int) -> list[int]:
    """Cut a request that no program holds into parts that fill the largest one.

    Example:
        >>> split_rows(19, largest=8)
        [8, 8, 3]
    """
    whole, rest = divmod(rows, largest)
    return [largest] * whole + ([rest] if rest else [])
