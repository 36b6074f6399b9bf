"""A request on its way to the device, and the queue it stands in.

What lives here: `QueuedRequest`, which is also the ticket its caller awaits, and `ModelQueue`.
What does not: the order of models (`hloserve.engine.discipline`) and the lock that guards the
queues (`hloserve.engine.scheduler`).
"""

from collections import deque
from collections.abc import Callable

from typing_extensions import override

from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Array
from hloserve.core.tickets import Ticket
from hloserve.engine.device_model import DeviceModel, VariantKey

__all__ = ["ModelQueue", "QueuedRequest"]


class QueuedRequest(Ticket[list[Array]]):
    """Prepared inputs of one request; resolves to its executable outputs, in program order.

    The outputs may be views of the batch's memory: encode or copy them, then let go.

    Attributes:
        model: whose program runs.
        inputs: in executable order, dtypes and shapes checked, rows agreeing.
        rows: extent of their batch axes; 1 without one.
        variant: which compiled shape they need.
        deadline_ns: monotonic instant from which nobody wants the answer any more.
        enqueued_ns: instant of submission; set by the scheduler.

    Threading: made, awaited, settled and cancelled on the loop thread; the dispatch thread reads.
    """

    __slots__ = ("deadline_ns", "enqueued_ns", "inputs", "model", "rows", "variant", "withdraw")

    def __init__(
        self,
        model: DeviceModel,
        inputs: list[Array],
        rows: int,
        variant: VariantKey = (),
        deadline_ns: int = NEVER_NS,
    ) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.rows = rows
        self.variant = variant
        self.deadline_ns = deadline_ns
        self.enqueued_ns = 0
        self.withdraw: Callable[[QueuedRequest], None] | None = None

    @override
    def cancel(self) -> None:
        """Say that nobody waits any more, and leave the queue at once."""
        if self.is_settled:
            return
        super().cancel()
        if self.withdraw is not None:
            self.withdraw(self)


class ModelQueue:
    """Requests that wait for one model, oldest first. Guarded by the scheduler's lock."""

    __slots__ = ("model", "requests")

    def __init__(self, model: DeviceModel) -> None:
        self.model = model
        self.requests: deque[QueuedRequest] = deque()
