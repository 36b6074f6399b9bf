"""What holding batches back brings and costs, and what padded batches bring."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from benchmarks.sim.device import Device, SimModel, scheduler_config
from benchmarks.sim.drawing import COLOURS, DASHES, Figure, new_figure
from benchmarks.sim.traffic import Clients, poisson

__all__ = ["draw_delay", "draw_plans", "simulate_delay", "simulate_plans"]

_SIZES = (1, 2, 4, 8, 16, 32)
_FLAT_S = {size: 0.002 + 0.00002 * size for size in _SIZES}
"""An accelerator with a small model: 2 ms, whether full or not."""

_DELAYS_S = (0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02)
_RATES = (100, 300, 1000)
_CLIENTS = (8, 32)


def simulate_delay(seed: int) -> dict[str, Any]:
    """One model at several rates, and with clients that wait for their answers."""
    found: dict[str, Any] = {"delays_s": list(_DELAYS_S), "open": {}, "closed": {}}
    until_s = 20.0
    for rate in _RATES:
        values: dict[str, list[float]] = {"busy": [], "p50_s": [], "p99_s": []}
        for delay_s in _DELAYS_S:
            models = [SimModel(name="embed", costs_s=_FLAT_S, max_delay_s=delay_s)]
            device = Device(models, scheduler_config(models))
            record = device.run(until_s, list(poisson(Random(seed), "embed", rate, until_s)))
            values["busy"].append(record.compute_s / until_s)
            values["p50_s"].append(record.latency_s(0.5))
            values["p99_s"].append(record.latency_s(0.99))
        found["open"][str(rate)] = values
    for clients in _CLIENTS:
        rates = []
        for delay_s in _DELAYS_S:
            models = [SimModel(name="embed", costs_s=_FLAT_S, max_delay_s=delay_s)]
            device = Device(models, scheduler_config(models))
            record = device.run(3.0, clients=[Clients(model="embed", count=clients)])
            rates.append(len(record.answers) / 3.0)
        found["closed"][str(clients)] = rates
    return found


def draw_delay(found: dict[str, Any]) -> Figure:
    """Device time, latency, and what clients that wait get."""
    figure, (busy, latency, closed) = new_figure(
        "Holding batches back saves device time, costs latency, and slows clients that wait", 1, 3
    )
    delays = [1e3 * delay_s for delay_s in found["delays_s"]]
    for (rate, values), colour, dashes in zip(found["open"].items(), COLOURS, DASHES, strict=False):
        shares = [100 * each for each in values["busy"]]
        busy.plot(delays, shares, color=colour, linestyle=dashes, label=f"{rate}/s")
        latency.plot(delays, [1e3 * each for each in values["p99_s"]], color=colour,
                     linestyle=dashes)  # fmt: skip
    for (clients, rates), colour, dashes in zip(
        found["closed"].items(), COLOURS[3:], DASHES, strict=False
    ):
        gains = [rate / rates[0] for rate in rates]
        closed.plot(delays, gains, color=colour, linestyle=dashes, label=f"{clients} clients")
    busy.set_ylabel("device busy, %")
    busy.set_ylim(0)
    busy.legend()
    latency.set_ylabel("p99 latency, ms")
    latency.set_ylim(0)
    closed.set_ylabel("answers/s, without delay = 1")
    closed.set_ylim(0, 1.1)
    closed.legend()
    for axes in (busy, latency, closed):
        axes.set_xlabel("max_queue_delay, ms")
    return figure


_PROGRAMS: Mapping[str, Callable[[int], float]] = {
    "flat: 2 ms to 8 rows": lambda size: 0.002,
    "small, CPU: 20 us + 1.3 us a row": lambda size: 20e-6 + 1.3e-6 * size,
    "ResNet-50, CPU: 30 ms a row": lambda size: 0.030 * size,
}
_CROWDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)


def simulate_plans(seed: int) -> dict[str, Any]:
    """Clients that wait for answers, one row each, and programs of 1 and 8 rows; not random."""
    found: dict[str, Any] = {"clients": list(_CROWDS)}
    for label, cost_s in _PROGRAMS.items():
        gains = []
        for crowd in _CROWDS:
            models = [SimModel(name="m", costs_s={size: cost_s(size) for size in (1, 8)})]
            until_s = 800 * cost_s(1)
            rates = [
                len(
                    Device(models, scheduler_config(models, "fair", plan))
                    .run(until_s, clients=[Clients(model="m", count=crowd)])
                    .answers
                )
                for plan in ("min_cost", "full")
            ]
            gains.append(rates[0] / rates[1])
        found[label] = gains
    return found


def draw_plans(found: dict[str, Any]) -> Figure:
    """The gain in answers, by how many clients wait."""
    figure, (axes,) = new_figure("Padding where it is cheaper gives several times the answers")
    for label, colour, dashes in zip(_PROGRAMS, COLOURS, DASHES, strict=False):
        axes.plot(found["clients"], found[label], color=colour, linestyle=dashes, label=label,
                  marker=".", markersize=5)  # fmt: skip
    axes.set_xlabel("clients that wait for answers, one row each; programs of 1 and 8 rows")
    axes.set_ylabel("answers/s, min_cost over full")
    axes.set_ylim(0)
    axes.legend()
    return figure
