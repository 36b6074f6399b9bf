"""Whose weights are on the device while a batch runs.

What lives here: the `Residency` seam between dispatching and whatever places weights, and
`EverythingResident` for devices that hold all of them. What does not: which weights go to make room
for others, and where they come from.

Rules.
1. Weights that are leased stay where they are until every lease has been given back.
2. Whoever runs a dispatch calls `lease`, once per dispatch, and `release` when it has ended.
"""

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from hloserve.engine.backend import Buffer
from hloserve.engine.device_model import DeviceModel

__all__ = ["EverythingResident", "Residency"]


class Residency(Protocol):
    """Gives weights to dispatches."""

    def is_resident(self, model: DeviceModel) -> bool:
        """True when a lease would not have to load anything. Any thread."""
        ...

    def fits(self, model: DeviceModel) -> bool:
        """True when a lease would not fail for what is leased by others, so that it may be taken.

        Threading: as `lease`.
        """
        ...

    def lease(self, model: DeviceModel) -> Sequence[Buffer]:
        """The weights of a model, in argument order, on the device until `release`.

        Loads them first when they are not there, which may evict others that are not leased. Waits
        for weights that are there only to warm a model up.

        Raises:
            DeviceMemoryFull: they do not fit beside what other dispatches have leased (see `fits`),
                or the device is full in spite of its budget. Retryable.
            WeightsNotResident, WeightsUnreadable: they may not be loaded, or cannot be read.

        Threading: whoever runs the dispatch.
        """
        ...

    @property
    def is_held_up(self) -> bool:
        """True while a lease waits, and weights are there to warm a model up. Any thread."""
        ...

    def release(self, model: DeviceModel) -> None:
        """End one lease. Threading: as `lease`."""
        ...

    def prefetch(self, model: DeviceModel) -> None:
        """Say that a lease of the model is likely to come next; may begin to load it.

        Never evicts what is leased, never raises, returns at once. Threading: as `lease`.
        """
        ...

    def make_room(self) -> int:
        """Take off the device what may go: the device said that its memory is full.

        Returns:
            Bytes that were freed; 0 when nothing could go, so that trying again is no use.

        Threading: as `lease`, while nothing runs.
        """
        ...


class EverythingResident(Residency):
    """All weights are on the device from load to unload: a lease costs nothing."""

    @override
    def is_resident(self, model: DeviceModel) -> bool:
        return True

    @override
    def fits(self, model: DeviceModel) -> bool:
        return True

    @override
    def lease(self, model: DeviceModel) -> Sequence[Buffer]:
        return model.weights

    @property
    @override
    def is_held_up(self) -> bool:
        return False

    @override
    def release(self, model: DeviceModel) -> None:
        pass

    @override
    def prefetch(self, model: DeviceModel) -> None:
        pass

    @override
    def make_room(self) -> int:
        return 0
