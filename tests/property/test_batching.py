"""What holds for every batch that is planned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine_strategies import caps, compiled_sizes, queues

from hloserve.engine.scheduling.batching import plan_batch, saturation_rows, split_rows


def _as_specified(queued: list[int], sizes: tuple[int, ...], cap: int | None) -> tuple[int, int]:
    """The specification's own words: (requests taken, target size)."""
    limit = cap if cap is not None else 10**9
    available = min(sum(queued), limit)
    if available >= min(sizes):
        size = max(s for s in sizes if s <= min(available, max(sizes)))
    else:
        size = min(sizes)
    if queued[0] > size:
        size = min((s for s in sizes if s >= queued[0]), default=max(sizes))
    taken = rows = 0
    for more in queued:
        if rows + more > min(size, limit):
            break
        taken, rows = taken + 1, rows + more
    return max(taken, 1), size


@given(queues, compiled_sizes, caps)
def test_plan_takes_what_the_specification_takes(
    queued: list[int], sizes: tuple[int, ...], cap: int | None
) -> None:
    """The same requests go as by the written rule, in that size or a smaller one."""
    plan = plan_batch(queued, sizes, cap)

    taken, size = _as_specified(queued, sizes, cap)
    assert plan.taken == taken
    assert plan.size <= size


@given(queues, compiled_sizes, caps)
def test_plan_takes_a_prefix_that_fits(
    queued: list[int], sizes: tuple[int, ...], cap: int | None
) -> None:
    """At least one request goes, from the front, within the size and the cap."""
    plan = plan_batch(queued, sizes, cap)

    assert 1 <= plan.taken <= len(queued)
    assert plan.rows == sum(queued[: plan.taken])
    assert plan.size in sizes
    assert plan.rows <= plan.size or (plan.taken == 1 and queued[0] > sizes[-1])
    assert cap is None or plan.rows <= cap or plan.taken == 1


@given(queues, compiled_sizes, caps)
def test_plan_pads_no_more_than_it_must(
    queued: list[int], sizes: tuple[int, ...], cap: int | None
) -> None:
    """No smaller program would hold the rows that were taken."""
    plan = plan_batch(queued, sizes, cap)

    assert all(size < plan.rows for size in sizes if size < plan.size)


@given(queues, compiled_sizes, caps)
def test_what_is_beyond_saturation_does_not_matter(
    queued: list[int], sizes: tuple[int, ...], cap: int | None
) -> None:
    """The queue needs to be read only until its rows saturate the largest program."""
    enough, rows, seen = saturation_rows(sizes, cap), 0, 0
    while seen < len(queued) and (seen == 0 or rows < enough):
        rows, seen = rows + queued[seen], seen + 1

    assert plan_batch(queued[:seen], sizes, cap) == plan_batch(queued, sizes, cap)


@given(queues, compiled_sizes, caps)
def test_queue_empties(queued: list[int], sizes: tuple[int, ...], cap: int | None) -> None:
    """Planning again and again serves everybody, once and in order."""
    served: list[int] = []
    left = list(queued)
    while left:
        taken = plan_batch(left, sizes, cap).taken
        served += left[:taken]
        del left[:taken]

    assert served == queued


@pytest.mark.parametrize("largest", [1, 7, 64])
def test_parts_add_up(largest: int) -> None:
    """Parts are full except the last, and hold every row."""
    for rows in range(1, 200):
        parts = split_rows(rows, largest)

        assert sum(parts) == rows
        assert set(parts[:-1]) <= {largest}
        assert 1 <= parts[-1] <= largest


costs = st.none() | st.dictionaries(st.sampled_from((1, 2, 4, 8, 16)), st.floats(1e3, 1e9))


@given(queues, compiled_sizes, caps, costs)
def test_plan_is_servable_whatever_programs_cost(
    queued: list[int], sizes: tuple[int, ...], cap: int | None, costs_ns: dict[int, float] | None
) -> None:
    """Costs choose between plans; each of them takes a prefix, fits its size and keeps the cap."""
    plan = plan_batch(queued, sizes, cap, costs_ns)

    assert plan.taken >= 1
    assert plan.rows == sum(queued[: plan.taken])
    assert plan.size in sizes
    if plan.taken > 1:
        assert plan.rows <= plan.size
        assert cap is None or plan.rows <= cap
    assert plan.taken >= plan_batch(queued, sizes, cap).taken
