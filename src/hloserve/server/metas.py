"""Serving meta models: their threads, and the calls that they make.

What lives here: a request to a meta model as the loop thread sees it, from its turn to its end.
What does not: `run` itself, which has a thread of its own (`hloserve.models.meta_run`), and how a
sub-call is served, which is as any request is (`hloserve.server.inference`). Loop thread only.

Rules.
1. A sub-call is a request like any other, but committed: it goes to the front of its queue, since
   others have waited for it already, and a thread and its scratch memory wait with it.
2. All calls of one request see the same generations of models: those that serve at its first call,
   whatever is reloaded, renamed or unloaded meanwhile.
3. Threads of meta models run nothing else, and hooks never run on them: so the hooks of sub-models
   always find a thread, and nothing waits for itself.
4. When a request ends, in whatever way, its sub-calls end with it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hloserve.config.schema import MetasConfig
from hloserve.core.errors import HloserveError, NotPossibleNow, SubCallFailed
from hloserve.core.logging import log_event
from hloserve.core.requests import InferRequest, InferResponse
from hloserve.core.tensors import Tensors
from hloserve.core.tickets import Call, Ticket
from hloserve.engine.dispatcher import Post
from hloserve.models.meta_call import Abandoned, Outcome, SubCalls
from hloserve.models.meta_run import MetaHost, MetaRun
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.models.scratch import ScratchPool
from hloserve.models.task_threads import TaskThreads
from hloserve.server.joint_submit import JointSubmit, Member, Submit

__all__ = ["Infer", "MetaThreads", "Metas", "build_meta_threads"]


log = logging.getLogger(__name__)


class Infer(Protocol):
    """Serves a request; see `hloserve.server.inference`."""

    def __call__(
        self, request: InferRequest, model: Model, submit: Submit
    ) -> Coroutine[Ticket[Any], None, InferResponse]:
        """Serve it with this generation of the model, submitting this way."""
        ...


@dataclass(frozen=True, slots=True)
class MetaThreads:
    """Where `run` runs, and its scratch memory.

    Attributes:
        calling: for those that call models; their number is the gate.
        computing: for those that call none, and so never wait for the device.
        scratch: the block of buffers; None for memory per request.
        post: brings calls to the loop thread.
    """

    calling: TaskThreads
    computing: TaskThreads
    scratch: ScratchPool | None
    post: Post

    def close(self) -> None:
        """Let the threads end after what runs or waits. Does not wait for them."""
        self.calling.close()
        self.computing.close()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the threads to end; `timeout_s` bounds the wait for each."""
        self.calling.join(timeout_s)
        self.computing.join(timeout_s)


def build_meta_threads(config: MetasConfig, compute_threads: int, post: Post) -> MetaThreads:
    """Make the threads that a worker's settings ask for.

    Args:
        config: the wish.
        compute_threads: for meta models that call none.
        post: brings calls to the loop thread.
    """
    return MetaThreads(
        calling=TaskThreads(config.concurrency, post, name="meta"),
        computing=TaskThreads(compute_threads, post, name="compute-meta"),
        scratch=(
            ScratchPool(config.scratch_bytes, config.scratch_slots)
            if config.scratch_bytes
            else None
        ),
        post=post,
    )


class Metas:
    """Answers requests to meta models.

    Args:
        registry: where sub-models are looked up.
        threads: run `run`.
        infer: serves a sub-call.
        submit: queues its requests, committed.
        now_ns: the present instant.

    Attributes:
        in_flight: requests to meta models, waiting for their turn or running.
        grace_s: how long `run` may go on after the end of its request, before the log tells of it.
    """

    def __init__(
        self,
        registry: Registry,
        threads: MetaThreads,
        infer: Infer,
        submit: Submit,
        now_ns: Callable[[], int],
    ) -> None:
        self.registry = registry
        self.infer = infer
        self.submit = submit
        self.post = threads.post
        self.now_ns = now_ns
        self.in_flight = 0
        self.grace_s = 2.0
        self._threads = threads
        self._host = MetaHost(threads.post, now_ns, threads.scratch)

    @property
    def scratch_used_bytes(self) -> int:
        """Scratch memory that requests hold, in whole slots."""
        scratch = self._threads.scratch
        return 0 if scratch is None else scratch.used_bytes

    async def answer(self, meta: Model, request: InferRequest) -> Tensors:
        """Run a meta model, and count what it took.

        Raises:
            Overloaded: too many wait for their turn. Retryable.
            InvalidInput, SubCallFailed, HookFailed, DeadlineExceeded: see `MetaRun.execute`.
        """
        calling = _Calling(self, meta, request.deadline_ns)
        run = MetaRun(
            meta,
            request.inputs,
            request.deadline_ns,
            self._host,
            begin=calling.begin,
            withdraw=calling.withdraw,
        )
        threads = self._threads.calling if meta.manifest.calls else self._threads.computing
        arrived_ns = self.now_ns()
        self.in_flight += 1
        try:
            arrays = await threads.run(run.execute)
        finally:
            self.in_flight -= 1
            run.end()
            calling.end()
            if not run.has_returned:
                asyncio.get_running_loop().call_later(self.grace_s, self._tell_of, run)
        statistics = meta.device.statistics
        compute_ns = calling.compute_ns
        statistics.record_waits([run.started_ns - arrived_ns])
        statistics.record_dispatch(0, 1, 1, compute_ns, infer_ns=compute_ns)
        return {spec.name: array for spec, array in zip(meta.outputs, arrays, strict=True)}

    def _tell_of(self, run: MetaRun) -> None:
        """Say that a function holds its thread, and so its turn, though nobody waits for it."""
        if not run.has_returned:
            log_event(
                log, "meta_did_not_return", level=logging.ERROR, model=run.meta.name,
                seconds_after_the_end=self.grace_s,
            )  # fmt: skip


class _Calling:
    """The sub-calls of one request to a meta model.

    Attributes:
        compute_ns: time during which a sub-call was on its way.
    """

    def __init__(self, metas: Metas, meta: Model, deadline_ns: int) -> None:
        self.metas = metas
        self.meta = meta
        self.deadline_ns = deadline_ns
        self.compute_ns = 0
        self._busy_from_ns = 0
        self._is_over = False
        self._pinned: dict[str, Model | HloserveError] | None = None
        self._flights: dict[SubCalls, _Flight] = {}

    def begin(self, calls: Sequence[SubCalls]) -> None:
        """Carry sub-calls out; those of one model reach its queue together."""
        if self._is_over:
            for each in calls:
                each.settle(Abandoned())
            return
        if self._pinned is None:
            self._pinned = {name: self._pin(name) for name in self.meta.manifest.calls}
        sizes: Counter[str] = Counter()
        for each in calls:
            sizes[each.model] += len(each.inputs)
        joints = {
            name: JointSubmit(self.metas.submit, self.metas.post, size)
            for name, size in sizes.items()
            if size > 1
        }
        for each in calls:
            model = self._pinned[each.model]
            if isinstance(model, HloserveError):
                each.settle(SubCallFailed(self.meta.name, each.model, model))
                continue
            if not self._flights:
                self._busy_from_ns = self.metas.now_ns()
            flight = self._flights[each] = _Flight(self, each)
            flight.start(model, joints.get(each.model))

    def withdraw(self, calls: SubCalls) -> None:
        """Nobody waits for these any more."""
        flight = self._flights.get(calls)
        if flight is not None:
            flight.finish(Abandoned())

    def end(self) -> None:
        """Withdraw what is left, and let go of the models."""
        self._is_over = True
        for flight in list(self._flights.values()):
            flight.finish(Abandoned())
        for model in (self._pinned or {}).values():
            if isinstance(model, Model):
                model.uses.end()
        self._pinned = None

    def landed(self, calls: SubCalls) -> None:
        """Sub-calls have their outcome."""
        del self._flights[calls]
        if not self._flights:
            self.compute_ns += self.metas.now_ns() - self._busy_from_ns

    def _pin(self, name: str) -> Model | HloserveError:
        try:
            model = self.metas.registry.get(name)
        except HloserveError as error:
            return error
        if model.is_meta:
            return NotPossibleNow(
                f"{name!r} is a meta model itself; a meta model may call other models only"
            )
        model.uses.count += 1
        return model


class _Flight:
    """Calls that are answered together, on their way."""

    def __init__(self, calling: _Calling, calls: SubCalls) -> None:
        self._calling = calling
        self._calls = calls
        self._outputs: list[Tensors] = [{} for _ in calls.inputs]
        self._missing = len(calls.inputs)
        self._is_over = False
        self._drivers: list[Call[InferResponse]] = []
        self._members: list[Member] = []

    def start(self, model: Model, joint: JointSubmit | None) -> None:
        """Begin every call; alone, or to be submitted with others."""
        metas, calls = self._calling.metas, self._calls
        for place, inputs in enumerate(calls.inputs):
            submit = metas.submit
            if joint is not None:
                submit = member = Member(joint)
                self._members.append(member)
            request = InferRequest(
                calls.model,
                inputs,
                outputs=calls.outputs,
                deadline_ns=self._calling.deadline_ns,
            )
            call = Call(metas.infer(request, model, submit), partial(self._done, place))
            self._drivers.append(call)
        for driver in self._drivers:
            driver.step()

    def _done(self, place: int, response: InferResponse | None, error: Exception | None) -> None:
        if self._members:
            self._members[place].leave()
        if response is not None:
            self._outputs[place] = response.outputs
            self._missing -= 1
            if not self._missing:
                self.finish(self._outputs)
            return
        self.finish(self._failed(place, error))

    def _failed(self, place: int, error: Exception | None) -> SubCallFailed:
        calls = self._calls
        number = f" (number {place + 1} of {len(calls.inputs)})" if len(calls.inputs) > 1 else ""
        cause = error
        if not isinstance(cause, HloserveError):
            cause = HloserveError(f"{type(error).__name__}: {error}")
            cause.__cause__ = error
        return SubCallFailed(self._calling.meta.name, calls.model, cause, number)

    def finish(self, outcome: Outcome) -> None:
        """Settle, and withdraw what is still on its way."""
        if self._is_over:
            return
        self._is_over = True
        for driver in self._drivers:
            driver.cancel()
        for member in self._members:
            member.leave()
        self._calling.landed(self._calls)
        self._calls.settle(outcome)
