"""All scenarios: what is simulated, and how it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.sim import batching, budget, fairness, latency
from benchmarks.sim.drawing import Figure

__all__ = ["SCENARIOS", "Scenario", "rounded"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One picture.

    Attributes:
        simulate: from a seed to figures, which are lists, dicts and numbers.
        draw: from these to the picture.
    """

    simulate: Callable[[int], dict[str, Any]]
    draw: Callable[[dict[str, Any]], Figure]


SCENARIOS = {
    "shares": Scenario(fairness.simulate_shares, fairness.draw_shares),
    "newcomer": Scenario(fairness.simulate_newcomer, fairness.draw_newcomer),
    "tail": Scenario(latency.simulate_tail, latency.draw_tail),
    "deadlines": Scenario(latency.simulate_deadlines, latency.draw_deadlines),
    "delay": Scenario(batching.simulate_delay, batching.draw_delay),
    "plans": Scenario(batching.simulate_plans, batching.draw_plans),
    "hits": Scenario(budget.simulate_hits, budget.draw_hits),
    "loading": Scenario(budget.simulate_loading, budget.draw_loading),
}
"""By the name of the picture."""


def rounded(found: Any) -> Any:
    """The figures with six digits, so that they are the same wherever sums are rounded otherwise.

    Example:
        >>> rounded({"a": [0.1 + 0.2]})
        {'a': [0.3]}
    """
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found
