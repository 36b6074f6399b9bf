"""A recorded trace under each discipline.

What lives here: what the models of a trace are, and the table of what became of their requests.
What does not: the format of traces (`benchmarks.sim.traces`).

Models are told by a JSON file::

    {"search": {"costs_s": {"1": 0.002, "8": 0.006}, "weight": 3, "weight_bytes": 250000000}}

`costs_s` is what a batch takes by compiled size, as in the metric `worker_program_cost_seconds`;
`weight`, `max_queue_delay_seconds` and `weight_bytes` may be left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from benchmarks.sim.budget import LOAD_TIME
from benchmarks.sim.device import Device, Loading, SimModel, scheduler_config
from benchmarks.sim.memory import Lru, Memory, Ours
from benchmarks.sim.traffic import Arrival

__all__ = ["ModelFigures", "read_models", "replayed"]

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class ModelFigures(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a trace does not say of a model."""

    costs_s: Annotated[
        dict[Annotated[int, msgspec.Meta(gt=0)], _Positive], msgspec.Meta(min_length=1)
    ]
    weight: _Positive = 1.0
    max_queue_delay_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    weight_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0


def read_models(path: Path) -> dict[str, ModelFigures]:
    """Read the file of models.

    Raises:
        ValueError: it does not say what it should; the text tells where.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ModelFigures])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def replayed(
    arrivals: Sequence[Arrival],
    figures: Mapping[str, ModelFigures],
    budget_bytes: int | None = None,
) -> dict[str, Any]:
    """Serve a trace once under each discipline and, with a budget, with each way to evict.

    Returns:
        By discipline and way: the hit rate, the share of time lost to loading, and by model what
        share of the device it had, its median and p99 latency and who was answered in time.

    Raises:
        ValueError: the trace asks for a model that is not described.
    """
    unknown = sorted({arrival.model for arrival in arrivals} - set(figures))
    if unknown:
        raise ValueError(f"the file of models does not describe {unknown[0]!r}")
    models = [
        SimModel(
            name=name, costs_s=each.costs_s, weight=each.weight,
            max_delay_s=each.max_queue_delay_seconds,
        )
        for name, each in figures.items()
    ]  # fmt: skip
    sizes = {name: each.weight_bytes for name, each in figures.items()}
    until_s = arrivals[-1].at_ns * 1e-9 + 60
    found: dict[str, Any] = {}
    for kind in ("fair", "fair original", "fifo", "edf"):
        for way in ("ours", "lru") if budget_bytes is not None else ("",):
            loading = None
            if budget_bytes is not None:
                memory: Memory = (
                    Ours(sizes, budget_bytes, LOAD_TIME)
                    if way == "ours"
                    else Lru(sizes, budget_bytes)
                )
                loading = Loading(memory, sizes, LOAD_TIME)
            record = Device(models, scheduler_config(models, kind), loading).run(until_s, arrivals)
            shares = record.shares(0, until_s)
            found[f"{kind} {way}".strip()] = {
                "hit_fraction": record.hits / record.leases if record.leases else None,
                "load_s": record.load_s,
                "models": {
                    name: {
                        "share": shares.get(name, 0.0),
                        "p50_s": record.latency_s(0.5, name),
                        "p99_s": record.latency_s(0.99, name),
                        "in_time": record.served_fraction(name),
                    }
                    for name in figures
                },
            }
    return found
