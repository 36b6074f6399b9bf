"""What metrics tell of the choices between models.

What lives here: metric families, made from what the scheduler and the models' statistics hold. What
does not: the exposition (`hloserve.server.metrics`). Loop thread.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from hloserve.engine.device_model import DeviceModel

__all__ = ["scheduling_families"]


def scheduling_families(
    devices: Mapping[str, DeviceModel], weight: Callable[[DeviceModel], float]
) -> Iterator[Metric]:
    """What each model should get of the device, and what its programs take.

    Args:
        devices: by served name.
        weight: a model's share, relative to the others.
    """
    weights = GaugeMetricFamily(
        "worker_model_scheduling_weight",
        "Share of the device, relative to the other models that have work.",
        labels=["model"],
    )
    costs = GaugeMetricFamily(
        "worker_program_cost_seconds",
        "What an execution is known to take, by the extents of the variable axes and batch size.",
        labels=["model", "variant", "size"],
    )
    for name, device in sorted(devices.items()):
        weights.add_metric([name], weight(device))
        for variant, by_size in sorted(device.statistics.costs_ns.copy().items()):
            for size, cost_ns in sorted(by_size.copy().items()):
                labels = [name, ",".join(map(str, variant)), str(size)]
                costs.add_metric(labels, cost_ns * 1e-9)
    yield from (weights, costs)
