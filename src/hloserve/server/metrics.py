"""What a worker counts, and how Prometheus reads it.

What lives here: request counters and latency histograms (written on the loop thread, a few integer
additions per request) and the collector that turns them, the models' own statistics and the
server's gauges into metric families when somebody scrapes. What does not: counting of dispatches
(`engine.statistics`). Metric names are those of the original server, so dashboards carry over.

Rule: a label never holds text that a client chose; requests to unknown models count as `_unknown`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry
from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import ResidencyStatus
from hloserve.engine.statistics import percentile
from hloserve.models.model import Model
from hloserve.server.hook_metrics import hook_families
from hloserve.server.metric_families import counter, gauge
from hloserve.server.residency_metrics import residency_families
from hloserve.server.scheduling_metrics import scheduling_families
from hloserve.wire.bytes_in_hand import BytesInHand

__all__ = [
    "LATENCY_BUCKETS_S",
    "UNKNOWN_MODEL",
    "Exposition",
    "ModelRequests",
    "RequestMetrics",
    "WorkerView",
]

LATENCY_BUCKETS_S: tuple[float, ...] = tuple(0.001 * 2**k for k in range(14))
"""Upper bounds of the latency histogram, 1 ms to 8.2 s; +Inf follows."""

UNKNOWN_MODEL = "_unknown"

_LONGEST_REASON = 200
"""Characters of a label; the index and the log have all of it."""


@dataclass(slots=True)
class ModelRequests:
    """The finished requests of one model.

    Attributes:
        by_status: how many, by gRPC's name of the outcome.
        latency_counts: how many, by bucket of `LATENCY_BUCKETS_S`.
        ok_ns: time from arrival to answer, over those with outputs.
        failed_ns: the same over the others.
        last_ns: monotonic instant of the last one; 0 before the first.
    """

    by_status: dict[str, int] = field(default_factory=dict)
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    ok_ns: int = 0
    failed_ns: int = 0
    last_ns: int = 0

    @property
    def ok_count(self) -> int:
        """Requests answered with outputs."""
        return self.by_status.get("OK", 0)

    @property
    def failed_count(self) -> int:
        """Requests with any other outcome."""
        return sum(self.by_status.values()) - self.ok_count


class RequestMetrics:
    """Counts finished inference requests per model. Loop thread only."""

    def __init__(self) -> None:
        self._models: dict[str, ModelRequests] = {}
        self.shed = 0
        """Requests refused because too many were in flight."""

    def of_model(self, model: str) -> ModelRequests:
        """The counters of a model; all zero before its first request."""
        return self._models.get(model) or ModelRequests()

    def observe(self, model: str, status: str, started_ns: int, ended_ns: int) -> None:
        """Count one finished request.

        Args:
            model: a served model's name, or `UNKNOWN_MODEL`.
            status: gRPC's name of the outcome, ``OK`` for success.
            started_ns: monotonic instant of its arrival.
            ended_ns: of its answer.
        """
        counts = self._models.get(model)
        if counts is None:
            counts = self._models[model] = ModelRequests()
        counts.by_status[status] = counts.by_status.get(status, 0) + 1
        elapsed_ns = ended_ns - started_ns
        counts.latency_counts[bisect_left(LATENCY_BUCKETS_S, elapsed_ns * 1e-9)] += 1
        counts.last_ns = ended_ns
        if status == "OK":
            counts.ok_ns += elapsed_ns
        else:
            counts.failed_ns += elapsed_ns

    def rename(self, owners: Mapping[str, str]) -> None:
        """Let models that were renamed keep their counters, all in one step.

        Args:
            owners: new name to old name.
        """
        taken = {new: self._models.pop(old, None) for new, old in owners.items()}
        self._models |= {name: counts for name, counts in taken.items() if counts is not None}

    def families(self) -> Iterator[Metric]:
        """Yield the request counters and histograms."""
        requests = CounterMetricFamily(
            "worker_requests", "Inference requests answered.", labels=["model", "status"]
        )
        latency = HistogramMetricFamily(
            "worker_request_latency_seconds",
            "Time from the arrival of an inference request to its answer.",
            labels=["model"],
        )
        for name, counts in sorted(self._models.items()):
            for status, count in sorted(counts.by_status.items()):
                requests.add_metric([name, status], count)
            sum_s = (counts.ok_ns + counts.failed_ns) * 1e-9
            latency.add_metric([name], _cumulative(counts.latency_counts), sum_s)
        yield requests
        yield latency
        yield counter("worker_requests_shed", "Requests refused at the in-flight cap.", self.shed)


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip([*map(repr, LATENCY_BUCKETS_S), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


class WorkerView(Protocol):
    """What the collector reads of a worker at scrape time."""

    @property
    def request_metrics(self) -> RequestMetrics:
        """The counters of finished requests."""
        ...

    @property
    def in_flight(self) -> int:
        """Inference requests being handled."""
        ...

    @property
    def max_in_flight(self) -> int:
        """The cap on `in_flight`; 0 means none."""
        ...

    @property
    def bytes_in_hand(self) -> BytesInHand:
        """What requests hold of the process's memory."""
        ...

    @property
    def info(self) -> Mapping[str, str]:
        """Labels of `worker_info`."""
        ...

    @property
    def model_changes(self) -> Mapping[str, int]:
        """Loads, reloads, failures, renames and removals since the start."""
        ...

    @property
    def residency(self) -> ResidencyStatus | None:
        """Where weights are; None until the device is open."""
        ...

    @property
    def metas_in_flight(self) -> int:
        """Requests to meta models, waiting for their turn or running."""
        ...

    @property
    def meta_scratch_bytes(self) -> int:
        """Scratch memory that requests to meta models hold."""
        ...

    def scheduling_weight(self, model: DeviceModel) -> float:
        """A model's share of the device, relative to the others."""
        ...

    def loaded_models(self) -> Mapping[str, tuple[Model, int]]:
        """Served models by name, with the depth of their queues."""
        ...

    def failed_models(self) -> Mapping[str, str]:
        """Models whose last load failed, with the reason; the one before may still serve."""
        ...


class _WorkerCollector(Collector):
    def __init__(self, worker: WorkerView) -> None:
        self._worker = worker

    @override
    def collect(self) -> Iterator[Metric]:
        worker = self._worker
        models = worker.loaded_models()
        yield from worker.request_metrics.families()
        yield from _model_counters(models)
        yield from _model_gauges(models)
        devices = {name: model.device for name, (model, _) in models.items() if not model.is_meta}
        yield from hook_families(model for model, _ in models.values())
        yield from residency_families(worker.residency, devices)
        yield from scheduling_families(devices, worker.scheduling_weight)
        yield gauge("worker_models_loaded", "Models that serve.", len(models))
        yield from _failures(worker.failed_models())
        yield _changes(worker.model_changes)
        yield gauge(
            "worker_inflight_requests", "Inference requests being handled.", worker.in_flight
        )
        yield gauge(
            "worker_max_concurrent_requests",
            "Cap on inference requests in flight; 0 means none.",
            worker.max_in_flight,
        )
        yield gauge(
            "worker_metas_in_flight",
            "Requests to meta models, waiting for their turn or running.",
            worker.metas_in_flight,
        )
        yield gauge(
            "worker_meta_scratch_bytes",
            "Scratch memory that requests to meta models hold.",
            worker.meta_scratch_bytes,
        )
        budget = worker.bytes_in_hand
        yield gauge(
            "worker_request_bytes_in_hand", "Bytes that large requests hold.", budget.held_bytes
        )
        yield gauge("worker_max_request_bytes_in_hand", "The limit of those.", budget.limit_bytes)
        yield counter(
            "worker_requests_without_room", "Large requests refused at it.", budget.refused
        )
        yield InfoMetricFamily("worker", "What this worker is.", value=dict(worker.info))


def _failures(reasons: Mapping[str, str]) -> Iterator[Metric]:
    yield gauge("worker_models_failed", "Models whose last load failed.", len(reasons))
    failed = GaugeMetricFamily(
        "worker_model_failed", "1, with the reason, while it is so.", labels=["model", "reason"]
    )
    for name, reason in sorted(reasons.items()):
        failed.add_metric([name, reason[:_LONGEST_REASON]], 1)
    yield failed


def _changes(counts: Mapping[str, int]) -> Metric:
    changes = CounterMetricFamily(
        "worker_model_changes",
        "Bundles that were loaded, reloaded, renamed or removed, or failed to load.",
        labels=["change"],
    )
    for change, count in counts.items():
        changes.add_metric([change], count)
    return changes


def _model_counters(models: Mapping[str, tuple[Model, int]]) -> Iterator[Metric]:
    dispatches = CounterMetricFamily("worker_dispatch", "Executions.", labels=["model"])
    compute = CounterMetricFamily(
        "worker_compute_seconds", "Time spent in executions.", labels=["model"]
    )
    requests = CounterMetricFamily(
        "worker_requests_served", "Requests whose rows were executed.", labels=["model"]
    )
    rows = CounterMetricFamily("worker_rows_served", "Rows executed.", labels=["model"])
    padded = CounterMetricFamily(
        "worker_padded_rows",
        "Rows of the compiled programs that ran; less the rows served, it is padding.",
        labels=["model"],
    )
    batches = CounterMetricFamily(
        "worker_batch_size", "Executions by compiled batch size.", labels=["model", "size"]
    )
    expired = CounterMetricFamily(
        "worker_requests_expired",
        "Requests whose deadline passed in the queue, or could not be met.",
        labels=["model"],
    )
    for name, (model, _) in sorted(models.items()):
        statistics = model.device.statistics
        dispatches.add_metric([name], statistics.dispatch_count)
        compute.add_metric([name], statistics.compute_ns * 1e-9)
        requests.add_metric([name], statistics.requests_served)
        rows.add_metric([name], statistics.rows_served)
        padded.add_metric([name], statistics.padded_rows)
        expired.add_metric([name], statistics.shed_count)
        for size, count in sorted(statistics.batch_sizes.copy().items()):
            batches.add_metric([name, str(size)], count)
    yield from (dispatches, compute, requests, rows, padded, batches, expired)


def _model_gauges(models: Mapping[str, tuple[Model, int]]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("worker_queue_depth", "Requests queued.", labels=["model"])
    wait = GaugeMetricFamily(
        "worker_queue_wait_seconds",
        "Wait from queueing to dispatch, over the last 1,024 requests.",
        labels=["model", "quantile"],
    )
    weights = GaugeMetricFamily(
        "worker_model_weight_bytes", "Size of the weights.", labels=["model"]
    )
    largest = GaugeMetricFamily(
        "worker_model_max_batch_size", "Largest batch; 0 for unbatched.", labels=["model"]
    )
    for name, (model, queued) in sorted(models.items()):
        depth.add_metric([name], queued)
        waits_ns = model.device.statistics.waits_ns()
        for quantile in (0.5, 0.99):
            wait.add_metric([name, str(quantile)], percentile(waits_ns, quantile) * 1e-9)
        weights.add_metric([name], model.weight_bytes)
        largest.add_metric([name], model.device.effective_max_batch_size)
    yield from (depth, wait, weights, largest)


class Exposition:
    """Renders Prometheus text of a worker. Loop thread."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, worker: WorkerView) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_WorkerCollector(worker))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """One scrape."""
        return generate_latest(self._registry)
