"""One request to a meta model, while its `run` goes on.

What lives here: where the author's thread and the loop thread meet: issuing sub-calls, waiting for
them, scratch memory, and the end. What does not: what authors are given
(`hloserve.models.meta_call`) and how a sub-call is served (`hloserve.server.metas`).

Rules.
1. `run` has a thread to itself while it works and while it waits; sub-calls are served on the loop
   thread, as any request is.
2. When nobody waits for the answer any more, whatever `run` waits for ends at once, and it is told
   by `Abandoned` at its next call at the latest.
3. Nothing of a request outlives it: sub-calls that are left are withdrawn, scratch memory is given
   back, and results that lie in it are copied first.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from hloserve.core.errors import Cancelled, DeadlineExceeded, HookFailed, SubCallFailed
from hloserve.core.requests import NEVER_NS
from hloserve.core.tensors import Array, Tensors
from hloserve.engine.dispatcher import Post
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_results import call_hook, check_tensors, hook_tensors
from hloserve.models.meta_call import Abandoned, AsyncMetaCall, Calling, MetaCall, SubCalls
from hloserve.models.model import Model
from hloserve.models.scratch import (
    Reservation,
    ScratchPool,
    Wanted,
    cut_arrays,
    fresh_memory,
    needed_bytes,
)

__all__ = ["MetaHost", "MetaRun"]


@dataclass(frozen=True, slots=True)
class MetaHost:
    """What all runs of a worker have in common.

    Attributes:
        post: brings calls to the loop thread.
        now_ns: the present instant.
        scratch: the block that buffers come from; None gives every request its own memory.
    """

    post: Post
    now_ns: Callable[[], int]
    scratch: ScratchPool | None


_Task: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Task[Any]"]


class MetaRun(Calling):
    """A request to a meta model.

    Args:
        meta: the model; its hooks have a `run`.
        inputs: of the client, checked.
        deadline_ns: monotonic instant; `NEVER_NS` for none.
        host: the worker around it.
        begin: carries sub-calls out; called on the loop thread.
        withdraw: nobody waits for these sub-calls any more; likewise.

    Attributes:
        meta: the model.
        deadline_ns: that sub-calls inherit.
        is_over: nobody waits for the answer any more, or it is there.
        started_ns: instant at which `run` was called; 0 before.
    """

    def __init__(
        self,
        meta: Model,
        inputs: Tensors,
        deadline_ns: int,
        host: MetaHost,
        *,
        begin: Callable[[Sequence[SubCalls]], object],
        withdraw: Callable[[SubCalls], object],
    ) -> None:
        self.meta = meta
        self.deadline_ns = deadline_ns
        self.is_over = False
        self.started_ns = 0
        self._inputs = inputs
        self._host = host
        self._begin = begin
        self._withdraw = withdraw
        self._scratch: Reservation | None = None
        self._has_returned = False
        self._returning = threading.Lock()  # against threads that ask for scratch memory late
        self._waits_for: Reservation | None = None
        self._asked_for_scratch = itertools.count()  # counts in one step, whichever thread asks
        self._task: _Task | None = None

    def execute(self) -> list[Array]:
        """Call `run`, and check what it returns.

        Returns:
            One array per client-facing output, in order; none of them in scratch memory.

        Raises:
            InvalidInput: the author refused the input.
            SubCallFailed: a sub-call failed, and the author let it through.
            HookFailed: anything else the author raised, with the author's line, or what was
                returned does not fit.
            Cancelled: nobody waits any more.

        Threading: a thread of its own, for as long as `run` takes.
        """
        self.started_ns = self._host.now_ns()
        meta, hooks = self.meta, self.meta.hooks
        assert hooks is not None, "a meta model has a hook file"
        try:
            if self.is_over:
                raise Abandoned
            given = hook_tensors(self._inputs.keys(), self._inputs.values())
            result = call_hook(
                meta.name, "run", hooks.directory, self._call_author, given,
                passed=(Abandoned, asyncio.CancelledError),
            )  # fmt: skip
            arrays = check_tensors(meta.name, "run", meta.outputs, result)
            return [self._apart(array) for array in arrays]
        except Abandoned:
            raise Cancelled(meta.name) from None
        except asyncio.CancelledError as error:
            if self.is_over:
                raise Cancelled(meta.name) from None
            raise HookFailed(meta.name, "run", "it cancelled itself") from error
        finally:
            with self._returning:
                self._has_returned = True
                if self._scratch is not None:
                    self._scratch.release()

    def _call_author(self, given: TensorList) -> object:
        hooks = self.meta.hooks
        assert hooks is not None, "a meta model has a hook file"
        assert hooks.run is not None, "it registers its function"
        if hooks.is_async:
            return asyncio.run(self._call_async(hooks.run, given))
        return hooks.run(given, MetaCall(self))

    async def _call_async(self, run: Callable[..., Any], given: TensorList) -> object:
        task = asyncio.current_task()
        assert task is not None, "asyncio.run runs a task"
        self._task = (asyncio.get_running_loop(), task)
        if self.is_over:  # it ended before anybody could cancel the task
            raise Abandoned
        return await run(given, AsyncMetaCall(self))

    def _apart(self, array: Array) -> Array:
        """The array, or a copy when it lies in memory that the next request gets."""
        if self._scratch is not None and np.may_share_memory(array, self._scratch.memory):
            return array.copy()
        return array

    @property
    def has_returned(self) -> bool:
        """False while `run` has a thread. Any thread."""
        return self._has_returned or not self.started_ns

    @override
    def check(self, model: str) -> None:
        if self.is_over:
            raise Abandoned
        declared = self.meta.manifest.calls
        if model not in declared:
            known = ", ".join(map(repr, declared)) or "none"
            raise ValueError(
                f"model {model!r} is not declared in meta.calls of the manifest, which has {known};"
                " add it there"
            )
        late_ns = self._host.now_ns() - self.deadline_ns
        if late_ns >= 0:
            raise SubCallFailed(self.meta.name, model, DeadlineExceeded(model, late_ns))

    @override
    def issue(self, calls: Sequence[SubCalls]) -> None:
        try:
            self._host.post(self._begin, calls)
        except RuntimeError:  # the server has ended
            raise Abandoned from None

    @override
    def withdraw(self, calls: SubCalls) -> None:
        with suppress(RuntimeError):  # the server has ended, and its sub-calls with it
            self._host.post(self._withdraw, calls)

    @override
    def take_scratch(self, wanted: Sequence[Wanted]) -> list[Array]:
        if next(self._asked_for_scratch):
            raise RuntimeError(
                "call.scratch was used before in this request; ask for all buffers at once:"
                " call.scratch([(shape, dtype), ...])"
            )
        pool, nbytes = self._host.scratch, needed_bytes(wanted)
        if pool is None:
            return cut_arrays(fresh_memory(nbytes), wanted)
        reservation = pool.reserve(nbytes)
        self._waits_for = reservation
        if self.is_over:  # then nobody cancels it any more
            reservation.cancel()
        if not reservation.wait(self._remaining_s()):
            if self.is_over:
                raise Abandoned
            raise DeadlineExceeded(self.meta.name, self._host.now_ns() - self.deadline_ns)
        with self._returning:
            if self._has_returned:  # a thread that `run` has left behind
                reservation.release()
                raise Abandoned
            self._scratch = reservation
        return cut_arrays(reservation.memory, wanted)

    def _remaining_s(self) -> float | None:
        if self.deadline_ns == NEVER_NS:
            return None
        return max(0, self.deadline_ns - self._host.now_ns()) * 1e-9

    def end(self) -> None:
        """Say that nobody waits for the answer any more: `run` ends at its next call.

        Threading: loop thread. Sub-calls on their way are its caller's to withdraw.
        """
        self.is_over = True
        self._inputs = {}  # it may stand in the queue of its threads for long
        if self._waits_for is not None:
            self._waits_for.cancel()
        if self._task is not None:
            loop, task = self._task
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)
