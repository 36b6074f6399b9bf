"""Fifty models whose weights do not fit: who finds theirs, and what time goes into loading."""

from random import Random
from typing import Any

from benchmarks.sim.device import Device, Loading, SimModel, scheduler_config
from benchmarks.sim.drawing import COLOURS, DASHES, Figure, new_figure
from benchmarks.sim.memory import Foreseeing, LoadTime, Lru, Memory, Ours, replay
from benchmarks.sim.traffic import Clients, zipf_draws

__all__ = ["draw_hits", "draw_loading", "model_bytes", "simulate_hits", "simulate_loading"]

MODELS = 50
_MEDIAN_BYTES = 100_000_000
LOAD_TIME = LoadTime(0.005, 2e9)
_TIMES = (2, 5, 10)
"""How many times the budget all weights are."""

_EXPONENTS = (0.8, 0.9, 1.0, 1.1, 1.2)
_USES, _SEEDS = 4000, 3
_WAYS = {"lru": "plain LRU", "ours": "ours", "future": "who knows the future"}
_LAWS = {"equal": "equal sizes", "mixed": "mixed sizes"}


def model_bytes(chance: Random, law: str) -> dict[str, int]:
    """Weights of all models: of 100 MB each, or of a lognormal law with this median."""
    spread = 1.0 if law == "mixed" else 0.0
    sizes = [chance.lognormvariate(0, spread) for _ in range(MODELS)]
    return {f"m{place}": round(_MEDIAN_BYTES * size) for place, size in enumerate(sizes)}


def _memory(way: str, sizes: dict[str, int], budget_bytes: int, uses: list[str]) -> Memory:
    if way == "ours":
        return Ours(sizes, budget_bytes, LOAD_TIME)
    return Lru(sizes, budget_bytes) if way == "lru" else Foreseeing(sizes, budget_bytes, uses)


def simulate_hits(seed: int) -> dict[str, Any]:
    """Uses by Zipf's law one after the other: hits and time of loads, means over some seeds."""
    found: dict[str, Any] = {"exponents": list(_EXPONENTS)}
    for law in _LAWS:
        for times in _TIMES:
            values: dict[str, dict[str, list[float]]] = {
                way: {"hit_fraction": [], "load_s_per_1000": []} for way in _WAYS
            }
            for exponent in _EXPONENTS:
                for way in _WAYS:
                    runs = [_run(seed + each, law, times, exponent, way) for each in range(_SEEDS)]
                    values[way]["hit_fraction"].append(sum(run[0] for run in runs) / _SEEDS)
                    loads_s = sum(run[1] for run in runs)
                    values[way]["load_s_per_1000"].append(loads_s / _SEEDS / _USES * 1000)
            found[f"{law} {times}"] = values
    return found


def _run(seed: int, law: str, times: int, exponent: float, way: str) -> tuple[float, float]:
    chance = Random(seed)
    sizes = model_bytes(chance, law)
    draws = zipf_draws(chance, list(sizes), exponent)
    uses = [next(draws) for _ in range(_USES)]
    memory = _memory(way, sizes, sum(sizes.values()) // times, uses)
    done = replay(memory, uses, sizes, LOAD_TIME)
    return done.hit_fraction, done.load_s


def draw_hits(found: dict[str, Any]) -> Figure:
    """Hit rate by the exponent, one panel for each budget and law of sizes."""
    figure, panels = new_figure(
        "Weights are found more often than with LRU, whatever the budget and the sizes",
        2, 3, height_in=4.4, sharex=True, sharey=True,
    )  # fmt: skip
    cases = [(law, times) for law in _LAWS for times in _TIMES]
    for axes, (law, times) in zip(panels, cases, strict=True):
        for (way, label), colour, dashes in zip(_WAYS.items(), COLOURS, DASHES, strict=False):
            rates = [100 * each for each in found[f"{law} {times}"][way]["hit_fraction"]]
            axes.plot(found["exponents"], rates, color=colour, linestyle=dashes, label=label)
        axes.set_title(f"{_LAWS[law]}, {times} x the budget")
        axes.set_ylim(0, 100)
    for axes in panels[3:]:
        axes.set_xlabel("Zipf exponent")
    for axes in panels[::3]:
        axes.set_ylabel("hits, %")
    panels[0].legend(loc="lower left")
    return figure


_CLIENTS, _UNTIL_S = 8, 120.0
_SETUPS = {
    "LRU": ("lru", False),
    "LRU, ahead": ("lru", True),
    "ours": ("ours", False),
    "ours, ahead": ("ours", True),
}


def simulate_loading(seed: int) -> dict[str, Any]:
    """Eight clients that ask models by Zipf's law, through the scheduler; batches of 60 ms."""
    found: dict[str, Any] = {"times": list(_TIMES)}
    for label, (way, is_ahead) in _SETUPS.items():
        values: dict[str, list[float]] = {"waiting": [], "answers_per_s": [], "hit_fraction": []}
        for times in _TIMES:
            chance = Random(seed)
            sizes = model_bytes(chance, "mixed")
            models = [SimModel(name=name, costs_s={1: 0.06, 4: 0.12}) for name in sizes]
            memory = _memory(way, sizes, sum(sizes.values()) // times, [])
            loading = Loading(memory, sizes, LOAD_TIME, is_ahead)
            device = Device(models, scheduler_config(models), loading)
            draws = zipf_draws(chance, list(sizes), 1.0)
            record = device.run(_UNTIL_S, clients=[Clients(count=_CLIENTS, draws=draws)])
            values["waiting"].append(record.load_s / _UNTIL_S)
            values["answers_per_s"].append(len(record.answers) / _UNTIL_S)
            values["hit_fraction"].append(record.hits / record.leases)
        found[label] = values
    return found


def draw_loading(found: dict[str, Any]) -> Figure:
    """Time in which the device waits for weights, by budget."""
    figure, (axes,) = new_figure("Choosing well and loading ahead each save time, and add up")
    width = 0.2
    for place, (label, colour) in enumerate(zip(_SETUPS, COLOURS, strict=False)):
        heights = [100 * each for each in found[label]["waiting"]]
        at = [group + (place - 1.5) * width for group in range(len(heights))]
        bars = axes.bar(at, heights, width * 0.92, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks(range(len(_TIMES)), [f"{times} times the budget" for times in _TIMES])
    axes.set_ylabel("time the device waits for weights, %")
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=4, loc="upper left")
    axes.set_ylim(0, 75)
    return figure
