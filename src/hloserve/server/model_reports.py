"""A model's configuration and statistics, put together when somebody asks.

What lives here: reading them off models and counters. What does not: counting
(`hloserve.engine.statistics`, `hloserve.server.metrics`) and bytes (`hloserve.wire`). Loop thread.

Source: Triton's model configuration and statistics extensions.
"""

import time
from collections.abc import Mapping

from hloserve.core.clock import Clock
from hloserve.core.model_reports import (
    BatchReport,
    Duration,
    MemoryReport,
    ModelConfig,
    ModelReport,
    TensorConfig,
)
from hloserve.core.requests import TensorMetadata
from hloserve.core.tensors import TensorSpec
from hloserve.engine.statistics import ModelStatistics
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.server.inference import check_version
from hloserve.server.metrics import RequestMetrics

__all__ = ["STATISTICS_VERSION", "ModelReports"]

_GPU_PLATFORMS = ("cuda", "gpu", "rocm")

STATISTICS_VERSION = "1"
"""The version that statistics name: published load generators read it as a number."""


class ModelReports:
    """Answers what the configuration and statistics extensions ask.

    Args:
        registry: the models.
        requests: counts finished requests.
        clock: the one that `requests` is counted by.
        device_ordinal: which accelerator, when there is one.
    """

    def __init__(
        self, registry: Registry, requests: RequestMetrics, clock: Clock, device_ordinal: int
    ) -> None:
        self._registry = registry
        self._requests = requests
        self._clock = clock
        self._device_ordinal = device_ordinal

    def config(self, name: str, version: str) -> ModelConfig:
        """How a model is served.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
        """
        check_version(name, version)
        model = self._registry.get(name)
        metadata, device = model.metadata, model.device
        is_batched = device.can_coalesce and _has_rows_in_front(model)
        is_gpu = metadata.platform in _GPU_PLATFORMS
        return ModelConfig(
            name=name,
            platform=metadata.platform,
            backend="meta" if model.is_meta else "xla",
            max_batch_size=device.effective_max_batch_size if is_batched else 0,
            inputs=_tensors(metadata.inputs, {}, is_batched=is_batched),
            outputs=_tensors(metadata.outputs, model.manifest.labels, is_batched=is_batched),
            preferred_batch_sizes=device.batch_sizes if is_batched else (),
            instance_kind="KIND_GPU" if is_gpu else "KIND_CPU",
            device_ordinals=(self._device_ordinal,) if is_gpu else (),
        )

    def statistics(self, name: str, version: str) -> list[ModelReport]:
        """The counters of a model, or of all that serve when `name` is empty.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
        """
        check_version(name, version)
        models = [self._registry.get(name)] if name else self._registry.models()
        return [self._report(model) for model in models]

    def _report(self, model: Model) -> ModelReport:
        statistics = model.device.statistics
        requests = self._requests.of_model(model.name)
        batches = tuple(
            BatchReport(
                max(size, 1),
                Duration(figures.dispatches, figures.input_ns),
                Duration(figures.dispatches, figures.infer_ns),
                Duration(figures.dispatches, figures.output_ns),
            )
            for size, figures in sorted(statistics.batches.copy().items())
        )
        served = statistics.requests_served
        input_ns, infer_ns, output_ns = _seen_by_requests(statistics, batches)
        is_gpu = model.metadata.platform in _GPU_PLATFORMS
        memory = MemoryReport(
            "GPU" if is_gpu else "CPU",
            self._device_ordinal if is_gpu else 0,
            model.weight_bytes,
        )
        return ModelReport(
            name=model.name,
            version=STATISTICS_VERSION,
            last_inference_ms=self._wall_ms(requests.last_ns),
            inference_count=statistics.rows_served,
            execution_count=statistics.dispatch_count,
            success=Duration(requests.ok_count, requests.ok_ns),
            fail=Duration(requests.failed_count, requests.failed_ns),
            queue=Duration(statistics.queued_count, statistics.queued_ns),
            compute_input=Duration(served, input_ns),
            compute_infer=Duration(served, infer_ns),
            compute_output=Duration(served, output_ns),
            batches=batches,
            memory=(memory,),
        )

    def _wall_ms(self, instant_ns: int) -> int:
        """An instant of the monotonic clock as the wall clock has it now; 0 for none."""
        if not instant_ns:
            return 0
        return (time.time_ns() - (self._clock.now_ns() - instant_ns)) // 1_000_000


def _has_rows_in_front(model: Model) -> bool:
    """True when the first axis of everything that clients see is the batch axis."""
    specs: tuple[TensorSpec, ...] = (*model.inputs, *model.outputs)
    return all(spec.batch_axis == 0 for spec in specs)


def _tensors(
    tensors: tuple[TensorMetadata, ...], labels: Mapping[str, str], *, is_batched: bool
) -> tuple[TensorConfig, ...]:
    start = 1 if is_batched else 0
    return tuple(
        TensorConfig(t.name, t.datatype, t.shape[start:], labels.get(t.name, "")) for t in tensors
    )


def _seen_by_requests(
    statistics: ModelStatistics, batches: tuple[BatchReport, ...]
) -> tuple[int, int, int]:
    """Input, execution and output time, each batch's as often as requests were in it."""
    return (
        statistics.shared_input_ns + sum(batch.compute_input.ns for batch in batches),
        statistics.shared_infer_ns + sum(batch.compute_infer.ns for batch in batches),
        statistics.shared_output_ns + sum(batch.compute_output.ns for batch in batches),
    )
