"""What a model's dispatches add up to.

What lives here: the counters that metrics and disciplines read. What does not: exposition
(`hloserve.server`). Who runs the dispatch writes the counters (the dispatch thread or, while that
one sleeps, the loop thread) and the loop thread the waits; any thread reads, and a reader takes
copies made in one step under the GIL.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil

__all__ = ["COST_WEIGHT", "WAITS_KEPT", "BatchFigures", "ModelStatistics", "percentile"]

WAITS_KEPT = 1024
"""Queue waits remembered per model: enough for a p99, small enough for 1,000 models."""


COST_WEIGHT = 0.002
"""Share of a slower execution in the cost of a program; a quicker one is the new cost."""


def percentile(samples: Sequence[int], fraction: float) -> int:
    """The smallest sample that at least `fraction` of the samples do not exceed; 0 without any.

    Example:
        >>> percentile([30, 10, 20, 40], 0.5)
        20
    """
    if not samples:
        return 0
    place = min(max(ceil(fraction * len(samples)), 1), len(samples))
    return sorted(samples)[place - 1]


class BatchFigures:
    """What the dispatches of one compiled size add up to.

    Attributes:
        dispatches: executions that gave results.
        input_ns: laying rows together and transfer to the device.
        infer_ns: execution.
        output_ns: transfer from the device.
    """

    __slots__ = ("dispatches", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.dispatches = self.input_ns = self.infer_ns = self.output_ns = 0

    def copy(self) -> "BatchFigures":
        """The same figures, to count on from."""
        copied = BatchFigures()
        copied.dispatches, copied.input_ns = self.dispatches, self.input_ns
        copied.infer_ns, copied.output_ns = self.infer_ns, self.output_ns
        return copied


class ModelStatistics:
    """Counters of one model since its name was first loaded.

    Attributes:
        dispatch_count: executions that gave results.
        requests_served: requests answered with outputs. A split request counts once per part.
        rows_served: rows those requests carried.
        padded_rows: rows of the compiled programs that ran; less `rows_served`, it is zeros.
        compute_ns: time of transfer in, execution and transfer out. Assembly is not in it.
        batches: dispatches by compiled size; 0 is a program without a batch size.
        shared_input_ns: input time of batches, once more for every request of them but one: with
            it, the times of `batches` add up to what the requests have seen.
        shared_infer_ns: the same for the execution.
        shared_output_ns: the same for the outputs.
        queued_count: requests that left the queue for the device.
        queued_ns: time that they stood in it.
        shed_count: requests whose deadline passed in the queue.
        failed_count: requests answered with an error of the device.
        costs_ns: what a program takes by variant and compiled size, as `learn_cost` has it.
    """

    __slots__ = (
        "_waits_ns",
        "batches",
        "compute_ns",
        "costs_ns",
        "dispatch_count",
        "failed_count",
        "padded_rows",
        "queued_count",
        "queued_ns",
        "requests_served",
        "rows_served",
        "shared_infer_ns",
        "shared_input_ns",
        "shared_output_ns",
        "shed_count",
    )

    def __init__(self) -> None:
        self.dispatch_count = 0
        self.requests_served = 0
        self.rows_served = 0
        self.padded_rows = 0
        self.compute_ns = 0
        self.batches: dict[int, BatchFigures] = {}
        self.shared_input_ns = self.shared_infer_ns = self.shared_output_ns = 0
        self.queued_count = 0
        self.queued_ns = 0
        self.shed_count = 0
        self.failed_count = 0
        self.costs_ns: dict[tuple[int, ...], dict[int, float]] = {}
        self._waits_ns: deque[int] = deque(maxlen=WAITS_KEPT)

    def continue_from(self, old: "ModelStatistics") -> None:
        """Count on from an older generation of the model, so that counters never fall.

        What its programs cost, and how long its requests waited, is not taken over. Threading: loop
        thread, before the model serves.
        """
        self.dispatch_count = old.dispatch_count
        self.requests_served = old.requests_served
        self.rows_served = old.rows_served
        self.padded_rows = old.padded_rows
        self.compute_ns = old.compute_ns
        self.batches = {size: figures.copy() for size, figures in old.batches.copy().items()}
        self.shared_input_ns = old.shared_input_ns
        self.shared_infer_ns = old.shared_infer_ns
        self.shared_output_ns = old.shared_output_ns
        self.queued_count = old.queued_count
        self.queued_ns = old.queued_ns
        self.shed_count = old.shed_count
        self.failed_count = old.failed_count

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Dispatches by compiled size. Any thread."""
        return {size: figures.dispatches for size, figures in self.batches.copy().items()}

    def record_waits(self, waits_ns: Sequence[int]) -> None:
        """Note how long requests stood in the queue, until their dispatch started.

        Threading: loop thread.
        """
        self.queued_count += len(waits_ns)
        self.queued_ns += sum(waits_ns)
        self._waits_ns.extend(waits_ns)

    def learn_cost(
        self, variant: tuple[int, ...], size: int, compute_ns: int, *, is_exact: bool = True
    ) -> None:
        """Note what an execution took.

        What is wanted is the time of the program. What is seen may be longer, because the thread
        waited for the interpreter or for a core, and is never shorter: so a quicker run counts at
        once, and slower ones move the cost a little each.

        Args:
            variant: of the program.
            size: of the program.
            compute_ns: what was seen.
            is_exact: false when the execution began at the end of another one, which may have been
                seen late, so that this one looks too quick: then it moves the cost a little, too.

        Threading: the thread that owns the device; the loader's while nothing is dispatched.
        """
        costs = self.costs_ns.setdefault(variant, {})
        old = costs.get(size)
        if old is None or (is_exact and compute_ns < old):
            costs[size] = compute_ns
        else:
            costs[size] = old + COST_WEIGHT * min(compute_ns - old, old)

    def record_dispatch(
        self,
        size: int,
        requests: int,
        rows: int,
        compute_ns: int,
        input_ns: int = 0,
        infer_ns: int = 0,
        output_ns: int = 0,
    ) -> None:
        """Note an execution that gave results. Threading: the one that ran it."""
        self.dispatch_count += 1
        self.requests_served += requests
        self.rows_served += rows
        self.padded_rows += size or rows
        self.compute_ns += compute_ns
        figures = self.batches.get(size)
        if figures is None:
            figures = self.batches[size] = BatchFigures()
        figures.dispatches += 1
        figures.input_ns += input_ns
        figures.infer_ns += infer_ns
        figures.output_ns += output_ns
        if requests > 1:
            others = requests - 1
            self.shared_input_ns += others * input_ns
            self.shared_infer_ns += others * infer_ns
            self.shared_output_ns += others * output_ns

    def waits_ns(self) -> list[int]:
        """The latest queue waits, oldest first. Any thread."""
        return list(self._waits_ns)
