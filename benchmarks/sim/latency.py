"""How long requests wait, and how many are answered in time, by how much is asked of the device."""

from random import Random
from typing import Any

from benchmarks.sim.device import Device, SimModel, scheduler_config
from benchmarks.sim.drawing import COLOURS, DASHES, Figure, label_ends, new_figure
from benchmarks.sim.traffic import Arrival, bursty, merged, poisson, zipf_shares

__all__ = ["draw_deadlines", "draw_tail", "simulate_deadlines", "simulate_tail"]

_DISCIPLINES = ("fifo", "fair", "edf")
_UNTIL_S = 240.0

_NEIGHBOURS = (
    SimModel(name="search", costs_s={1: 0.005}),
    SimModel(name="batch", costs_s={1: 0.040}),
)
_SEARCH_LOAD, _BURST = 0.2, 25
_TAIL_LOADS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)


def simulate_tail(seed: int) -> dict[str, Any]:
    """A model of cheap requests beside one of dear ones that come in bursts.

    Under edf they have deadlines of 1 and 30 s.
    """
    found: dict[str, Any] = {"loads": list(_TAIL_LOADS)}
    for kind in _DISCIPLINES:
        found[kind] = {"p50_s": [], "p99_s": []}
        for load in _TAIL_LOADS:
            chance = Random(seed)
            soon_s, late_s = (1.0, 30.0) if kind == "edf" else (None, None)
            search = poisson(chance, "search", _SEARCH_LOAD / 0.005, _UNTIL_S, timeout_s=soon_s)
            rate = (load - _SEARCH_LOAD) / 0.040
            heavy = bursty(chance, "batch", rate, _UNTIL_S, burst=_BURST, timeout_s=late_s)
            device = Device(_NEIGHBOURS, scheduler_config(_NEIGHBOURS, kind))
            record = device.run(_UNTIL_S, merged((search, heavy)))
            for name, fraction in (("p50_s", 0.5), ("p99_s", 0.99)):
                found[kind][name].append(record.latency_s(fraction, "search", from_s=10))
    return found


def draw_tail(found: dict[str, Any]) -> Figure:
    """Median and p99 of the cheap model, by load."""
    figure, (axes,) = new_figure(
        "Bursts of a neighbour reach a cheap model under fifo, not under fair"
    )
    lines = []
    loads = [100 * load for load in found["loads"]]
    for kind, colour in zip(_DISCIPLINES, COLOURS, strict=False):
        for name, dashes in (("p99_s", DASHES[0]), ("p50_s", DASHES[1])):
            values = [1e3 * each for each in found[kind][name]]
            axes.plot(loads, values, color=colour, linestyle=dashes)
            lines.append((f"{kind}, {name.removesuffix('_s')}", loads[-1], values[-1], colour))
    _spread(lines)
    label_ends(axes, lines)
    axes.set_yscale("log")
    axes.set_xlim(20, 140)
    axes.set_xlabel("load, % of the device's time")
    axes.set_ylabel("latency of the cheap model, ms")
    return figure


def _spread(lines: list[tuple[str, float, float, str]], factor: float = 2.0) -> None:
    """Move labels on a logarithmic axis apart, upwards."""
    lines.sort(key=lambda line: line[2])
    for place in range(1, len(lines)):
        text, x, y, colour = lines[place]
        lines[place] = (text, x, max(y, lines[place - 1][2] * factor), colour)


_COSTS_S = (0.002, 0.004, 0.008, 0.012, 0.020, 0.030)
_MIXED = tuple(
    SimModel(name=f"m{place}", costs_s={size: cost_s * (0.5 + 0.5 * size) for size in (1, 2, 4, 8)})
    for place, cost_s in enumerate(_COSTS_S)
)
_TIMEOUT_COSTS = (8, 60, 15, 100, 12, 40)
"""Of each model, how many times its own time a request may take."""

_DEADLINE_LOADS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)


def _mixed_arrivals(chance: Random, load: float, until_s: float) -> list[Arrival]:
    shares = zipf_shares(len(_MIXED), 0.8)
    rate = load / sum(share * cost_s for share, cost_s in zip(shares, _COSTS_S, strict=True))
    streams = [
        poisson(chance, model.name, rate * share, until_s, timeout_s=times * cost_s)
        for model, share, cost_s, times in zip(
            _MIXED, shares, _COSTS_S, _TIMEOUT_COSTS, strict=True
        )
    ]
    return merged(streams)


def simulate_deadlines(seed: int) -> dict[str, Any]:
    """Six models of different costs and deadlines, Poisson arrivals, from idle to overload."""
    found: dict[str, Any] = {"loads": list(_DEADLINE_LOADS)}
    until_s = 60.0
    for kind in _DISCIPLINES:
        found[kind] = {"in_time": [], "late": []}
        for load in _DEADLINE_LOADS:
            device = Device(_MIXED, scheduler_config(_MIXED, kind))
            record = device.run(until_s, _mixed_arrivals(Random(seed), load, until_s))
            found[kind]["in_time"].append(record.served_fraction())
            found[kind]["late"].append(record.late_fraction)
    return found


def draw_deadlines(found: dict[str, Any]) -> Figure:
    """Who made it, and what was computed for nothing."""
    figure, (made, wasted) = new_figure(
        "edf answers most in time until far overload, and never runs a request too late", 1, 2
    )
    loads = [100 * load for load in found["loads"]]
    for kind, colour, dashes in zip(_DISCIPLINES, COLOURS, DASHES, strict=False):
        for axes, name in ((made, "in_time"), (wasted, "late")):
            values = [100 * each for each in found[kind][name]]
            axes.plot(loads, values, color=colour, linestyle=dashes, label=kind)
    made.set_ylabel("requests answered in time, %")
    made.set_ylim(0, 103)
    made.legend(loc="lower left")
    wasted.set_ylabel("requests run, but too late, %")
    for axes in (made, wasted):
        axes.set_xlabel("load, % (100: device full, without batches)")
    return figure
