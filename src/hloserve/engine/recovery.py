"""What becomes of a dispatch that failed.

What lives here: making room and running it again, running its requests alone, and finding out that
the device is lost. What does not: the dispatches that work (`hloserve.engine.dispatcher`).

Rules.
1. A batch that found the device's memory full is run once more, if there is more room now.
2. A failed batch of several is run again, each request alone, once: who poisoned it fails alone.
3. A device that does not give back a few bytes after a failure is lost. Nothing is run again on
   it, and everybody is told to go elsewhere.

Threading: the one that owns the device, while nothing is in flight.
"""

import logging
from weakref import WeakSet

from hloserve.core.clock import Clock
from hloserve.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    DeviceLost,
    DeviceMemoryFull,
    HloserveError,
    Unavailable,
    WeightsNotResident,
    WeightsUnreadable,
)
from hloserve.core.logging import log_event
from hloserve.core.tensors import Array
from hloserve.engine.assembly import slice_rows
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.device_queue import DeviceQueue
from hloserve.engine.residency.leasing import Residency
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.queued_request import Outcome, QueuedRequest, lone_size

__all__ = ["Recovery", "as_ours"]

log = logging.getLogger(__name__)


class Recovery:
    """Gets of a failed dispatch what can be had.

    Args:
        queue: runs batches again.
        clock: tells who is late.
        residency: makes room.

    Attributes:
        lost: why nothing can be run any more; None while the device answers.
    """

    def __init__(self, queue: DeviceQueue, clock: Clock, residency: Residency) -> None:
        self._queue = queue
        self._clock = clock
        self._residency = residency
        self.lost: DeviceLost | None = None
        self._unreadable: WeakSet[DeviceModel] = WeakSet()  # whose weights the log has told of

    def recover(
        self, dispatch: Dispatch, error: Exception, *, had_company: bool
    ) -> tuple[list[Array] | None, list[Outcome]]:
        """Answer the requests of a dispatch that failed.

        Args:
            dispatch: holds requests.
            error: what it failed with.
            had_company: others were in flight beside it, and have ended since.

        Returns:
            Outputs of the whole batch, or None and an outcome for each request.
        """
        model, requests = dispatch.model, dispatch.requests
        if isinstance(error, WeightsNotResident):  # refused, and perhaps often: nothing has failed
            return None, [self._failure(error, model) for _ in requests]
        if isinstance(error, WeightsUnreadable):  # until it is loaded again, whoever asks
            self._tell_unreadable(model, error.reason)
            return None, [self._failure(error, model) for _ in requests]
        log_event(
            log, "dispatch_failed", level=logging.ERROR, error=error, model=model.name,
            requests=len(requests), rows=dispatch.rows, size=dispatch.size,
        )  # fmt: skip
        if isinstance(error, DeviceMemoryFull):
            freed_bytes = self._residency.make_room()
            if freed_bytes or had_company:
                log_event(
                    log, "made_room", level=logging.WARNING, model=model.name,
                    freed_bytes=freed_bytes,
                )  # fmt: skip
                try:
                    return self._queue.run(model, requests, dispatch.rows, dispatch.size), []
                except Exception as again:  # noqa: BLE001  # the edge of a dispatch: told below
                    error = again
        # What is not there now is not there for any of them either.
        if len(requests) == 1 or isinstance(error, Unavailable) or self._is_lost(error):
            return None, [self._failure(error, model) for _ in requests]
        return None, [self._retry(model, request) for request in requests]

    def _tell_unreadable(self, model: DeviceModel, reason: str) -> None:
        if model in self._unreadable:
            return
        self._unreadable.add(model)
        log_event(
            log, "weights_unreadable", level=logging.ERROR, model=model.name, reason=reason,
            hint="requests that need them are refused until the model is loaded again",
        )  # fmt: skip

    def _retry(self, model: DeviceModel, request: QueuedRequest) -> Outcome:
        if request.is_cancelled:
            return []
        now_ns = self._clock.now_ns()
        if now_ns >= request.deadline_ns:
            model.statistics.shed_count += 1
            return DeadlineExceeded(model.name, late_ns=now_ns - request.deadline_ns)
        if self.lost is not None:
            return self._failure(self.lost, model)
        try:
            outputs = self._queue.run(model, [request], request.rows, lone_size(model, request))
        except Exception as error:  # noqa: BLE001  # the edge of a dispatch: logged, translated
            log_event(
                log, "retry_failed", level=logging.ERROR, error=error, model=model.name,
                rows=request.rows,
            )  # fmt: skip
            return self._failure(error, model)
        return slice_rows(model.outputs, outputs, [request.rows])[0]

    def _failure(self, error: Exception, model: DeviceModel) -> HloserveError:
        model.statistics.failed_count += 1
        if self._is_lost(error):
            assert self.lost is not None, "it was just found to be lost"
            return self.lost
        return as_ours(error, model.name)

    def _is_lost(self, error: Exception) -> bool:
        """True when the device cannot be used any more; asks it after a failure of its own."""
        if self.lost is None and isinstance(as_ours(error, ""), BackendFailed):
            if self._queue.answers():
                return False
            self.lost = DeviceLost(str(error) or type(error).__name__)
            log_event(log, "device_lost", level=logging.CRITICAL, error=error)
        return self.lost is not None


def as_ours(error: Exception, model: str) -> HloserveError:
    """Our own errors as they are; a foreign one at the edge of the thread becomes ours."""
    if isinstance(error, HloserveError):
        return error
    failed = BackendFailed("execution", model, str(error) or type(error).__name__)
    failed.__cause__ = error
    return failed
