"""Which model's queue goes next.

What lives here: the `Discipline` seam and its implementations, pure decisions over queues. What
does not: how much of that queue goes (`hloserve.engine.scheduling.batching`). Called by the
scheduler on the dispatch thread, under its lock.
"""

from collections.abc import Mapping
from typing import Protocol

from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.queued_request import ModelQueue

__all__ = ["Discipline", "Fifo"]


class Discipline(Protocol):
    """Picks the next model."""

    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        """The model to serve next.

        Args:
            waiting: the queues that hold requests; not empty, none of them empty. Idle models are
                not in it, so that the cost does not grow with them.
            now_ns: the instant of the decision.
        """
        ...


class Fifo(Discipline):
    """The model whose front request is oldest; of two equally old, the smaller name."""

    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        if len(waiting) == 1:
            return next(iter(waiting))
        return min(waiting, key=lambda m: (waiting[m].requests[0].enqueued_ns, m.name))
