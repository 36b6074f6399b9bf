"""Requests that are drawn: as many as said, and the same for the same seed."""

from itertools import islice
from random import Random

import pytest

from benchmarks.sim.traffic import Clients, bursty, merged, poisson, zipf_draws, zipf_shares


def test_poisson_and_bursts_have_their_rate() -> None:
    """Over a long time as many requests come as the rate says, singly or in bursts."""
    single = list(poisson(Random(1), "m", 50, 200))
    burst = list(bursty(Random(1), "m", 50, 200, burst=10))

    assert len(single) == pytest.approx(10_000, rel=0.05)
    assert len(burst) == pytest.approx(10_000, rel=0.1)
    assert len(burst) == 10 * len({arrival.at_ns for arrival in burst})


def test_streams_are_merged_in_the_order_of_time() -> None:
    """Several streams are one, by time."""
    together = merged((poisson(Random(1), "a", 9, 20), poisson(Random(2), "b", 5, 20)))

    assert sorted(arrival.at_ns for arrival in together) == [a.at_ns for a in together]
    assert {"a", "b"} == {arrival.model for arrival in together}


def test_draws_follow_the_law() -> None:
    """Models are drawn as often as Zipf's law says."""
    names = ["a", "b", "c", "d"]
    draws = list(islice(zipf_draws(Random(1), names, 1.0), 20_000))

    for name, share in zip(names, zipf_shares(4, 1.0), strict=True):
        assert draws.count(name) / len(draws) == pytest.approx(share, rel=0.05)


def test_clients_ask_what_is_drawn() -> None:
    """Clients ask one model, or a drawn one each time."""
    drawing = Clients(count=1, draws=iter("xy"))

    assert ["x", "y"] == [drawing.next_arrival(at).model for at in (0, 1)]
    assert ["m", "m"] == [Clients(count=1, model="m").next_arrival(at).model for at in (0, 1)]
