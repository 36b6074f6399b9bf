"""Requests to come: drawn by a seed, or sent by clients that wait for their answers.

What lives here: `Arrival` and where arrivals come from. What does not: those that were recorded
(`benchmarks.sim.traces`) and serving them (`benchmarks.sim.device`). Pure, but for the random
generators that are handed in: the same seed gives the same arrivals.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

__all__ = ["Arrival", "Clients", "bursty", "merged", "poisson", "zipf_draws", "zipf_shares"]


class Arrival(NamedTuple):
    """One request that comes, whatever becomes of others.

    Attributes:
        at_ns: since the beginning.
        model: that it asks.
        rows: that it carries.
        timeout_s: after so long nobody wants the answer; None when it is always wanted.
    """

    at_ns: int
    model: str
    rows: int = 1
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Some clients of a model, each of which asks again once it is answered.

    Attributes:
        model: that they ask.
        draws: which model each request is for instead, one after the other; endless.
        count: how many.
        rows: of each request.
        timeout_s: as in `Arrival`.
        from_s: when they begin.
        until_s: when they stop; None for at the end.
    """

    count: int
    model: str = ""
    draws: Iterator[str] | None = None
    rows: int = 1
    timeout_s: float | None = None
    from_s: float = 0.0
    until_s: float | None = None

    def next_arrival(self, at_ns: int) -> Arrival:
        """What one of them asks at an instant."""
        model = self.model if self.draws is None else next(self.draws)
        return Arrival(at_ns, model, self.rows, self.timeout_s)


def poisson(
    chance: Random,
    model: str,
    rate: float,
    until_s: float,
    *,
    rows: int = 1,
    timeout_s: float | None = None,
) -> Iterator[Arrival]:
    """Requests that know nothing of each other, `rate` a second."""
    at_s = chance.expovariate(rate)
    while at_s < until_s:
        yield Arrival(round(at_s * 1e9), model, rows, timeout_s)
        at_s += chance.expovariate(rate)


def bursty(
    chance: Random,
    model: str,
    rate: float,
    until_s: float,
    *,
    burst: int,
    rows: int = 1,
    timeout_s: float | None = None,
) -> Iterator[Arrival]:
    """Bursts of requests that come at once, by a Poisson process of `rate` requests a second."""
    for first in poisson(chance, model, rate / burst, until_s, rows=rows, timeout_s=timeout_s):
        for _ in range(burst):
            yield first


def merged(streams: Iterable[Iterable[Arrival]]) -> list[Arrival]:
    """Several streams as one, in the order of time."""
    return list(heapq.merge(*streams, key=lambda arrival: arrival.at_ns))


def zipf_shares(models: int, exponent: float) -> list[float]:
    """What part of the requests each model gets by Zipf's law, the most popular one first.

    Example:
        >>> [round(share, 3) for share in zipf_shares(3, 1.0)]
        [0.545, 0.273, 0.182]
    """
    parts = [1 / (rank + 1) ** exponent for rank in range(models)]
    return [part / sum(parts) for part in parts]


def zipf_draws(chance: Random, names: Sequence[str], exponent: float) -> Iterator[str]:
    """Which models are asked, one after the other, by Zipf's law; endless."""
    edges = list(accumulate(zipf_shares(len(names), exponent)))
    while True:
        yield from chance.choices(names, cum_weights=edges, k=256)
