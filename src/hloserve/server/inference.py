"""The request path: one coroutine, whatever transport the request came by.

decode > **find model > check tensors > preprocess > submit** > [plan > assemble > lease weights >
execute > slice] > **postprocess** > encode

What lives here: the bold part, and what surrounds a request while it is in flight: the cap on
concurrency, the deadline, cancellation, counting. What does not: bytes (`wire`, the services of the
transports) and the device (`engine`). Everything runs on the loop thread; the parts in brackets run
on the dispatch thread, hooks on hook threads, and the coroutine waits for them on tickets.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hloserve.core.clock import Clock
from hloserve.core.errors import (
    BadRequest,
    DeadlineExceeded,
    HloserveError,
    ModelNotFound,
    TooManyInFlight,
)
from hloserve.core.requests import InferRequest, InferResponse
from hloserve.core.tensors import Array, Tensors
from hloserve.core.tickets import Ticket
from hloserve.engine.assembly import join_outputs
from hloserve.engine.device_model import DeviceModel
from hloserve.engine.scheduling.queued_request import QueuedRequest, build_requests
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.models.task_threads import TaskThreads
from hloserve.server.classification import check_classes, classify_outputs, is_large
from hloserve.server.in_flight import InFlight, Reply
from hloserve.server.joint_submit import Submit
from hloserve.server.metas import Metas, MetaThreads
from hloserve.server.metrics import UNKNOWN_MODEL, RequestMetrics
from hloserve.server.shared_memory import SharedMemory
from hloserve.server.tensor_check import (
    all_problems,
    check_inputs,
    check_output_names,
    select_outputs,
)

__all__ = ["ACCEPTED_VERSIONS", "InferenceService", "check_version"]

ACCEPTED_VERSIONS = ("", "1")
"""Bundles are not versioned. Clients of versioned repositories ask for "1"; that is the bundle."""


def check_version(model: str, version: str) -> None:
    """Refuse a model version that cannot exist.

    Raises:
        ModelNotFound: the version is neither empty nor "1".
    """
    if version not in ACCEPTED_VERSIONS:
        raise ModelNotFound(model, version)


class InferenceService:
    """Serves inference requests. Loop thread only.

    Args:
        meta_threads: run the functions of meta models.
        shared_memory: serves requests whose tensors are not all in the message.
        max_in_flight: requests handled at once, 0 for no cap. Counted from `start` to the reply.
    """

    def __init__(  # noqa: PLR0913  # it is wired once, by name
        self,
        *,
        registry: Registry,
        scheduler: Scheduler,
        hook_threads: TaskThreads,
        meta_threads: MetaThreads,
        metrics: RequestMetrics,
        shared_memory: SharedMemory,
        clock: Clock,
        max_in_flight: int,
    ) -> None:
        self._registry = registry
        self._submit: Submit = scheduler.submit
        self._hook_threads = hook_threads
        self._metrics = metrics
        self.shared_memory = shared_memory
        self.now_ns = clock.now_ns
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        committed = partial(scheduler.submit, is_committed=True)
        self.metas = Metas(registry, meta_threads, self.infer, committed, clock.now_ns)

    def start(self, request: InferRequest, reply: Reply) -> InFlight:
        """Begin to serve a request; `reply` is called once, now or later, unless it is cancelled.

        Errors arrive through `reply` too. Cancel the returned object when the caller goes away.
        """
        now_ns = self.now_ns()
        in_flight = InFlight(self, request, reply, now_ns)
        self.in_flight += 1
        if self.max_in_flight and self.in_flight > self.max_in_flight:
            self._metrics.shed += 1
            in_flight.done(None, TooManyInFlight(self.max_in_flight))
        elif request.deadline_ns <= now_ns:
            in_flight.done(None, DeadlineExceeded(request.model))
        elif request.version not in ACCEPTED_VERSIONS:
            # Before the model is looked up: one that loads will not have the version either.
            in_flight.done(None, ModelNotFound(request.model, request.version))
        else:
            serve = self.infer if request.shared is None else self._infer_shared
            in_flight.begin(serve(request))
        return in_flight

    async def infer(
        self,
        request: InferRequest,
        model: Model | None = None,
        submit: Submit | None = None,
    ) -> InferResponse:
        """Serve one request.

        Args:
            request: the request.
            model: the one to serve it with; None for the one that has its name now.
            submit: brings it to its queue; None for the end of the queue.

        Raises:
            ModelNotFound, ModelNotReady: nothing of that name serves here, or not yet.
            BadRequest: a tensor does not fit; the message names it.
            QueueFull: the model's queue is at its cap. Retryable.
            DeadlineExceeded: the deadline passed before the device was free.
            HookFailed, BackendFailed: the bundle or the device failed.
            SubCallFailed: a meta model's call of another model failed.

        Threading: loop thread, driven by a `Call`; awaits tickets only.
        """
        if model is None:
            model = self._registry.get(request.model)
        uses = model.uses
        uses.count += 1  # it is not freed before `end`, whatever becomes of its name
        try:
            _check(model, request)
            if model.is_meta:
                outputs = await self.metas.answer(model, request)
            else:
                if model.has_preprocess:
                    prepared = await self._preprocess(model, request)
                else:
                    prepared = [request.inputs[name] for name in model.input_names]
                parts = build_requests(
                    model.device, prepared, request.deadline_ns, request.priority
                )
                if len(parts) == 1:
                    (submit or self._submit)(parts)
                    raw = await parts[0]
                else:
                    raw = await _execute_parts(
                        model.device, prepared, parts, submit or self._submit
                    )
                if model.has_postprocess:
                    outputs = await self._postprocess(model, raw, request.deadline_ns)
                else:
                    outputs = dict(zip(model.output_names, raw, strict=True))
            outputs = select_outputs(outputs, request.outputs)
            if request.classes is not None:
                outputs = await self._classify(model, outputs, request.classes)
            return InferResponse(request.model, outputs, request.id, request.version)
        finally:
            uses.end()

    def _preprocess(self, model: Model, request: InferRequest) -> Ticket[list[Array]]:
        processes = model.hook_processes
        if processes is None:
            return self._hook_threads.run(model.preprocess, request.inputs)
        return processes.run("preprocess", request.inputs, request.deadline_ns)

    async def _postprocess(self, model: Model, raw: list[Array], deadline_ns: int) -> Tensors:
        processes = model.hook_processes
        if processes is None:
            return await self._hook_threads.run(model.postprocess, raw)
        given = dict(zip(model.output_names, raw, strict=True))
        arrays = await processes.run("postprocess", given, deadline_ns)
        return {spec.name: array for spec, array in zip(model.outputs, arrays, strict=True)}

    async def _classify(self, model: Model, outputs: Tensors, classes: dict[str, int]) -> Tensors:
        if is_large(outputs, classes):
            run = self._hook_threads.run
            return await run(classify_outputs, model.outputs, outputs, classes, model.labels)
        return classify_outputs(model.outputs, outputs, classes, model.labels)

    async def _infer_shared(self, request: InferRequest) -> InferResponse:
        """Serve a request with tensors in shared memory, whose copies surround `infer`."""
        return await self.shared_memory.infer(request, self._check_outlines, self.infer)

    def _check_outlines(self, request: InferRequest, outlines: Tensors) -> None:
        """Check a request before its inputs are copied: arrays of no content stand for them."""
        inputs = self._registry.get(request.model).inputs
        arrays = {**request.inputs, **outlines}
        try:
            check_inputs(inputs, arrays)
        except BadRequest:
            raise all_problems(inputs, arrays) from None

    def finished(self, in_flight: InFlight, error: Exception | None) -> None:
        """Count a request that has its answer, or whose caller went away."""
        status, model = "OK", in_flight.model
        if error is not None:
            status = error.code.value if isinstance(error, HloserveError) else "INTERNAL"
            if not self._registry.knows(model):
                model = UNKNOWN_MODEL
        self._metrics.observe(model, status, in_flight.started_ns, self.now_ns())
        self.in_flight -= 1


def _check(model: Model, request: InferRequest) -> None:
    """Check all that can be before anything is done.

    Raises:
        BadRequest: tensors do not fit; the message names them.
    """
    try:
        if request.outputs:
            check_output_names(model.outputs, request.outputs)
        check_inputs(model.inputs, request.inputs)
    except BadRequest:
        raise all_problems(model.inputs, request.inputs, model.outputs, request.outputs) from None
    if request.classes is not None:
        check_classes(model.outputs, request.classes)


async def _execute_parts(
    device: DeviceModel, inputs: list[Array], parts: list[QueuedRequest], submit: Submit
) -> list[Array]:
    """Run a request that no program holds in several dispatches, one of no rows in none."""
    if not parts:
        return empty_outputs(device, inputs)
    submit(parts)
    try:
        return join_outputs(device.outputs, [await part for part in parts])
    finally:
        for part in parts:
            part.cancel()  # when one has failed, the others have no reader left


def empty_outputs(device: DeviceModel, inputs: Sequence[Array]) -> list[Array]:
    """Answer a request of no rows: outputs of no rows, and no work for the device.

    Raises:
        BadRequest: an output has no batch axis, so it would have a value, which nobody computed.
    """
    executable = next(iter(device.executables[device.variant_of(inputs)].values()))
    outputs = []
    for spec, result in zip(device.outputs, executable.signature.outputs, strict=True):
        if spec.batch_axis is None:
            raise BadRequest(
                f"a request of no rows cannot be answered by model {device.name!r}:"
                f" output {spec.name!r} has no batch axis; send at least one row"
            )
        shape = list(result.shape)
        shape[spec.batch_axis] = 0
        outputs.append(np.empty([extent or 0 for extent in shape], spec.dtype.numpy))
    return outputs
