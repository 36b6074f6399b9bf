"""What an operator asks of a model's weights, and what one may see and change of them.

What lives here: the seam to whoever shows or changes residency while the worker
serves. What does not: who fulfils it (`hloserve.engine.residency.weight_cache`), and the service
that carries it over the wire (`hloserve.server`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hloserve.core.model_control import Floor
from hloserve.engine.device_model import DeviceModel

__all__ = ["Floor", "ModelResidency", "ResidencyControl", "ResidencyMode", "ResidencyStatus"]


class ResidencyMode(Enum):
    """Who decides which weights are on the device; values are those of the settings."""

    EVERYTHING = "everything"
    """Nobody: all weights are there, and floors mean nothing."""

    SELF_MANAGED = "self_managed"
    """The worker: what is asked for is loaded, and evicts what is not."""

    EXTERNAL = "external"
    """A controller, by floors: a model that is not on the device is not loaded for a request."""


@dataclass(frozen=True, slots=True)
class ModelResidency:
    """Where the weights of one model are.

    Attributes:
        floor: the least that is kept.
        weight_bytes: what the weights take on the device.
        is_on_device: a dispatch would not have to load them.
        is_on_host: a copy in the memory of the host is kept.
    """

    floor: Floor
    weight_bytes: int
    is_on_device: bool
    is_on_host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyStatus:
    """The weights of one device; without arguments, what there is to say before it is open.

    Attributes:
        mode: who decides.
        max_bytes: most bytes of weights that are on the device without being pinned; None for no
            budget.
        resident_bytes: what these take now.
        pool_bytes: most bytes of all weights, the pinned ones included; None likewise.
        pinned_bytes: weights of models whose floor is the device.
        scratch_bytes: what the programs of one model take beside weights, at most; 0 when the
            device does not say.
        loads: weights that were brought to the device.
        evictions: weights that were taken off it to make room.
        hits: leases of weights that were there.
        load_ns: time that dispatches have waited for weights.
        loaded_bytes: what the loads brought.
        compactions: times that all weights were taken off to join free memory.
        models: by model; those that have weights or floors here.
    """

    mode: ResidencyMode = ResidencyMode.EVERYTHING
    max_bytes: int | None = None
    resident_bytes: int = 0
    pool_bytes: int | None = None
    pinned_bytes: int = 0
    scratch_bytes: int = 0
    loads: int = 0
    evictions: int = 0
    hits: int = 0
    load_ns: int = 0
    loaded_bytes: int = 0
    compactions: int = 0
    models: Mapping[DeviceModel, ModelResidency] = field(default_factory=dict)


class ResidencyControl(Protocol):
    """Shows and changes where weights are."""

    def status(self) -> ResidencyStatus:
        """What is where. Any thread."""
        ...

    def set_floor(self, model: DeviceModel, floor: Floor) -> None:
        """Change what is kept of a model's weights, and load or give them back accordingly.

        Raises:
            NotPossibleNow: no budget is set, so that floors mean nothing.
            ModelNotFound: the model is not, or no longer, here.
            DeviceMemoryFull: they cannot be on the device beside what is leased and pinned.
                Retryable.
            HloserveError: they cannot be read; the message says why. Nothing has changed.

        Threading: the dispatch thread, between dispatches: `Scheduler.command`.
        """
        ...

    def compact(self, reload: Sequence[DeviceModel]) -> int:
        """Take all weights that are not pinned off the device, so that free memory is in one piece.

        Args:
            reload: models to load again afterwards, in this order; those that are pinned, not here
                or do not fit any more are skipped. Where a controller decides, none is loaded.

        Returns:
            How many were loaded again; 0 when no budget is set, and then nothing happens.

        Threading: as `set_floor`.
        """
        ...
