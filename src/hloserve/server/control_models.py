"""Models as the control service shows and changes them; a meta model stands for those it calls.

What lives here: which models a name stands for, and what is said of one. What does not: the calls
of the service (`hloserve.server.control`). Loop thread, but for `set_floors`.

Rules.
1. A model that a meta model calls is a part of that one: it is not listed, unless it is exposed,
   but can be named.
2. The weights of a meta model are those of the models that it calls and that serve. They are where
   all of these are, and their floor is the lowest. Without any they are nowhere.

Source: spec "Meta models", "Control service".
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from hloserve.core.errors import HloserveError
from hloserve.core.model_control import Floor, ModelControlStatus
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import ModelResidency, ResidencyControl
from hloserve.models.meta_models import hidden_names
from hloserve.models.model import Model

__all__ = ["Shares", "devices_of", "devices_to_set", "model_statuses", "set_floors"]

_RISING = (Floor.UNPINNED, Floor.SYSTEM, Floor.DEVICE)


class Shares(Protocol):
    """The part of the scheduler that says what models have."""

    def depth(self, model: DeviceModel) -> int:
        """Requests that wait for a model."""
        ...

    def weight(self, model: DeviceModel) -> float:
        """A model's share."""
        ...


def model_statuses(
    models: Sequence[Model],
    weights: Mapping[DeviceModel, ModelResidency],
    shares: Shares,
    exposed_models: Collection[str],
) -> tuple[ModelControlStatus, ...]:
    """What there is to say of every model that is listed.

    Args:
        models: all that serve, by name.
        weights: where they are.
        shares: queues and shares.
        exposed_models: names that are listed although meta models call them; ``*`` for all.
    """
    hidden = hidden_names((model for model in models if model.is_meta), exposed_models)
    by_name = {model.name: model for model in models}
    return tuple(
        _status(model, _weights(model, by_name, weights), shares)
        for model in models
        if model.name not in hidden
    )


def devices_of(names: Iterable[str], models: Sequence[Model]) -> list[DeviceModel]:
    """The models that names stand for, in order, each once; names of nobody are passed over."""
    by_name = {model.name: model for model in models}
    found: dict[DeviceModel, None] = {}
    for name in names:
        if name in by_name:
            found.update((part.device, None) for part in _parts(by_name[name], by_name))
    return list(found)


def devices_to_set(model: Model, floor: Floor, models: Sequence[Model]) -> list[DeviceModel]:
    """The models whose floors a call about one of them changes."""
    by_name = {each.name: each for each in models}
    parts = _parts(model, by_name)
    if model.is_meta and floor is Floor.UNPINNED:
        metas = (other for other in models if other.is_meta and other.device is not model.device)
        needed = {name for other in metas for name in other.manifest.calls}
        parts = [part for part in parts if part.name not in needed]
    return [part.device for part in parts]


def set_floors(residency: ResidencyControl, models: Sequence[DeviceModel], floor: Floor) -> None:
    """Set the floor of all of them, or of none.

    Raises:
        HloserveError: as `ResidencyControl.set_floor`; what was set before it is set back.

    Threading: dispatch thread, between dispatches.
    """
    before = residency.status().models
    for place, model in enumerate(models):
        try:
            residency.set_floor(model, floor)
        except HloserveError:
            for changed in models[:place]:
                with suppress(HloserveError):
                    residency.set_floor(changed, before[changed].floor)
            raise


def _parts(model: Model, by_name: Mapping[str, Model]) -> list[Model]:
    if not model.is_meta:
        return [model]
    return [by_name[name] for name in model.manifest.calls if name in by_name]


def _weights(
    model: Model, by_name: Mapping[str, Model], weights: Mapping[DeviceModel, ModelResidency]
) -> ModelResidency:
    parts = [_of_one(part, weights) for part in _parts(model, by_name)]
    if not model.is_meta:
        return parts[0]
    return ModelResidency(
        floor=min((part.floor for part in parts), key=_RISING.index, default=Floor.UNPINNED),
        weight_bytes=sum(part.weight_bytes for part in parts),
        is_on_device=bool(parts) and all(part.is_on_device for part in parts),
        is_on_host=bool(parts) and all(part.is_on_host for part in parts),
    )


def _of_one(model: Model, weights: Mapping[DeviceModel, ModelResidency]) -> ModelResidency:
    """Where a model's weights are; those that nobody moves are on the device."""
    return weights.get(model.device) or ModelResidency(
        Floor.UNPINNED, model.weight_bytes, is_on_device=True, is_on_host=False
    )


def _status(model: Model, weights: ModelResidency, shares: Shares) -> ModelControlStatus:
    device = model.device
    counters = device.statistics
    inputs = () if model.is_meta else model.inputs  # it has no batches
    batched = ((s.name, s.batch_axis + 1) for s in inputs if s.batch_axis is not None)
    batch_input_name, batch_axis = next(batched, ("", 0))
    return ModelControlStatus(
        name=model.name,
        floor=weights.floor,
        is_on_device=weights.is_on_device,
        is_on_host=weights.is_on_host,
        weight_bytes=weights.weight_bytes,
        weight=shares.weight(device),
        queue_depth=shares.depth(device),
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
