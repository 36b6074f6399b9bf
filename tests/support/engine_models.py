"""Device models on the fake backend, in one line each, and a loop to deliver on."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import pytest

from hloserve.core.clock import Clock, ManualClock, SystemClock
from hloserve.core.dtypes import F32, DType
from hloserve.core.errors import DeviceLost, ShuttingDown
from hloserve.core.requests import DEFAULT_PRIORITY
from hloserve.core.tensors import Array, Axis, AxisKind, TensorSpec
from hloserve.engine.backend import Executable
from hloserve.engine.device_model import DeviceModel, VariantKey, variant_key
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.fake_programs import FakeProgram
from hloserve.engine.programs.signature import Signature, TensorType
from hloserve.engine.residency.leasing import Residency
from hloserve.engine.scheduling.discipline import Discipline, Fifo
from hloserve.engine.scheduling.dispatch import Dispatch
from hloserve.engine.scheduling.model_queue import ModelPolicy
from hloserve.engine.scheduling.queued_request import (
    PRIORITY_STEP_NS,
    QueuedRequest,
    ShiftedRequest,
    build_requests,
)
from hloserve.engine.scheduling.scheduler import Scheduler


def spec(name: str, letters: str, dtype: DType = F32, **extents: int) -> TensorSpec:
    """A tensor spec in numpy order: ``spec("x", "nc", c=3)``; ``n`` is the batch, -1 variable."""
    axes = tuple(
        Axis(letter, AxisKind.BATCH)
        if letter == "n"
        else Axis(letter, AxisKind.VARIABLE)
        if extents[letter] == -1
        else Axis(letter, AxisKind.FIXED, extents[letter])
        for letter in letters
    )
    return TensorSpec(name, dtype, axes)


def build_model(
    backend: FakeBackend,
    *,
    name: str = "m",
    function: str = "scale",
    inputs: Sequence[TensorSpec] = (spec("x", "nc", c=3),),
    outputs: Sequence[TensorSpec] = (spec("y", "nc", c=3),),
    sizes: Sequence[int] = (1, 4, 8),
    shapes: Sequence[Mapping[str, int]] = (),
    weights: Sequence[Array] | None = None,
    max_batch_size: int | None = None,
) -> DeviceModel:
    """A model whose programs are all `function`; by default y = 2x on rows of three."""
    if weights is None:
        weights = [np.full(3, 2, np.float32)] if function == "scale" else []
    variants = {variant_key(inputs, shape): shape for shape in shapes} or {(): {}}
    return DeviceModel(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        executables={
            key: {
                size: _executable(function, inputs, outputs, weights, size, shape) for size in sizes
            }
            for key, shape in variants.items()
        },
        weights=backend.to_device(list(weights)),
        max_batch_size=max_batch_size,
    )


def _executable(
    function: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Sequence[Array],
    size: int,
    shape: Mapping[str, int],
) -> Executable:
    def type_of(tensor: TensorSpec) -> TensorType:
        extents = (
            (size or None)
            if axis.kind is AxisKind.BATCH
            else shape.get(axis.letter)
            if axis.extent is None
            else axis.extent
            for axis in tensor.axes
        )
        return TensorType(tensor.dtype, tuple(extents))

    arguments = [type_of(tensor) for tensor in inputs]
    arguments += [TensorType(F32, weight.shape) for weight in weights]
    return FakeProgram(Signature(tuple(arguments), tuple(map(type_of, outputs))), function)


def rows_of(*values: float) -> Array:
    """Rows of three equal numbers, one row per value."""
    return np.repeat(np.array(values, np.float32)[:, None], 3, axis=1)


def request(model: DeviceModel, *values: float, deadline_ns: int | None = None) -> QueuedRequest:
    """One request of such rows, small enough for a program."""
    extra = {} if deadline_ns is None else {"deadline_ns": deadline_ns}
    (made,) = build_requests(model, [rows_of(*values)], **extra)
    return made


def dummy(
    model: DeviceModel,
    rows: int,
    variant: VariantKey = (),
    deadline_ns: int = 2**63 - 1,
    priority: int = DEFAULT_PRIORITY,
) -> QueuedRequest:
    """A request that is queued but never run: it has rows and no arrays."""
    if priority == DEFAULT_PRIORITY:
        return QueuedRequest(model, [], rows, variant, deadline_ns)
    shift_ns = (priority - DEFAULT_PRIORITY) * PRIORITY_STEP_NS
    return ShiftedRequest(shift_ns, model, [], rows, variant, deadline_ns)


class FakeLoop:
    """The loop thread, played by the test: runs what is posted when it is told to."""

    def __init__(self) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.posts = 0

    def post(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Queue a callback. Any thread."""
        self._posted.put((callback, args))

    def run_one(self, timeout_s: float = 10.0) -> None:
        """Wait for the next callback and run it."""
        callback, args = self._posted.get(timeout=timeout_s)
        self.posts += 1
        callback(*args)

    def run_what_is_there(self) -> None:
        """Run the callbacks that were posted by now."""
        for _ in range(self._posted.qsize()):
            self.run_one()

    def run_until_settled(self, *requests: QueuedRequest) -> None:
        """Run callbacks until all `requests` are settled."""
        while not all(r.is_settled for r in requests):
            self.run_one()


def wait_until_asleep(scheduler: Scheduler, timeout_s: float = 10.0) -> None:
    """Wait until the dispatch thread has found nothing to do."""
    end_s = time.monotonic() + timeout_s
    while not scheduler.is_thread_waiting:
        assert time.monotonic() < end_s, "the dispatch thread does not go to sleep"
        os.sched_yield()


class DispatchThread:
    """A dispatch thread that takes a batch when it is asked to, and runs none.

    A batch ends when the next one is asked for.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._given: SimpleQueue[Dispatch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dispatch-by-hand", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        dispatch: Dispatch | None = None
        while self._asked.get():
            if dispatch is not None:
                self._scheduler.end(dispatch)
            dispatch = self._scheduler.next_dispatch()
            self._given.put(dispatch)

    def ask(self) -> None:
        """Call `next_dispatch` there."""
        self._asked.put(True)

    def sleep(self) -> None:
        """Call it when there is nothing to take, and wait until it waits."""
        self.ask()
        wait_until_asleep(self._scheduler)

    def given(self) -> Dispatch | None:
        """What `next_dispatch` gave."""
        return self._given.get(timeout=10)

    def end(self) -> None:
        """Stop the scheduler and the thread."""
        self._scheduler.stop()
        self._asked.put(False)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the dispatch thread did not end"


class Engine:
    """A scheduler and a dispatcher on the fake backend; a context manager that ends the thread.

    With `runs_cheap` the loop runs cheap batches, and the dispatch thread sleeps at the start.
    """

    def __init__(
        self,
        backend: FakeBackend,
        *models: DeviceModel,
        clock: Clock | None = None,
        max_queue_depth: int = 1024,
        discipline: Discipline | None = None,
        runs_cheap: bool = False,
        in_flight: int = 1,
        residency: Residency | None = None,
        sleep: Callable[[float], object] = time.sleep,
        policies: Mapping[str, ModelPolicy] | None = None,
    ) -> None:
        self.backend = backend
        self.loop = FakeLoop()
        self.clock = clock or SystemClock()
        self.scheduler = Scheduler(self.clock, discipline or Fifo(), max_queue_depth, policies)
        self._runs_cheap = runs_cheap
        self.ends: list[Exception | None] = []
        self.dispatcher = Dispatcher(
            backend,
            self.scheduler,
            self.clock,
            self.loop.post,
            self.ends.append,
            soon=self.loop.post if runs_cheap else None,
            in_flight=in_flight,
            residency=residency,
            sleep=sleep,
        )
        for model in models:
            self.scheduler.add(model)

    def __enter__(self) -> Self:
        self.dispatcher.start()
        if self._runs_cheap:
            wait_until_asleep(self.scheduler)
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.gate.open()
        self.backend.transfer_gate.open()
        self.scheduler.stop()
        assert self.dispatcher.join(10), "the dispatch thread did not end"
        self.backend.close()

    def hold_device(self, model: DeviceModel) -> QueuedRequest:
        """Occupy the device with a request of `model` until the gate opens."""
        arrivals = len(self.backend.executed)
        self.backend.gate.close()
        blocker = request(model, 0)
        self.scheduler.submit([blocker])
        self.backend.gate.wait_for_arrivals(arrivals + 1)
        return blocker

    def run(self, *requests: QueuedRequest) -> None:
        """Let executions through and deliver until all `requests` are settled."""
        self.backend.gate.open()
        self.loop.run_until_settled(*requests)


def outcome_of(ticket: QueuedRequest) -> list[Array]:
    """Outputs of a settled request; raises what it failed with."""
    try:
        ticket.__await__().send(None)
    except StopIteration as stop:
        outputs: list[Array] = stop.value
        return outputs
    raise AssertionError("the request is not settled")


def expect_device_lost(callers: Sequence[QueuedRequest], in_flight: int) -> None:
    """Those in flight were told that the device is lost, the others that the server ends."""
    for caller in callers[:in_flight]:
        with pytest.raises(DeviceLost, match="the device is lost"):
            outcome_of(caller)
    for caller in callers[in_flight:]:
        with pytest.raises(ShuttingDown):
            outcome_of(caller)


def manual_scheduler(max_queue_depth: int = 1024) -> tuple[Scheduler, ManualClock]:
    """A fifo scheduler on a clock that stands at 1 s."""
    clock = ManualClock(1_000_000_000)
    return Scheduler(clock, Fifo(), max_queue_depth), clock
