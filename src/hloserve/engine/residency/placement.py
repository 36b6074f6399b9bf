"""Where a model's weights go when it is loaded, and that they are given back when it is not.

What lives here: the seam between loading and residency, and `AllOnDevice`, which has all weights on
the device from load to unload. What does not: making room for some by evicting others
(`hloserve.engine.residency.weight_cache`), and leases of dispatches
(`hloserve.engine.residency.leasing`).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import NotPossibleNow
from hloserve.engine.backend import Backend, Buffer
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import (
    Floor,
    ModelResidency,
    ResidencyControl,
    ResidencyMode,
    ResidencyStatus,
)
from hloserve.engine.residency.host_weights import (
    HostCopy,
    HostStore,
    PrivateStore,
    WeightsSource,
)
from hloserve.engine.residency.leasing import EverythingResident, Residency

__all__ = ["AllOnDevice", "DeviceWeights", "WeightsPlacement"]


class WeightsPlacement(Protocol):
    """Takes in the weights of models that are loaded."""

    @property
    def measures_scratch(self) -> bool:
        """What programs take beside weights is wanted, so all of them are to run. Any thread."""
        ...

    def admit(self, model: DeviceModel, weights: WeightsFile, floor: Floor | None = None) -> None:
        """Take charge of a model's weights, and have them where its floor wants them.

        Args:
            model: not dispatched yet.
            weights: its open file, from now on owned by the placement, also after an error.
            floor: the least to keep of them; None for what suits the device.

        Raises:
            WeightsProblem: they cannot be read.
            DeviceMemoryFull, BackendFailed: they cannot be on the device.

        Threading: load threads, several at once.
        """
        ...

    def borrow(self, model: DeviceModel) -> AbstractContextManager[Sequence[Buffer]]:
        """The weights on the device for the length of the block, for runs before it serves.

        What these runs take beside the weights is measured, where the device tells.

        Raises:
            WeightsProblem, DeviceMemoryFull, BackendFailed: as `admit`.

        Threading: load threads; a thread borrows one at a time. Leases of dispatches come first.
        """
        ...

    def renamed(self, model: DeviceModel, floor: Floor | None) -> None:
        """Let what operators set for a model's new name hold.

        Args:
            model: under its new name.
            floor: as in `admit`.

        Raises:
            WeightsProblem, DeviceMemoryFull, BackendFailed: it cannot be; all is as it was.

        Threading: dispatch thread, between dispatches.
        """
        ...

    def is_servable(self, model: DeviceModel) -> bool:
        """False while requests for a model are refused for where its weights are. Any thread."""
        ...

    def discard(self, model: DeviceModel) -> None:
        """Give back whatever there is of a model's weights, and the file. Idempotent.

        Threading: any thread, once nothing of the model is leased or will be.
        """
        ...


class DeviceWeights(Residency, WeightsPlacement, ResidencyControl, Protocol):
    """Everything that has to do with the weights on one device."""

    def close(self) -> None:
        """End threads and give copies back that other processes may share: the process ends.

        What is on the device goes with the process. Nothing is dispatched any more.
        """
        ...


@dataclass(slots=True)
class _Placed:
    nbytes: int
    copy: HostCopy | None


class AllOnDevice(EverythingResident, DeviceWeights):
    """All weights on the device from load to unload; a load that does not fit fails.

    Args:
        backend: the device.
        store: where copies in the memory of the host are kept; None for memory of this process.
    """

    def __init__(self, backend: Backend, store: HostStore | None = None) -> None:
        self._backend = backend
        self._store = store or PrivateStore()
        self._placed: dict[DeviceModel, _Placed] = {}
        self._lock = threading.Lock()

    @property
    @override
    def measures_scratch(self) -> bool:
        return False

    @override
    def admit(self, model: DeviceModel, weights: WeightsFile, floor: Floor | None = None) -> None:
        with weights:
            source = WeightsSource(model.name, weights, self._store)
            copy = source.read()
        try:
            model.weights = self._backend.to_device(copy.arrays)
        except BaseException:
            copy.release(is_unused=True)
            raise
        kept: HostCopy | None = copy
        if not self._backend.is_host:
            copy.release(is_unused=False)
            kept = None
        with self._lock:
            self._placed[model] = _Placed(source.nbytes, kept)

    @override
    @contextmanager
    def borrow(self, model: DeviceModel) -> Iterator[Sequence[Buffer]]:
        yield model.weights

    @override
    def renamed(self, model: DeviceModel, floor: Floor | None) -> None:
        pass

    @override
    def is_servable(self, model: DeviceModel) -> bool:
        return True

    @override
    def discard(self, model: DeviceModel) -> None:
        with self._lock:
            placed = self._placed.pop(model, None)
        weights, model.weights = model.weights, []
        self._backend.free(weights)
        if placed is not None and placed.copy is not None:
            placed.copy.release(is_unused=True)

    @override
    def status(self) -> ResidencyStatus:
        with self._lock:
            placed = dict(self._placed)
        return ResidencyStatus(
            mode=ResidencyMode.EVERYTHING,
            resident_bytes=sum(each.nbytes for each in placed.values()),
            models={
                model: ModelResidency(Floor.DEVICE, each.nbytes, True, each.copy is not None)
                for model, each in placed.items()
            },
        )

    @override
    def set_floor(self, model: DeviceModel, floor: Floor) -> None:
        raise NotPossibleNow(
            "all weights are on the device for as long as their models serve; for others, set"
            " runtime.weight_cache_bytes"
        )

    @override
    def compact(self, reload: Sequence[DeviceModel]) -> int:
        return 0

    @override
    def close(self) -> None:
        with self._lock:
            placed = list(self._placed.values())
        for each in placed:
            copy, each.copy = each.copy, None
            if copy is not None:
                copy.release(is_unused=False)
        self._store.close()
