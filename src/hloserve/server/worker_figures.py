"""What metrics read of a worker when somebody scrapes.

What lives here: looking things up where they are. What does not: counting, and metric names
(`hloserve.server.metrics`). Loop thread.
"""

from collections.abc import Mapping

from typing_extensions import override

from hloserve import __version__
from hloserve.config.schema import WorkerConfig
from hloserve.core.requests import ModelState
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import ResidencyStatus
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.server.control import ModelControl
from hloserve.server.inference import InferenceService
from hloserve.server.metrics import RequestMetrics, WorkerView
from hloserve.server.model_events import ModelEvents
from hloserve.wire.bytes_in_hand import BytesInHand

__all__ = ["WorkerFigures"]


class WorkerFigures(WorkerView):
    """The figures of one worker."""

    def __init__(  # noqa: PLR0913  # it is wired once, by name
        self,
        config: WorkerConfig,
        registry: Registry,
        scheduler: Scheduler,
        inference: InferenceService,
        request_metrics: RequestMetrics,
        model_events: ModelEvents,
        control: ModelControl,
        budget: BytesInHand,
    ) -> None:
        self._config = config
        self._registry = registry
        self._scheduler = scheduler
        self._inference = inference
        self._request_metrics = request_metrics
        self._model_events = model_events
        self._control = control
        self._budget = budget

    @property
    @override
    def request_metrics(self) -> RequestMetrics:
        return self._request_metrics

    @property
    @override
    def in_flight(self) -> int:
        return self._inference.in_flight

    @property
    @override
    def max_in_flight(self) -> int:
        return self._inference.max_in_flight

    @property
    @override
    def bytes_in_hand(self) -> BytesInHand:
        return self._budget

    @property
    @override
    def info(self) -> Mapping[str, str]:
        return {
            "version": __version__,
            "control_mode": self._config.model_control_mode,
            "discipline": self._config.scheduler.discipline,
            "residency_mode": self._config.runtime.residency_mode,
            "device_ordinal": str(self._config.runtime.device_ordinal),
        }

    @property
    @override
    def model_changes(self) -> Mapping[str, int]:
        return self._model_events.counts

    @property
    @override
    def residency(self) -> ResidencyStatus | None:
        residency = self._control.residency
        return None if residency is None else residency.status()

    @property
    @override
    def metas_in_flight(self) -> int:
        return self._inference.metas.in_flight

    @property
    @override
    def meta_scratch_bytes(self) -> int:
        return self._inference.metas.scratch_used_bytes

    @override
    def scheduling_weight(self, model: DeviceModel) -> float:
        return self._scheduler.weight(model)

    @override
    def loaded_models(self) -> Mapping[str, tuple[Model, int]]:
        return {
            model.name: (model, self._scheduler.depth(model.device))
            for model in self._registry.models()
        }

    @override
    def failed_models(self) -> Mapping[str, str]:
        return {
            entry.name: entry.reason
            for entry in self._registry.index()
            if entry.state is ModelState.FAILED
            or (entry.state is ModelState.READY and entry.reason)
        }
