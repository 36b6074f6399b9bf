"""What an operator, or a controller, asks of a worker's device, and tells it.

What lives here: answers, put together from registry, scheduler and residency. What does not: single
models, and what meta models stand for (`hloserve.server.control_models`), bytes
(`hloserve.wire.control_protobuf`), where weights are (`hloserve.engine.residency`) and shares of
the device (`hloserve.engine.scheduling`). Loop thread; what changes the device runs on the dispatch
thread, between two dispatches.

Source: spec "Control service", "Live policy".
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

from hloserve.core.errors import ModelNotFound, NotPossibleNow
from hloserve.core.logging import log_event
from hloserve.core.model_control import Compaction, ControlStatus, Floor
from hloserve.core.tickets import Ticket
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import ResidencyControl, ResidencyMode, ResidencyStatus
from hloserve.models.registry import Registry
from hloserve.server.control_models import (
    Shares,
    devices_of,
    devices_to_set,
    model_statuses,
    set_floors,
)

__all__ = ["Commands", "ModelControl"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_MODES = {
    ResidencyMode.EVERYTHING: "self_managed",
    ResidencyMode.SELF_MANAGED: "self_managed",
    ResidencyMode.EXTERNAL: "externally_managed",
}
"""The names of the protocol, which has two: a worker without a budget manages itself."""


class Commands(Shares, Protocol):
    """The part of the scheduler that is asked here."""

    def command(self, run: Callable[[], T]) -> Ticket[T]:
        """Run on the dispatch thread, between dispatches."""
        ...

    def set_weight(self, model: DeviceModel, weight: float) -> None:
        """Change a model's share."""
        ...


class ModelControl:
    """Answers what the control service asks.

    Args:
        registry: the models.
        scheduler: their queues and shares, and the way to the dispatch thread.
        discipline: how the next model is chosen.
        exposed_models: models that the status lists although meta models call them; ``*`` for all.

    Attributes:
        residency: where weights are; None until the device is open.
    """

    def __init__(
        self,
        registry: Registry,
        scheduler: Commands,
        discipline: str,
        exposed_models: Collection[str] = (),
    ) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._discipline = discipline
        self._exposed_models = exposed_models
        self.residency: ResidencyControl | None = None

    def status(self) -> ControlStatus:
        """The device and every model that serves."""
        weights = ResidencyStatus() if self.residency is None else self.residency.status()
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
            models=model_statuses(
                self._registry.models(), weights.models, self._scheduler, self._exposed_models
            ),
        )

    async def set_residency(self, name: str, floor: Floor) -> Floor:
        """Say what is kept of a model's weights; returns what is kept, when it is done.

        Of a meta model it is said of the models that it calls; without a floor, those that others
        call as well are left alone. All of them change, or none.

        Raises:
            NotPossibleNow: the worker manages its weights by itself.
            ModelNotFound, ModelNotReady: the model is not there, or not yet.
            DeviceMemoryFull: there is no room on the device. Retryable.
            HloserveError: the weights cannot be read.
        """
        residency = self._managed_by_others(name)
        models = self._registry.models()
        devices = devices_to_set(self._registry.get(name), floor, models)
        await self._scheduler.command(lambda: set_floors(residency, devices, floor))
        log_event(log, "residency_set", model=name, floor=floor.value)
        return floor

    def set_policy(self, name: str, weight: float | None) -> None:
        """Set a model's share of the device; None leaves it.

        Args:
            name: served name.
            weight: as `is_weight` has it, beside the weights of the others.

        Raises:
            ModelNotFound: the model is not there, or is a meta model.
            ModelNotReady: not yet.
        """
        model = self._registry.get(name)
        if model.is_meta:
            raise ModelNotFound(
                name,
                reason="is a meta model, which has no share of the device; set the weights of the"
                f" models that it calls: {', '.join(model.manifest.calls) or 'it calls none'}",
            )
        if weight is not None:
            self._scheduler.set_weight(model.device, weight)
            log_event(log, "weight_set", model=name, weight=weight)

    async def compact(self, reload: Iterable[str]) -> Compaction:
        """Join the device's free memory; returns when it is done.

        Args:
            reload: models whose weights are loaded again, in this order; of a meta model, those
                that it calls. Those that do not serve, are pinned or do not fit any more are passed
                over.
        """
        residency = self.residency
        if residency is None or residency.status().mode is ResidencyMode.EVERYTHING:
            return Compaction(0, 0)
        models = devices_of(reload, self._registry.models())

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
                " are, set runtime.weight_cache_bytes, and runtime.residency_mode to 'external'"
            )
        if self.residency.status().mode is ResidencyMode.SELF_MANAGED:
            raise NotPossibleNow(
                "this worker decides by itself which weights are on the device; to do it from"
                " outside, set runtime.residency_mode to 'external', or pin models by"
                " scheduler.models.<model>.residency"
            )
        return self.residency
