"""A request on its way to the device.

What lives here: `QueuedRequest`, which is also the ticket its caller awaits, and how requests are
built and settled. What does not: the queue in which they stand
(`hloserve.engine.scheduling.model_queue`).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from typing_extensions import override

from hloserve.core.errors import BadRequest, HloserveError
from hloserve.core.logging import log_event
from hloserve.core.requests import DEFAULT_PRIORITY, NEVER_NS
from hloserve.core.tensors import Array
from hloserve.core.tickets import Ticket
from hloserve.engine.assembly import split_inputs
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.scheduling.batching import MOST_PARTS, smallest_fitting

__all__ = [
    "PRIORITY_STEP_NS",
    "Outcome",
    "QueuedRequest",
    "ShiftedRequest",
    "build_requests",
    "deliver",
    "lone_size",
]

log = logging.getLogger(__name__)

PRIORITY_STEP_NS = 2_000_000_000
"""What one step of priority is worth: it passes requests that have waited this much longer."""

Outcome: TypeAlias = list[Array] | HloserveError
"""What became of a request: its outputs in program order, or why there are none."""


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
        shift_ns: its place in the queue is that of a request that came so much later.

    Threading: made, awaited, settled and cancelled on the loop thread; the dispatch thread reads.
    """

    __slots__ = ("deadline_ns", "enqueued_ns", "inputs", "model", "rows", "variant", "withdraw")

    shift_ns = 0  # of the class, so that requests without priority need not store it

    def __init__(
        self,
        model: DeviceModel,
        inputs: list[Array],
        rows: int,
        variant: VariantKey = (),
        deadline_ns: int = NEVER_NS,
    ) -> None:
        self._state, self._outcome, self._waiter = 0, None, None  # as Ticket's, without a call
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


class ShiftedRequest(QueuedRequest):
    """A request of a priority other than the usual one; `shift_ns` is negative for a higher one."""

    __slots__ = ("shift_ns",)

    def __init__(self, shift_ns: int, *of_any_request: Any) -> None:
        super().__init__(*of_any_request)
        self.shift_ns = shift_ns


def build_requests(
    model: DeviceModel,
    inputs: list[Array],
    deadline_ns: int = NEVER_NS,
    priority: int = DEFAULT_PRIORITY,
) -> list[QueuedRequest]:
    """Make what one request submits: itself or, if no program holds it, its parts.

    Await every part, then `hloserve.engine.assembly.join_outputs` gives the whole again. A request
    of no rows has no parts.

    Args:
        model: whose program runs.
        inputs: prepared, in executable order; names, dtypes and ranks already checked.
        deadline_ns: monotonic instant; `NEVER_NS` for none.
        priority: smaller ones go first; see `hloserve.engine.scheduling.model_queue`.

    Raises:
        TensorMismatch: the inputs disagree about their rows.
        BadRequest: no program is compiled for these shapes, or for this many rows in a model that
            can be neither padded nor split; or there are too many rows even to split.
    """
    variant = model.variant_of(inputs)
    rows = model.rows_of(inputs)
    if not rows:
        return []
    make: Callable[..., QueuedRequest] = QueuedRequest
    if priority != DEFAULT_PRIORITY:
        make = partial(ShiftedRequest, (priority - DEFAULT_PRIORITY) * PRIORITY_STEP_NS)
    if not model.can_coalesce:
        model.check_rows(variant, rows)
    elif rows > (largest := model.largest_size(variant)):
        if rows > largest * MOST_PARTS:
            raise BadRequest(
                f"the request to model {model.name!r} carries {rows} rows; its largest program"
                f" takes {largest}, and a request may take {MOST_PARTS} dispatches: send at most"
                f" {largest * MOST_PARTS} rows at a time"
            )
        return [
            make(model, part, part_rows, variant, deadline_ns)
            for part_rows, part in split_inputs(model.inputs, inputs, rows, largest)
        ]
    return [make(model, inputs, rows, variant, deadline_ns)]


def lone_size(model: DeviceModel, request: QueuedRequest) -> int:
    """The size at which a request runs alone; 0 when the model has a program of any size."""
    sizes = model.sizes(request.variant)
    if not sizes:
        return request.rows  # no such program; running it says so, to this caller only
    return 0 if sizes[0] == 0 else smallest_fitting(sizes, request.rows)


def deliver(requests: Sequence[QueuedRequest], outcomes: Sequence[Outcome]) -> None:
    """Settle requests, each with its outcome; who has gone meanwhile is passed over.

    Settling goes on with the call that waits, so foreign code runs in here: what it raises is
    logged and does not keep the other callers waiting.

    Threading: loop thread.
    """
    for request, outcome in zip(requests, outcomes, strict=True):
        try:
            if isinstance(outcome, HloserveError):
                request.fail(outcome)
            else:
                request.resolve(outcome)
        except Exception as error:  # noqa: BLE001  # foreign code was resumed: logged
            log_event(
                log, "reply_failed", level=logging.ERROR, error=error, model=request.model.name
            )
