"""A device to operate without one: shares, commands that run at once, and weights by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from hloserve.core.errors import DeviceMemoryFull, HloserveError
from hloserve.core.model_control import Floor
from hloserve.core.tickets import Ticket
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import (
    ModelResidency,
    ResidencyControl,
    ResidencyMode,
    ResidencyStatus,
)
from hloserve.server.control import Commands

T = TypeVar("T")


class FakeCommands(Commands):
    """Commands wait until the test lets them run; shares are kept by name."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self.waiting: list[Callable[[], None]] = []
        self.depths: dict[str, int] = {}

    @override
    def command(self, run: Callable[[], T]) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()

        def settle() -> None:
            try:
                ticket.resolve(run())
            except HloserveError as error:
                ticket.fail(error)

        self.waiting.append(settle)
        return ticket

    def run_commands(self) -> None:
        """Be the dispatch thread between two dispatches."""
        while self.waiting:
            self.waiting.pop(0)()

    @override
    def depth(self, model: DeviceModel) -> int:
        return self.depths.get(model.name, 0)

    @override
    def weight(self, model: DeviceModel) -> float:
        return self.weights.get(model.name, 1.0)

    @override
    def set_weight(self, model: DeviceModel, weight: float) -> None:
        self.weights[model.name] = weight


class FakeResidency(ResidencyControl):
    """Weights of 1,000 bytes for each model, where floors say.

    Attributes:
        full_for: the model that there is no room for.
        calls: changes, in order.
    """

    def __init__(self, mode: ResidencyMode = ResidencyMode.EXTERNAL) -> None:
        self.full_for = ""
        self.calls: list[object] = []
        self._status = ResidencyStatus(
            mode=mode,
            max_bytes=None if mode is ResidencyMode.EVERYTHING else 5_000,
            resident_bytes=3_000,
            pinned_bytes=1_000,
            scratch_bytes=100,
            loads=7,
            evictions=2,
            hits=40,
            load_ns=1_500_000_000,
            loaded_bytes=7_000,
            compactions=0,
            models={},
        )

    @override
    def status(self) -> ResidencyStatus:
        return self._status

    @override
    def set_floor(self, model: DeviceModel, floor: Floor) -> None:
        if model.name == self.full_for:
            raise DeviceMemoryFull(1_000, 10)
        self.calls.append((model.name, floor))
        there = ModelResidency(floor, 1_000, floor is Floor.DEVICE, floor is Floor.SYSTEM)
        self._status = replace(self._status, models={**self._status.models, model: there})

    @override
    def compact(self, reload: Sequence[DeviceModel]) -> int:
        self.calls.append([model.name for model in reload])
        self._status = replace(self._status, resident_bytes=1_000 * len(reload), compactions=1)
        return len(reload)
