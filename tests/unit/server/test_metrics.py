"""What Prometheus reads of a worker."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server_services import Services, running_services

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import ResidencyStatus
from hloserve.models.model import Model
from hloserve.server.metrics import Exposition, RequestMetrics
from hloserve.wire.bytes_in_hand import BytesInHand


class _View:
    """A worker as the collector sees it."""

    max_in_flight = 7
    bytes_in_hand = BytesInHand(1000)
    info: Mapping[str, str] = {"version": "1.2"}

    def __init__(self, services: Services) -> None:
        self._services = services
        self.request_metrics: RequestMetrics = services.metrics
        self.in_flight = 3
        self.metas_in_flight = 2
        self.meta_scratch_bytes = 4096
        self.residency: ResidencyStatus | None = None

    def loaded_models(self) -> Mapping[str, tuple[Model, int]]:
        """The model, with a queue of five."""
        return {"scale": (self._services.model, 5)}

    def scheduling_weight(self, model: DeviceModel) -> float:
        """Of whichever model."""
        return 2.5

    model_changes: Mapping[str, int] = {"reload": 3}

    def failed_models(self) -> Mapping[str, str]:
        """One."""
        return {"broken": "no weights"}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """One model that serves."""
    with running_services(tmp_path) as made:
        yield made


def _scrape(services: Services) -> dict[tuple[str, tuple[str, ...]], float]:
    text = Exposition(_View(services)).render().decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_model_and_status(services: Services) -> None:
    """Buckets are cumulative; the last one counts everything."""
    for status, seconds in (("OK", 0.0015), ("OK", 0.001), ("NOT_FOUND", 100)):
        services.metrics.observe("scale", status, 0, round(seconds * 1e9))

    samples = _scrape(services)

    assert samples["worker_requests_total", ("scale", "OK")] == 2
    assert samples["worker_requests_total", ("scale", "NOT_FOUND")] == 1
    bucket = "worker_request_latency_seconds_bucket"
    assert [1, 2, 3] == [samples[bucket, (le, "scale")] for le in ("0.001", "0.002", "+Inf")]
    assert samples["worker_request_latency_seconds_sum", ("scale",)] == pytest.approx(100.0025)


def test_dispatches_are_those_of_the_engine(services: Services) -> None:
    """A scrape reads the model's own statistics."""
    statistics = services.model.device.statistics
    statistics.record_dispatch(size=4, requests=2, rows=3, compute_ns=5 * 10**8)
    statistics.record_waits([10**9, 3 * 10**9])

    samples = _scrape(services)

    assert samples["worker_dispatch_total", ("scale",)] == 1
    assert samples["worker_compute_seconds_total", ("scale",)] == 0.5
    assert samples["worker_rows_served_total", ("scale",)] == 3
    assert samples["worker_padded_rows_total", ("scale",)] == 4
    assert samples["worker_batch_size_total", ("scale", "4")] == 1
    assert samples["worker_queue_wait_seconds", ("scale", "0.99")] == 3
    assert samples["worker_queue_depth", ("scale",)] == 5


def test_gauges_are_those_of_the_worker(services: Services) -> None:
    """Loaded, failed, in flight, its cap, and what the worker is."""
    services.metrics.shed = 2

    samples = _scrape(services)

    assert samples["worker_models_loaded", ()] == 1
    assert samples["worker_models_failed", ()] == 1
    assert samples["worker_inflight_requests", ()] == 3
    assert samples["worker_metas_in_flight", ()] == 2
    assert samples["worker_meta_scratch_bytes", ()] == 4096
    assert samples["worker_max_request_bytes_in_hand", ()] == 1000
    assert samples["worker_max_concurrent_requests", ()] == 7
    assert samples["worker_requests_shed_total", ()] == 2
    assert samples["worker_info", ("1.2",)] == 1
    assert not [name for name, _ in samples if name.startswith("worker_hook_process")]


def test_scheduling_is_told_by_model_and_program(services: Services) -> None:
    """What a model should get, and what each of its programs takes by shape and batch size."""
    costs_ns = services.model.device.statistics.costs_ns
    costs_ns.clear()
    costs_ns[128, 4] = {8: 2_000_000}
    samples = _scrape(services)

    assert samples["worker_model_scheduling_weight", ("scale",)] == 2.5
    found = {
        key: value for key, value in samples.items() if key[0] == "worker_program_cost_seconds"
    }
    assert found == {("worker_program_cost_seconds", ("scale", "8", "128,4")): 0.002}
