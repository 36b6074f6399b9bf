"""Which model's queue goes next.

What lives here: the `Discipline` seam, and `Fifo`. What does not: the other disciplines
(`hloserve.engine.scheduling.fair`, `hloserve.engine.scheduling.edf`) and how much of that queue
goes (`hloserve.engine.scheduling.batching`). Called by the scheduler under its lock, by whoever
takes a batch.
"""

from collections.abc import Mapping
from typing import Protocol

from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.model_queue import ModelQueue

__all__ = ["Discipline", "Fifo"]


class Discipline(Protocol):
    """Picks the next model.

    Attributes:
        is_charged: wants to be told who used the device for how long.
        sheds_hopeless: requests that would end after their deadline are answered and not run.
    """

    is_charged: bool = False
    sheds_hopeless: bool = False

    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        """The model to serve next; asking twice gives the same answer.

        Args:
            waiting: the queues that hold requests; not empty, none of them empty. Idle models are
                not in it, so that the cost does not grow with them.
            now_ns: the instant of the decision.
        """
        ...

    def joined(self, queue: ModelQueue) -> None:
        """A model has a queue from now on, or another weight."""
        return

    def left(self, queue: ModelQueue) -> None:
        """It has not any more."""
        return

    def charge(self, queue: ModelQueue, compute_ns: int, now_ns: int) -> None:
        """A model has used the device for so long, until `now_ns`.

        Less than nothing takes back a part of what was charged ahead.
        """
        return


class Fifo(Discipline):
    """The model whose front request is oldest; of two equally old, the smaller name."""

    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        if len(waiting) == 1:
            return next(iter(waiting))
        return min(waiting, key=lambda m: (waiting[m].requests[0].enqueued_ns, m.name))
