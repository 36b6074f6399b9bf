"""The batches that were taken and have not ended.

What lives here: which there are, and who waits for those of a model to end. What does not: when
they begin and end (`hloserve.engine.scheduling.scheduler`, whose lock guards this).
"""

from collections.abc import Callable
from math import inf

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.dispatch import Dispatch

__all__ = ["InFlight"]


class InFlight:
    """Batches in flight, in the order in which they were taken; seldom more than two.

    Attributes:
        dispatches: add one when it was taken.
    """

    __slots__ = ("_on_idle", "dispatches")

    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []
        self._on_idle: dict[DeviceModel, Callable[[], object]] = {}

    def end(self, dispatch: Dispatch) -> None:
        """Note that a batch has ended; if it was its model's last, tell who waited for that."""
        self.dispatches.remove(dispatch)
        if self._on_idle and dispatch.model in self._on_idle and not self.has(dispatch.model):
            self._on_idle.pop(dispatch.model)()

    def has(self, model: DeviceModel) -> bool:
        """True while a batch of the model is in flight."""
        return any(dispatch.model is model for dispatch in self.dispatches)

    def when_idle(self, model: DeviceModel, on_idle: Callable[[], object]) -> None:
        """Call `on_idle` when the last batch of the model ends; there is one in flight."""
        self._on_idle[model] = on_idle

    @property
    def requests(self) -> int:
        """How many requests they carry."""
        return sum(len(dispatch.requests) for dispatch in self.dispatches)

    def free_ns(self, now_ns: int) -> int:
        """When the device will have run them all, as far as one can tell."""
        if not self.dispatches:
            return now_ns
        costs_ns = sum(d.cost_ns for d in self.dispatches if d.cost_ns != inf)
        return max(now_ns, self.dispatches[0].started_ns + round(costs_ns))
