"""Counters of a model."""

import pytest

from hloserve.engine.statistics import COST_WEIGHT, WAITS_KEPT, ModelStatistics, percentile


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, 10), (0.25, 10), (0.26, 20), (0.5, 20), (0.99, 40), (1.0, 40)]
)
def test_percentile_takes_the_sample_at_the_rounded_up_place(
    fraction: float, expected: int
) -> None:
    """The q-quantile is sample ceil(q n) of the sorted ones, never outside of them."""
    assert expected == percentile([40, 10, 30, 20], fraction)


def test_percentile_of_nothing_is_zero() -> None:
    """A model without traffic has a wait of zero."""
    assert percentile([], 0.5) == 0


def test_only_the_latest_waits_are_kept() -> None:
    """The ring of waits forgets the oldest."""
    statistics = ModelStatistics()

    statistics.record_waits(range(WAITS_KEPT + 5))

    assert list(range(5, WAITS_KEPT + 5)) == statistics.waits_ns()


def test_dispatches_add_up() -> None:
    """Every dispatch counts its requests, its real and its compiled rows, and its time."""
    statistics = ModelStatistics()

    statistics.record_dispatch(size=4, requests=2, rows=3, compute_ns=10)
    statistics.record_dispatch(size=4, requests=1, rows=4, compute_ns=5)
    statistics.record_dispatch(size=8, requests=1, rows=5, compute_ns=1)

    assert statistics.dispatch_count == 3
    assert statistics.requests_served == 4
    assert statistics.rows_served == 12
    assert statistics.padded_rows == 16
    assert statistics.compute_ns == 16
    assert statistics.batch_sizes == {4: 2, 8: 1}


def test_times_add_up_by_size_and_by_request() -> None:
    """A batch's time counts once for its size, and once for each request that was in it."""
    statistics = ModelStatistics()

    statistics.record_dispatch(4, 3, 3, 9, input_ns=1, infer_ns=5, output_ns=2)
    statistics.record_dispatch(4, 1, 4, 9, input_ns=10, infer_ns=50, output_ns=20)

    figures = statistics.batches[4]
    assert (figures.dispatches, figures.input_ns, figures.infer_ns, figures.output_ns) == (
        2, 11, 55, 22
    )  # fmt: skip
    shared = (statistics.shared_input_ns, statistics.shared_infer_ns, statistics.shared_output_ns)
    assert shared == (2, 10, 4)


def test_waits_add_up() -> None:
    """All waits are in the sum, however few are kept."""
    statistics = ModelStatistics()

    statistics.record_waits([5, 7])
    statistics.record_waits([8])

    assert (statistics.queued_count, statistics.queued_ns) == (3, 20)


def test_younger_generation_counts_on_without_touching_the_older() -> None:
    """Counters go on from where they were, and the two generations do not share them."""
    old, new = ModelStatistics(), ModelStatistics()
    old.record_dispatch(4, 2, 3, 9, input_ns=1, infer_ns=5, output_ns=2)
    old.record_waits([5])

    new.continue_from(old)
    new.record_dispatch(4, 1, 3, 9, input_ns=1, infer_ns=5, output_ns=2)

    assert (old.batch_sizes, new.batch_sizes) == ({4: 1}, {4: 2})
    assert (new.batches[4].infer_ns, new.shared_infer_ns, new.queued_ns) == (10, 5, 5)
    assert (new.requests_served, new.rows_served) == (3, 6)


def test_program_without_a_size_pads_nothing() -> None:
    """Under size 0 the compiled rows are the real ones."""
    statistics = ModelStatistics()

    statistics.record_dispatch(size=0, requests=1, rows=3, compute_ns=1)

    assert (statistics.padded_rows, statistics.batch_sizes) == (3, {0: 1})


def test_costs_are_kept_by_variant_and_size() -> None:
    """What was never timed has no cost."""
    statistics = ModelStatistics()
    statistics.learn_cost((), 4, 40)
    statistics.learn_cost((7,), 4, 99)

    assert statistics.costs_ns == {(): {4: 40}, (7,): {4: 99}}


def test_quicker_run_is_the_new_cost_at_once() -> None:
    """A run is never quicker than its program."""
    statistics = ModelStatistics()
    for seen_ns in (40, 10):
        statistics.learn_cost((), 4, seen_ns)

    assert statistics.costs_ns[()][4] == 10


def test_run_that_waited_for_something_else_hardly_shows() -> None:
    """However slow it was, it counts as twice the cost, with a small weight."""
    statistics = ModelStatistics()
    for seen_ns in (1000, 10**9):
        statistics.learn_cost((), 4, seen_ns)

    assert statistics.costs_ns[()][4] == pytest.approx(1000 * (1 + COST_WEIGHT))


def test_program_that_stays_slower_is_found_out() -> None:
    """The cost follows in the end: five times as much takes less than a thousand runs."""
    statistics = ModelStatistics()
    statistics.learn_cost((), 4, 100)
    for _ in range(1000):
        statistics.learn_cost((), 4, 500)

    assert 400 < statistics.costs_ns[()][4] <= 500


def test_quicker_run_whose_beginning_is_not_known_moves_the_cost_a_little() -> None:
    """An execution behind another one may look quicker than its program is."""
    statistics = ModelStatistics()
    statistics.learn_cost((), 1, 1000)

    statistics.learn_cost((), 1, 500, is_exact=False)
    assert statistics.costs_ns == {(): {1: 1000 - COST_WEIGHT * 500}}

    statistics.learn_cost((), 1, 500)
    assert statistics.costs_ns == {(): {1: 500}}
