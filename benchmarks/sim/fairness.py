"""Who gets how much of a saturated device, and what happens when somebody comes late."""

from typing import Any

from benchmarks.sim.device import Device, SimModel, scheduler_config
from benchmarks.sim.drawing import COLOURS, DASHES, Figure, label_ends, new_figure
from benchmarks.sim.traffic import Clients

__all__ = ["draw_newcomer", "draw_shares", "simulate_newcomer", "simulate_shares"]

KINDS = {
    "fair": "fair",
    "fair original": "fair, original formula",
    "fifo": "fifo",
    "edf": "edf",
}
"""Disciplines, and how pictures name them."""

_UNTIL_S, _WINDOW_S = 60.0, 4.0

_CROWD = (
    SimModel(name="a", costs_s={1: 0.010}, weight=1),
    SimModel(name="b", costs_s={1: 0.050}, weight=2),
    SimModel(name="idle 1", costs_s={1: 0.010}, weight=5),
    SimModel(name="idle 2", costs_s={1: 0.010}, weight=5),
)
_TIMEOUTS_S = {"a": 0.3, "b": 1.0}


def simulate_shares(seed: int) -> dict[str, Any]:
    """Two models with work all the time, beside two idle ones; nothing in it is random."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        device = Device(_CROWD, scheduler_config(_CROWD, kind), overhead_s=0)
        clients = [
            Clients(model=name, count=2, timeout_s=timeout_s if kind == "edf" else None)
            for name, timeout_s in _TIMEOUTS_S.items()
        ]
        record = device.run(_UNTIL_S, clients=clients)
        begins = [_WINDOW_S / 4 * step for step in range(round(4 * _UNTIL_S / _WINDOW_S) - 3)]
        windows = [record.shares(begin, begin + _WINDOW_S) for begin in begins]
        found[kind] = {
            "at_s": [begin + _WINDOW_S / 2 for begin in begins],
            "a": [window.get("a", 0.0) for window in windows],
            "b": [window.get("b", 0.0) for window in windows],
            "whole": record.shares(0, _UNTIL_S),
        }
    return found


def draw_shares(found: dict[str, Any]) -> Figure:
    """One panel for each discipline, with the shares that the weights say."""
    figure, panels = new_figure(
        "Only the corrected fair formula gives a third and two thirds", 1, 4, sharey=True
    )
    for axes, (kind, label) in zip(panels, KINDS.items(), strict=True):
        for name, colour, wanted in (("a", COLOURS[0], 1 / 3), ("b", COLOURS[1], 2 / 3)):
            axes.axhline(100 * wanted, color=colour, linewidth=0.9, linestyle=DASHES[1])
            shares = [100 * share for share in found[kind][name]]
            axes.plot(found[kind]["at_s"], shares, color=colour)
            text = f"{name}, weight {'1' if name == 'a' else '2'}"
            axes.annotate(text, (3, shares[0]), xytext=(0, 6), textcoords="offset points",
                          color=colour)  # fmt: skip
        axes.set_title(label)
        axes.set_xlabel("time, s")
        axes.set_ylim(0, 105)
    panels[0].set_ylabel("share of the device, %")
    return figure


_COMES_S = 20.0
_PAIR = (SimModel(name="a", costs_s={1: 0.010}), SimModel(name="b", costs_s={1: 0.010}))
_BIN_S = 0.5


def simulate_newcomer(seed: int) -> dict[str, Any]:
    """One model has worked alone when a second one of equal weight comes; nothing is random."""
    found: dict[str, Any] = {}
    for kind in ("fair", "fair original"):
        device = Device(_PAIR, scheduler_config(_PAIR, kind), overhead_s=0)
        clients = [Clients(model="a", count=2), Clients(model="b", count=2, from_s=_COMES_S)]
        record = device.run(_UNTIL_S, clients=clients)
        found[kind] = {
            "at_s": [_BIN_S * (step + 0.5) for step in range(round(_UNTIL_S / _BIN_S))],
            "a_per_s": record.rates("a", _BIN_S, _UNTIL_S),
            "longest_wait_s": record.latency_s(1.0, "a") - 0.010,
        }
    return found


def draw_newcomer(found: dict[str, Any]) -> Figure:
    """What the first one is given, under both formulas."""
    figure, (axes,) = new_figure("Nobody stands still for a model that comes back after a pause")
    lines = []
    for kind, colour, dashes in zip(found, COLOURS, DASHES, strict=False):
        values = found[kind]
        axes.plot(values["at_s"], values["a_per_s"], color=colour, linestyle=dashes)
        place = values["at_s"].index(22.25)
        lines.append((KINDS[kind], 22.25, values["a_per_s"][place] + 6, colour))
    label_ends(axes, lines)
    axes.axvline(_COMES_S, color="#666666", linewidth=0.9)
    axes.annotate("b comes", (_COMES_S, 96), xytext=(4, 0), textcoords="offset points")
    axes.set_xlim(10, 50)
    axes.set_ylim(-3, 105)
    axes.set_xlabel("time, s")
    axes.set_ylabel("answers of a per second")
    return figure
