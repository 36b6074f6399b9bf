"""How many requests a dispatch takes, and its size."""

import pytest

from hloserve.engine.scheduling.batching import (
    BatchPlan,
    plan_batch,
    saturation_rows,
    smallest_fitting,
    split_rows,
)


@pytest.mark.parametrize(
    ("queued", "sizes", "cap", "taken", "rows", "size"),
    [
        ([1, 1, 1], [1, 4, 8], None, 1, 1, 1),
        ([1, 1, 1, 1], [1, 4, 8], None, 4, 4, 4),
        ([1, 1, 1, 1, 1], [1, 4, 8], None, 4, 4, 4),
        ([5], [1, 4, 8], None, 1, 5, 8),
        ([1, 1], [4, 8], None, 2, 2, 4),
        ([2, 2, 2, 2], [8], 6, 3, 6, 8),
        ([2, 2, 2], [1, 4, 8], None, 2, 4, 4),
        ([1], [4, 8], None, 1, 1, 4),
        ([6, 1], [1, 4, 8], None, 2, 7, 8),
        ([2, 2, 2, 2], [1, 4, 8], 4, 2, 4, 4),
        ([1, 1, 1], [4, 8], 2, 2, 2, 4),
        ([6], [1, 4, 8], 2, 1, 6, 8),
        ([6, 1], [1, 4, 8], 2, 1, 6, 8),
        ([1] * 5, [1, 2, 4, 8, 16, 32, 64], None, 4, 4, 4),
        ([1] * 70, [1, 2, 4, 8, 16, 32, 64], None, 64, 64, 64),
        ([1] * 5, [1, 8], None, 1, 1, 1),
    ],
)
def test_batch_is_as_full_as_it_can_be(
    queued: list[int], sizes: list[int], cap: int | None, taken: int, rows: int, size: int
) -> None:
    """The worked cases of the specification."""
    assert BatchPlan(taken, rows, size) == plan_batch(queued, sizes, cap)


def test_what_was_taken_runs_in_the_smallest_size_that_holds_it() -> None:
    """A neighbour that does not fit does not make the batch larger than its rows need."""
    assert BatchPlan(1, 3, 4) == plan_batch([3, 6], [1, 4, 8], None)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, 8)])
def test_smallest_fitting_size(rows: int, size: int) -> None:
    """Rows go in the smallest size that holds them; too many meet the largest."""
    assert size == smallest_fitting((1, 4, 8), rows)


def test_looking_further_than_the_largest_size_or_the_cap_is_useless() -> None:
    """A queue is read up to the rows that one dispatch can take at most."""
    assert saturation_rows((1, 8), None) == 8
    assert saturation_rows((1, 8), 3) == 3
    assert saturation_rows((1, 8), 100) == 8


@pytest.mark.parametrize(
    ("rows", "largest", "parts"),
    [(19, 8, [8, 8, 3]), (16, 8, [8, 8]), (9, 8, [8, 1]), (3, 1, [1] * 3)],
)
def test_oversize_request_is_cut_into_full_parts_and_a_rest(
    rows: int, largest: int, parts: list[int]
) -> None:
    """Parts fill the largest size, and the last one takes what is left."""
    assert parts == split_rows(rows, largest)


@pytest.mark.parametrize(
    ("costs_us", "expected"),
    [
        ({1: 30, 4: 40, 8: 50}, BatchPlan(5, 5, 8)),  # a program costs about the same at any size
        ({1: 1000, 4: 4000, 8: 8000}, BatchPlan(4, 4, 4)),  # or in proportion to it
        ({1: 30, 4: 40}, BatchPlan(4, 4, 4)),  # the padded size has never run
        ({8: 50}, BatchPlan(4, 4, 4)),  # nor has the full one
        ({}, BatchPlan(4, 4, 4)),
        (None, BatchPlan(4, 4, 4)),
    ],
)
def test_padding_is_chosen_when_a_row_then_costs_less(
    costs_us: dict[int, int] | None, expected: BatchPlan
) -> None:
    """Five single rows with sizes 1, 4 and 8: 4 now and 1 later, or 8 with three of padding."""
    costs_ns = None if costs_us is None else {s: c * 1000.0 for s, c in costs_us.items()}

    assert expected == plan_batch([1] * 5, (1, 4, 8), None, costs_ns)


def test_costs_do_not_lift_the_operators_cap() -> None:
    """A cap on coalesced rows holds for the padded plan as well."""
    costs_ns = {1: 1e4, 4: 1e4, 8: 1e4}

    assert BatchPlan(3, 3, 4) == plan_batch([1] * 5, (1, 4, 8), 3, costs_ns)
