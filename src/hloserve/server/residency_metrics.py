"""Metrics of weights that come and go.

What lives here: names and texts. What does not: counting (`hloserve.engine.residency`) and the
other metrics (`hloserve.server.metrics`). Loop thread.

Source: spec "Worker metrics", and what tells the time that loading costs.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import Floor, ResidencyMode, ResidencyStatus
from hloserve.server.metric_families import counter, gauge

__all__ = ["residency_families"]


def residency_families(
    status: ResidencyStatus | None, models: Mapping[str, DeviceModel]
) -> Iterator[Metric]:
    """What is on the device, and with a budget, what loading costs.

    Args:
        status: of the device; None until it is open.
        models: those that serve, by name.
    """
    resident = GaugeMetricFamily(
        "worker_model_resident", "1 when the weights are on the device.", labels=["model"]
    )
    pinned = GaugeMetricFamily(
        "worker_model_pinned", "1 when the weights are never evicted.", labels=["model"]
    )
    found = {} if status is None else status.models
    on_device = bytes_on_device = 0
    for name, model in sorted(models.items()):
        where = found.get(model)
        is_there = where is None or where.is_on_device
        on_device += is_there
        bytes_on_device += where.weight_bytes if where is not None and is_there else 0
        resident.add_metric([name], float(is_there))
        pinned.add_metric([name], float(where is not None and where.floor is Floor.DEVICE))
    yield from (resident, pinned)
    yield gauge("worker_models_resident", "Models whose weights are on the device.", on_device)
    yield gauge(
        "worker_resident_weight_bytes", "Weights of these models on the device.", bytes_on_device
    )
    if status is not None and status.mode is not ResidencyMode.EVERYTHING:
        yield from _cache_families(status)


def _cache_families(status: ResidencyStatus) -> Iterator[Metric]:
    yield gauge(
        "worker_weight_cache_max_bytes", "Budget of weights that are not pinned.",
        status.max_bytes or 0,
    )  # fmt: skip
    yield gauge("worker_weight_cache_resident_bytes", "What these take now.", status.resident_bytes)
    yield gauge("worker_weight_cache_pinned_bytes", "Weights that are pinned.", status.pinned_bytes)
    yield gauge(
        "worker_weight_cache_max_scratch_bytes",
        "What the programs of one model take beside weights, at most, as measured.",
        status.scratch_bytes,
    )
    yield gauge(
        "worker_weight_pool_bytes", "Budget of all weights.",
        status.pool_bytes or 0,
    )  # fmt: skip
    yield counter("worker_weight_loads", "Loads of weights to the device.", status.loads)
    yield counter("worker_weight_loaded_bytes", "What they brought.", status.loaded_bytes)
    yield counter(
        "worker_weight_evicts", "Weights taken off the device for others.", status.evictions
    )
    yield counter("worker_weight_hits", "Executions whose weights were on the device.", status.hits)
    yield counter(
        "worker_weight_load_seconds", "Time that executions waited for weights.",
        status.load_ns * 1e-9,
    )  # fmt: skip
    yield counter(
        "worker_weight_compactions", "Times that all idle weights were taken off the device.",
        status.compactions,
    )  # fmt: skip
