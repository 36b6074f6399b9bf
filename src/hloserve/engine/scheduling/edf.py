"""The earliest-deadline-first discipline.

What lives here: the choice. What does not: leaving out requests that would end after their deadline
(`hloserve.engine.scheduling.dispatch`). Guarded by the scheduler's lock.

Source: spec "Selection", "edf".
"""

from collections.abc import Mapping

from typing_extensions import override

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.discipline import Discipline
from hloserve.engine.scheduling.model_queue import ModelQueue

__all__ = ["PATIENCE_NS", "Edf"]

PATIENCE_NS = 5_000_000_000
"""A model that was not served for so long gets one batch, whatever the deadlines of the others."""


class Edf(Discipline):
    """The model with the soonest deadline anywhere in its queue, no deadline being the last.

    Of two equally urgent models the one whose front request is older, then the smaller name. A
    model that waits and was not served for `PATIENCE_NS` goes before: without that, requests
    without a deadline would wait for as long as there are others with one.
    """

    sheds_hopeless = True

    @override
    def pick(self, waiting: Mapping[DeviceModel, ModelQueue], now_ns: int) -> DeviceModel:
        if len(waiting) == 1:
            return next(iter(waiting))
        long_ago_ns = now_ns - PATIENCE_NS

        def order(queue: ModelQueue) -> tuple[bool, int, int, str]:
            arrived_ns = queue.requests[0].enqueued_ns
            idle_since_ns = max(arrived_ns, queue.served_ns)
            if idle_since_ns <= long_ago_ns:
                return False, idle_since_ns, arrived_ns, queue.model.name
            return True, queue.soonest_deadline_ns(), arrived_ns, queue.model.name

        return min(waiting.values(), key=order).model
