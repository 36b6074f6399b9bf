"""What an operator, or a controller, asks of a worker's device, and tells it.

What lives here: answers, put together from registry, scheduler and residency. What does not: bytes
(`hloserve.wire.control_protobuf`), where weights are (`hloserve.engine.residency`) and shares of
the device (`hloserve.engine.scheduling`). Loop thread; what changes the device runs on the dispatch
thread, between two dispatches.

Source: spec "Control service", "Live policy".
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from hloserve.core.errors import NotPossibleNow
from hloserve.core.logging import log_event
from hloserve.core.model_control import Compaction, ControlStatus, Floor, ModelControlStatus
from hloserve.core.tickets import Ticket
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import (
    ModelResidency,
    ResidencyControl,
    ResidencyMode,
    ResidencyStatus,
)
from hloserve.models.model import Model
from hloserve.models.registry import Registry

__all__ = ["Commands", "ModelControl"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_MODES = {
    ResidencyMode.EVERYTHING: "self_managed",
    ResidencyMode.SELF_MANAGED: "self_managed",
    ResidencyMode.EXTERNAL: "externally_managed",
}
"""The names of the protocol, which has two: a worker without a budget manages itself."""


class Commands(Protocol):
    """The part of the scheduler that is asked here."""

    def command(self, run: Callable[[], T]) -> Ticket[T]:
        """Run on the dispatch thread, between dispatches."""
        ...

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model."""
        ...

    def weight(self, model: DeviceModel) -> float:
        """A model's share."""
        ...

    def set_weight(self, model: DeviceModel, weight: float) -> None:
        """Change it."""
        ...


class ModelControl:
    """Answers what the control service asks.

    Args:
        registry: the models.
        scheduler: their queues and shares, and the way to the dispatch thread.
        discipline: how the next model is chosen.

    Attributes:
        residency: where weights are; None until the device is open.
    """

    def __init__(self, registry: Registry, scheduler: Commands, discipline: str) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._discipline = discipline
        self.residency: ResidencyControl | None = None

    def status(self) -> ControlStatus:
        """The device and every model that serves."""
        weights = _NOT_OPEN if self.residency is None else self.residency.status()
        return ControlStatus(
            residency_mode=_MODES[weights.mode],
            discipline=self._discipline,
            has_weight_cache=weights.mode is not ResidencyMode.EVERYTHING,
            max_bytes=weights.max_bytes or 0,
            resident_bytes=weights.resident_bytes,
            pinned_bytes=weights.pinned_bytes,
            scratch_bytes=weights.scratch_bytes,
            loads=weights.loads,
            loaded_bytes=weights.loaded_bytes,
            load_seconds=weights.load_ns * 1e-9,
            evictions=weights.evictions,
            hits=weights.hits,
            compactions=weights.compactions,
            models=tuple(
                self._model(model, weights.models.get(model.device))
                for model in self._registry.models()
            ),
        )

    async def set_residency(self, name: str, floor: Floor) -> Floor:
        """Say what is kept of a model's weights; returns what is kept, when it is done.

        Raises:
            NotPossibleNow: the worker manages its weights by itself.
            ModelNotFound, ModelNotReady: the model is not there, or not yet.
            DeviceMemoryFull: there is no room on the device. Retryable.
            HloserveError: the weights cannot be read.
        """
        residency = self._managed_by_others(name)
        model = self._registry.get(name)
        await self._scheduler.command(lambda: residency.set_floor(model.device, floor))
        log_event(log, "residency_set", model=name, floor=floor.value)
        return floor

    def set_policy(self, name: str, weight: float | None) -> None:
        """Set a model's share of the device; None leaves it.

        Args:
            name: served name.
            weight: finite and above 0, beside the weights of the others.

        Raises:
            ModelNotFound, ModelNotReady: the model is not there, or not yet.
        """
        model = self._registry.get(name)
        if weight is not None:
            self._scheduler.set_weight(model.device, weight)
            log_event(log, "weight_set", model=name, weight=weight)

    async def compact(self, reload: Iterable[str]) -> Compaction:
        """Join the device's free memory; returns when it is done.

        Args:
            reload: models whose weights are loaded again, in this order. Those that do not serve,
                are pinned or do not fit any more are passed over.
        """
        residency = self.residency
        if residency is None or residency.status().mode is ResidencyMode.EVERYTHING:
            return Compaction(0, 0)
        serving = {model.name: model.device for model in self._registry.models()}
        models = [serving[name] for name in reload if name in serving]

        def run() -> Compaction:
            reloaded = residency.compact(models)
            return Compaction(reloaded, residency.status().resident_bytes)

        before_bytes = residency.status().resident_bytes
        done: Compaction = await self._scheduler.command(run)
        log_event(
            log,
            "memory_compacted",
            reloaded_models=done.reloaded_models,
            resident_bytes_before=before_bytes,
            resident_bytes=done.resident_bytes,
        )
        return done

    def _managed_by_others(self, name: str) -> ResidencyControl:
        """Where weights are, if a controller may say so."""
        if self.residency is None:
            self._registry.get(name)  # which is not ready while the server starts
        if self.residency is None or self.residency.status().mode is ResidencyMode.EVERYTHING:
            raise NotPossibleNow(
                "all weights are on the device for as long as their models serve; to choose which"
                " are, set runtime.weight_cache_bytes, and runtime.residency to 'external'"
            )
        if self.residency.status().mode is ResidencyMode.SELF_MANAGED:
            raise NotPossibleNow(
                "this worker decides by itself which weights are on the device; to do it from"
                " outside, set runtime.residency to 'external', or pin models by"
                " scheduler.models.<model>.residency"
            )
        return self.residency

    def _model(self, model: Model, weights: ModelResidency | None) -> ModelControlStatus:
        device = model.device
        counters = device.statistics
        batched = ((s.name, s.batch_axis + 1) for s in model.inputs if s.batch_axis is not None)
        batch_input_name, batch_axis = next(batched, ("", 0))
        return ModelControlStatus(
            name=model.name,
            floor=Floor.UNPINNED if weights is None else weights.floor,
            is_on_device=weights is None or weights.is_on_device,
            is_on_host=weights is not None and weights.is_on_host,
            weight_bytes=model.weight_bytes if weights is None else weights.weight_bytes,
            weight=self._scheduler.weight(device),
            queue_depth=self._scheduler.depth(device),
            compute_seconds=counters.compute_ns * 1e-9,
            requests_served=counters.requests_served,
            dispatch_count=counters.dispatch_count,
            rows_served=counters.rows_served,
            padded_rows=counters.padded_rows,
            requests_expired=counters.shed_count,
            requests_failed=counters.failed_count,
            max_batch_size=device.effective_max_batch_size,
            batch_input_name=batch_input_name,
            batch_axis=batch_axis,
        )


_NOT_OPEN = ResidencyStatus(
    mode=ResidencyMode.EVERYTHING,
    max_bytes=None,
    resident_bytes=0,
    pinned_bytes=0,
    scratch_bytes=0,
    loads=0,
    evictions=0,
    hits=0,
    load_ns=0,
    loaded_bytes=0,
    compactions=0,
    models={},
)
"""What there is to say of weights while there is no device."""
