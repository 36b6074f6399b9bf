"""What metrics tell of hooks that run in processes of their own.

What lives here: metric families, made from what the models have. What does not: the exposition
(`hloserve.server.metrics`). Loop thread.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hloserve.models.model import Model

__all__ = ["hook_families"]


def hook_families(models: Iterable[Model]) -> Iterator[Metric]:
    """The processes of each model that has some, and how often one took the place of another."""
    running = GaugeMetricFamily(
        "worker_hook_processes", "Processes that run the hooks of a model.", labels=["model"]
    )
    restarts = CounterMetricFamily(
        "worker_hook_process_restarts",
        "Hook processes started in the place of others, since the bundle was loaded.",
        labels=["model"],
    )
    for model in sorted(models, key=lambda model: model.name):
        processes = model.hook_processes
        if processes is not None:
            running.add_metric([model.name], len(processes.process_ids))
            restarts.add_metric([model.name], processes.restarts)
    yield from (running, restarts)
