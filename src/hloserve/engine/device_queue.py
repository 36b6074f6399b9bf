"""Batches on the device, from staging to outputs.

What lives here: `DeviceQueue`, which gives batches to the device and gets their outputs, and times
them. What does not: which batch is next (`hloserve.engine.scheduling.scheduler`), failures and
replies (`hloserve.engine.dispatcher`).

Rules.
1. The device executes batches in the order of `begin`, and `end` is called in that order.
2. The staging memory of a batch is not touched until it has ended: each has an area of its own,
   and areas are used again.
3. Computing times do not overlap: that of a batch begins when it was assembled or, if that is
   later, when the batch before it had ended. So they add up to no more than the time that passed.

Threading: the one that owns the device: the dispatch thread or, while that one sleeps, the loop's.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from hloserve.core.clock import Clock
from hloserve.core.errors import BadRequest, DeviceMemoryFull, HloserveError
from hloserve.core.tensors import Array
from hloserve.engine.assembly import StagingArea, assemble, check_outputs
from hloserve.engine.backend import Backend, Buffer, Executable
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.residency.leasing import Residency
from hloserve.engine.scheduling.queued_request import QueuedRequest

__all__ = ["DeviceQueue", "RunningBatch"]


class RunningBatch:
    """A batch that was given to the device and has not ended.

    Attributes:
        model: whose program runs.
        requests: who is answered.
        rows: they carry together.
        size: of the program; 0 for one without a batch size.
        staging: what its inputs lie in.
        buffers: those of the inputs, and of the results once it was given to the device.
        results: the outputs to be.
        is_alone: nothing was in flight when it began, so it is known when its execution began.
        begun_ns: its weights are leased, and assembly begins.
        assembled_ns: its rows are laid together.
        transferred_ns: its inputs are on the device, or on the way.
        executed_ns: its results are there; on a device that runs ahead: its execution is asked for.
    """

    __slots__ = (
        "assembled_ns",
        "begun_ns",
        "buffers",
        "executed_ns",
        "is_alone",
        "model",
        "requests",
        "results",
        "rows",
        "size",
        "staging",
        "transferred_ns",
    )

    def __init__(
        self,
        model: DeviceModel,
        requests: Sequence[QueuedRequest],
        rows: int,
        size: int,
        staging: StagingArea,
        *,
        is_alone: bool,
    ) -> None:
        self.model = model
        self.requests = requests
        self.rows = rows
        self.size = size
        self.staging = staging
        self.is_alone = is_alone
        self.buffers: list[Buffer] = []
        self.results: Sequence[Buffer] = ()
        self.begun_ns = self.assembled_ns = self.transferred_ns = self.executed_ns = 0


class DeviceQueue:
    """Gives batches to the device, in order.

    Args:
        backend: the device.
        clock: times.
        residency: gives the weights.
        before_execution: called when everything of a batch is on the device, or on its way there.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        residency: Residency,
        before_execution: Callable[[], None] | None = None,
    ) -> None:
        self._backend = backend
        self._runs_ahead = backend.runs_ahead
        self._now_ns = clock.now_ns
        self._residency = residency
        self._before_execution = before_execution
        self._unused_areas: list[StagingArea] = []
        self._in_flight = 0
        self._begun_ns = 0  # the latest batch of `run`
        self._ended_ns = 0  # the latest batch

    def begin(
        self, model: DeviceModel, requests: Sequence[QueuedRequest], rows: int, size: int
    ) -> RunningBatch:
        """Lay a batch together and give it to the device, behind those that run.

        Args:
            model: whose program runs.
            requests: not empty, all of one variant.
            rows: rows that they carry together.
            size: of the program; 0 for one without a batch size.

        Raises:
            BadRequest: there is no such program.
            Exception: whatever went wrong. Nothing is left behind.
        """
        executable = _executable(model, requests[0].variant, size)
        staging = self._unused_areas.pop() if self._unused_areas else self._make_area()
        batch = RunningBatch(model, requests, rows, size, staging, is_alone=not self._in_flight)
        try:
            weights = self._residency.lease(model)
        except BaseException:
            self._unused_areas.append(staging)
            raise
        self._in_flight += 1
        try:
            self._give(batch, executable, weights)
        except BaseException:
            self._clear(batch)
            raise
        return batch

    def _give(self, batch: RunningBatch, executable: Executable, weights: Sequence[Buffer]) -> None:
        backend, now_ns, model = self._backend, self._now_ns, batch.model
        padded = batch.size if model.can_coalesce else 0
        rows = [request.inputs for request in batch.requests]
        batch.begun_ns = now_ns()
        inputs = assemble(model.inputs, rows, batch.rows, padded, batch.staging)
        batch.assembled_ns = now_ns()
        batch.buffers = backend.to_device(inputs)
        batch.transferred_ns = now_ns()
        if self._before_execution is not None:
            self._before_execution()
        results = backend.execute(executable, [*batch.buffers, *weights])
        batch.executed_ns = now_ns()
        batch.results = results
        batch.buffers += results
        if self._runs_ahead:
            backend.begin_to_host(results)

    def end(self, batch: RunningBatch) -> list[Array]:
        """Wait for the oldest batch, and give its outputs, checked and not yet cut.

        Raises:
            Exception: whatever went wrong. Nothing is left behind.
        """
        before_ns = self._ended_ns
        try:
            outputs = self._backend.to_host(batch.results)
        finally:
            self._ended_ns = self._now_ns()
            self._clear(batch)
        model = batch.model
        rows = (
            ((batch.size if model.can_coalesce else 0) or batch.rows)
            if (model.has_batch_axis)
            else None
        )
        check_outputs(model.name, model.outputs, outputs, rows)
        self._record(batch, before_ns)
        return outputs

    def _record(self, batch: RunningBatch, before_ns: int) -> None:
        """Note what a batch took; the one before it had ended at `before_ns`."""
        end_ns = self._ended_ns
        # Of a device that runs ahead, what is seen is the end of the results, outputs included.
        executed_ns = end_ns if self._runs_ahead else batch.executed_ns
        compute_ns = end_ns - max(batch.assembled_ns, before_ns)
        statistics, variant = batch.model.statistics, batch.requests[0].variant
        statistics.learn_cost(variant, batch.size, compute_ns, is_exact=batch.is_alone)
        statistics.record_dispatch(
            batch.size,
            len(batch.requests),
            batch.rows,
            compute_ns,
            batch.transferred_ns - batch.begun_ns,
            executed_ns - max(batch.transferred_ns, before_ns),
            end_ns - executed_ns,
        )

    def run(
        self, model: DeviceModel, requests: Sequence[QueuedRequest], rows: int, size: int
    ) -> list[Array]:
        """Run a batch from its beginning to its end, while nothing else is in flight.

        The same as `begin` and `end`, without what several in flight need: it costs less.

        Raises:
            Exception: whatever went wrong. Nothing is left behind.
        """
        backend, now_ns = self._backend, self._now_ns
        executable = _executable(model, requests[0].variant, size)
        padded = size if model.can_coalesce else 0
        if not self._unused_areas:
            self._unused_areas.append(self._make_area())
        weights = self._residency.lease(model)
        buffers: list[Buffer] = []
        try:
            begun_ns = self._begun_ns = now_ns()
            inputs = [request.inputs for request in requests]
            batch = assemble(model.inputs, inputs, rows, padded, self._unused_areas[-1])
            assembled_ns = now_ns()
            buffers += backend.to_device(batch)
            transferred_ns = now_ns()
            if self._before_execution is not None:
                self._before_execution()
            results = backend.execute(executable, [*buffers, *weights])
            executed_ns = now_ns()
            buffers += results
            if self._runs_ahead:
                backend.begin_to_host(results)
            outputs = backend.to_host(results)
            end_ns = self._ended_ns = now_ns()
        finally:
            backend.free(buffers)
            self._residency.release(model)
        result_rows = (padded or rows) if model.has_batch_axis else None
        check_outputs(model.name, model.outputs, outputs, result_rows)
        if self._runs_ahead:
            executed_ns = end_ns
        compute_ns = end_ns - assembled_ns
        statistics = model.statistics
        statistics.learn_cost(requests[0].variant, size, compute_ns)
        statistics.record_dispatch(
            size,
            len(requests),
            rows,
            compute_ns,
            transferred_ns - begun_ns,
            executed_ns - transferred_ns,
            end_ns - executed_ns,
        )
        return outputs

    @property
    def moved_ns(self) -> int:
        """When a batch last ended, or was begun with nothing in flight. Any thread."""
        return max(self._begun_ns, self._ended_ns)

    def started_ns(self, batch: RunningBatch) -> int:
        """The instant at which the execution of the oldest batch began, as far as is known."""
        return max(batch.transferred_ns, self._ended_ns)

    def answers(self) -> bool:
        """Send the device a few bytes and look whether they come back."""
        sent = np.arange(16, dtype=np.float32)
        buffers: list[Buffer] = []
        try:
            buffers = self._backend.to_device([sent])
            (received,) = self._backend.to_host(buffers)
        except DeviceMemoryFull:
            return True
        except Exception:  # noqa: BLE001  # whatever it is, the bytes did not come back
            return False
        finally:
            with suppress(HloserveError):
                self._backend.free(buffers)
        return bool(np.array_equal(sent, received))

    def close(self) -> None:
        """Give the staging memory back; nothing is in flight any more."""
        for area in self._unused_areas:
            area.close()
        self._unused_areas.clear()

    def _clear(self, batch: RunningBatch) -> None:
        self._in_flight -= 1
        try:
            self._backend.free(batch.buffers)
        finally:
            self._residency.release(batch.model)
            self._unused_areas.append(batch.staging)

    def _make_area(self) -> StagingArea:
        # Only a device that runs ahead copies its inputs while somebody could do something else.
        return StagingArea(self._backend if self._runs_ahead else None)


def _executable(model: DeviceModel, variant: VariantKey, size: int) -> Executable:
    try:
        return model.executables[variant][size]
    except KeyError:
        raise BadRequest(
            f"model {model.name!r} has no program for {size} rows of shape {variant or 'any'}"
        ) from None
