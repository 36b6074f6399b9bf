"""The dispatch thread: takes batches, runs them, sends the replies.

What lives here: the thread and its loop. What does not: what runs next
(`hloserve.engine.scheduling.scheduler`), how rows are laid together (`hloserve.engine.assembly`),
the device (`hloserve.engine.backend`). The server starts one dispatcher per device.

Rules.
1. One dispatch executes at a time; its staging memory is not touched until it has ended.
2. All replies of a dispatch cross to the loop by one `post`.
3. A failed batch of several is run again, each request alone, once: who poisoned it fails alone.
4. No rows leave before the results have the declared shapes.
5. Nothing that a dispatch raises ends the thread.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from hloserve.core.clock import Clock
from hloserve.core.errors import BackendFailed, BadRequest, DeadlineExceeded, HloserveError
from hloserve.core.logging import log_event
from hloserve.core.tensors import Array
from hloserve.engine.assembly import StagingArea, assemble, check_outputs, slice_rows
from hloserve.engine.backend import Backend, Buffer, Executable
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.residency.leasing import EverythingResident, Residency
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import Outcome, QueuedRequest, deliver, lone_size
from hloserve.engine.scheduling.scheduler import Scheduler

__all__ = ["CHEAP_NS", "Dispatcher", "Post"]

log = logging.getLogger(__name__)


CHEAP_NS = 300_000
"""A batch that computes no longer than this runs on the loop thread while the other one sleeps.

Handing it over and taking the results back wakes two threads, on an idle machine two cores: that
takes as long, and the loop has nothing better to do.
"""


class Post(Protocol):
    """Runs a callable on the loop thread, soon and in order: `loop.call_soon_threadsafe`."""

    def __call__(self, callback: Callable[..., object], /, *args: Any) -> object:
        """Hand `callback(*args)` to the loop. Any thread."""
        ...


class Dispatcher:
    """Runs what the scheduler gives, until it gives no more.

    Args:
        backend: the device. From `start` on the dispatch thread uses it, or, while that one
            sleeps, the loop thread.
        scheduler: where the batches come from.
        clock: measures computing.
        post: brings replies to the loop.
        soon: runs a callable on the loop thread at the end of this turn: `loop.call_soon`. With it,
            batches that cost less than a crossing of threads do not cross. Without, all do.
        residency: gives the weights of a model; None when all weights are on the device.
        on_end: called on the loop when the thread has ended, after all its replies: with None
            after `Scheduler.drain` or `stop`, else with the fault that ended it.
    """

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        clock: Clock,
        post: Post,
        on_end: Callable[[Exception | None], object] | None = None,
        soon: Post | None = None,
        residency: Residency | None = None,
    ) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._clock = clock
        self._post = post
        self._on_end = on_end
        self._soon = soon
        self._residency = residency or EverythingResident()
        self._is_synchronous = backend.platform == "cpu"
        self._staging = StagingArea()
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def start(self) -> None:
        """Start the thread. Once."""
        self._scheduler.answer_by(self._post)
        if self._soon is not None:
            self._scheduler.announce_to(partial(self._soon, self._run_cheap))
        self._thread.start()

    def _run_cheap(self) -> None:
        """Run the next batch here, on the loop thread, if that is quicker than waking the other."""
        scheduler = self._scheduler
        try:
            dispatch = scheduler.take_cheap(CHEAP_NS)
        except Exception as error:  # noqa: BLE001  # our own fault: logged
            log_event(log, "take_cheap_failed", level=logging.CRITICAL, error=error)
            scheduler.wake()  # the other thread meets the same fault, and ends in order
            return
        if dispatch is None:
            return
        try:
            outputs, outcomes = self._run_dispatch(dispatch)
            _deliver_dispatch(dispatch, outputs, outcomes)
        except Exception as error:  # noqa: BLE001  # our own fault: logged, and nobody waits for ever
            log_event(log, "cheap_dispatch_failed", level=logging.CRITICAL, error=error)
            everybody = dispatch.requests + dispatch.expired
            deliver(everybody, [_translated(error, dispatch.model.name) for _ in everybody])
        finally:
            scheduler.end_cheap(dispatch)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end after `Scheduler.drain` or `stop`; False when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        fault = self._serve_until_closed()
        with suppress(RuntimeError):  # a loop that is closed has nobody left to be told
            if fault is not None:
                self._post(self._scheduler.stop)
            if self._on_end is not None:
                self._post(self._on_end, fault)

    def _serve_until_closed(self) -> Exception | None:
        try:
            while (dispatch := self._scheduler.next_dispatch()) is not None:
                self._serve(dispatch)
                self._scheduler.end(dispatch)
        except Exception as error:  # noqa: BLE001  # our own fault, or a closed loop: logged
            log_event(log, "dispatch_thread_died", level=logging.CRITICAL, error=error)
            return error
        return None

    def _serve(self, dispatch: Dispatch) -> None:
        self._post(_deliver_dispatch, dispatch, *self._run_dispatch(dispatch))

    def _run_dispatch(self, dispatch: Dispatch) -> tuple[list[Array] | None, list[Outcome]]:
        outputs: list[Array] | None = None
        outcomes: list[Outcome] = []
        requests = dispatch.requests
        if requests:
            try:
                outputs = self._execute(dispatch.model, requests, dispatch.rows, dispatch.size)
            except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
                outcomes = self._recover(dispatch, error)
        if dispatch.expired:
            outcomes += _shed(dispatch)
        return outputs, outcomes

    def _execute(
        self, model: DeviceModel, requests: Sequence[QueuedRequest], rows: int, size: int
    ) -> list[Array]:
        """Run one batch; raises whatever went wrong."""
        executable = _executable(model, requests[0].variant, size)
        padded = size if model.can_coalesce else 0
        now_ns = self._clock.now_ns
        begin_ns = now_ns()
        inputs = assemble(
            model.inputs, [request.inputs for request in requests], rows, padded, self._staging
        )
        assembled_ns = now_ns()
        outputs, transferred_ns, executed_ns = self._compute(model, executable, inputs)
        end_ns = now_ns()
        compute_ns = end_ns - assembled_ns
        result_rows = (padded or rows) if model.has_batch_axis else None
        check_outputs(model.name, model.outputs, outputs, result_rows)
        model.statistics.learn_cost(requests[0].variant, size, compute_ns)
        model.statistics.record_dispatch(
            size,
            len(requests),
            rows,
            compute_ns,
            transferred_ns - begin_ns,
            executed_ns - transferred_ns,
            end_ns - executed_ns,
        )
        return outputs

    def _compute(
        self, model: DeviceModel, executable: Executable, inputs: Sequence[Array]
    ) -> tuple[list[Array], int, int]:
        """Outputs, the instant when the inputs were on the device, and that of the results.

        An accelerator executes while we go on, and is waited for in `to_host`: what is seen there
        is the execution, and getting the outputs hides in it.
        """
        backend, now_ns = self._backend, self._clock.now_ns
        weights = self._residency.lease(model)
        transient: list[Buffer] = []
        try:
            transient += backend.to_device(inputs)
            transferred_ns = now_ns()
            results = backend.execute(executable, [*transient, *weights])
            executed_ns = now_ns()
            transient += results
            outputs = backend.to_host(results)
            return outputs, transferred_ns, executed_ns if self._is_synchronous else now_ns()
        finally:
            backend.free(transient)
            self._residency.release(model)

    def _recover(self, dispatch: Dispatch, error: Exception) -> list[Outcome]:
        """Find out who made a batch fail, by running each request alone."""
        model, requests = dispatch.model, dispatch.requests
        log_event(
            log, "dispatch_failed", level=logging.ERROR, error=error, model=model.name,
            requests=len(requests), rows=dispatch.rows, size=dispatch.size,
        )  # fmt: skip
        if len(requests) == 1:
            model.statistics.failed_count += 1
            return [_translated(error, model.name)]
        return [self._retry(model, request) for request in requests]

    def _retry(self, model: DeviceModel, request: QueuedRequest) -> Outcome:
        if request.is_cancelled:
            return []
        now_ns = self._clock.now_ns()
        if now_ns >= request.deadline_ns:
            model.statistics.shed_count += 1
            return DeadlineExceeded(model.name, late_ns=now_ns - request.deadline_ns)
        try:
            outputs = self._execute(model, [request], request.rows, lone_size(model, request))
        except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
            log_event(
                log, "retry_failed", level=logging.ERROR, error=error, model=model.name,
                rows=request.rows,
            )  # fmt: skip
            model.statistics.failed_count += 1
            return _translated(error, model.name)
        return slice_rows(model.outputs, outputs, [request.rows])[0]


def _deliver_dispatch(
    dispatch: Dispatch, outputs: list[Array] | None, outcomes: list[Outcome]
) -> None:
    """Settle everybody whom a dispatch answers.

    What needs a look at each request is done here if it can be, and not on the dispatch thread,
    which meanwhile starts the next batch.

    Args:
        dispatch: what ran.
        outputs: those of the batch, checked, not yet cut; None when it failed or nothing ran.
        outcomes: of the requests if the batch failed, then of those that expired.

    Threading: loop thread.
    """
    model, requests = dispatch.model, dispatch.requests
    if outputs is not None:
        if len(requests) == 1 and (dispatch.rows == dispatch.size or not model.can_coalesce):
            outcomes = [outputs, *outcomes]
        else:
            rows = [request.rows for request in requests]
            outcomes = [*slice_rows(model.outputs, outputs, rows), *outcomes]
    model.statistics.record_waits([dispatch.started_ns - r.enqueued_ns for r in requests])
    deliver(requests + dispatch.expired, outcomes)


def _shed(dispatch: Dispatch) -> list[Outcome]:
    model, started_ns = dispatch.model, dispatch.started_ns
    model.statistics.shed_count += len(dispatch.expired)
    return [
        DeadlineExceeded(model.name, late_ns=started_ns - request.deadline_ns)
        for request in dispatch.expired
    ]


def _executable(model: DeviceModel, variant: VariantKey, size: int) -> Executable:
    try:
        return model.executables[variant][size]
    except KeyError:
        raise BadRequest(
            f"model {model.name!r} has no program for {size} rows of shape {variant or 'any'}"
        ) from None


def _translated(error: Exception, model: str) -> HloserveError:
    """Our own errors as they are; a foreign one at the edge of the thread becomes ours."""
    if isinstance(error, HloserveError):
        return error
    failed = BackendFailed("execution", model, str(error) or type(error).__name__)
    failed.__cause__ = error
    return failed
