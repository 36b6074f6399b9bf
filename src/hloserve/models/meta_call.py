"""What `run` of a meta model calls other models with.

What lives here: `MetaCall` for plain functions, `AsyncMetaCall` for `async` ones, and the sub-calls
that they issue. What does not: who carries those out (`hloserve.server.metas`) and the request that
they belong to (`hloserve.models.meta_run`). Called by authors' code: on the thread of `run`, or on
threads that it has started.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import index
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np

from hloserve.core.errors import HloserveError
from hloserve.core.strings import is_text, strings_from
from hloserve.core.tensors import Array, Tensors
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_results import hook_tensors
from hloserve.models.scratch import Wanted

__all__ = ["Abandoned", "AsyncMetaCall", "Calling", "MetaCall", "Outcome", "SubCalls"]


class Abandoned(BaseException):
    """Ends `run` when nobody waits for its answer any more.

    Not an `Exception`: a `run` that handles errors of sub-calls must not go on with nobody there.
    `finally` blocks run.
    """


Outcome: TypeAlias = "list[Tensors] | HloserveError | Abandoned"
"""What became of sub-calls: their outputs in order, or why there are none."""


class SubCalls:
    """Calls of one model that are answered together.

    Attributes:
        model: the name of the sub-model.
        inputs: of each call.
        outputs: names of the outputs that are wanted; empty for all.

    Args:
        settle: gets the outcome, once, on the loop thread.
    """

    __slots__ = ("inputs", "model", "outputs", "settle")

    def __init__(
        self,
        model: str,
        inputs: Sequence[Tensors],
        outputs: tuple[str, ...],
        settle: Callable[[Outcome], object],
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.outputs = outputs
        self.settle = settle


class Calling(Protocol):
    """The request that calls belong to; any thread."""

    def check(self, model: str) -> None:
        """Refuse a call that must not be made.

        Raises:
            ValueError: the model is not declared.
            SubCallFailed: the deadline has passed.
            Abandoned: nobody waits any more.
        """
        ...

    def issue(self, calls: Sequence[SubCalls]) -> None:
        """Have calls carried out; those of the same model reach its queue together."""
        ...

    def withdraw(self, calls: SubCalls) -> None:
        """Say that nobody waits for these."""
        ...

    def take_scratch(self, wanted: Sequence[Wanted]) -> list[Array]:
        """Buffers for the time of the request."""
        ...


class _AnyCall:
    """What both kinds of `call` share."""

    def __init__(self, run: Calling) -> None:
        self._run = run

    def scratch(self, shape: Any, dtype: Any = None) -> Any:
        """Get buffers that are valid until `run` returns, instead of memory of their own.

        They come from one block that all requests share; a request waits for its part of it. What
        they hold at first is arbitrary. What `run` returns may lie in them: it is copied.

        Args:
            shape: of one array, or a list of (shape, dtype) pairs for several.
            dtype: of the one array; anything that NumPy takes.

        Returns:
            An array, or a list of arrays; C-contiguous and aligned.

        Raises:
            RuntimeError: the request has had its buffers already; ask for all of them at once.
            ValueError: they are larger than the block (`metas.scratch_bytes`), or empty.
            DeadlineExceeded: there was no room before the deadline.
        """
        if dtype is not None:
            return self._run.take_scratch([_wanted(shape, dtype)])[0]
        return self._run.take_scratch([_wanted(*pair) for pair in shape])

    def _calls(
        self,
        model: str,
        inputs: Iterable[Any],
        requested_outputs: Iterable[str],
        settle: Callable[[Outcome], object],
    ) -> SubCalls:
        self._run.check(model)
        arrays = [_named_arrays(model, each) for each in inputs]
        return SubCalls(model, arrays, tuple(requested_outputs), settle)


class MetaCall(_AnyCall):
    """Calls other models, and waits for their answers. Any thread of the request."""

    def __call__(self, name: str, inputs: Any, requested_outputs: Iterable[str] = ()) -> TensorList:
        """Call a model, with its own hooks around it.

        Args:
            name: one of the manifest's `meta.calls`.
            inputs: a dict of arrays or a list of `NamedTensor`, as clients would send them. Not
                copied: leave them alone until this returns.
            requested_outputs: names, in the order wanted; empty for all.

        Returns:
            Copies, which are the caller's to write into.

        Raises:
            SubCallFailed: it failed; `code` says how.
            ValueError: the model is not declared, or the inputs are no named arrays.
        """
        return self._wait(name, [inputs], requested_outputs)[0]

    def map(
        self, name: str, inputs: Iterable[Any], requested_outputs: Iterable[str] = ()
    ) -> list[TensorList]:
        """Call a model several times at once; the calls share batches.

        Args:
            name: one of the manifest's `meta.calls`.
            inputs: one set of inputs per call.
            requested_outputs: names, in the order wanted; empty for all.

        Returns:
            The outputs of each call, in order.

        Raises:
            SubCallFailed: one of them failed; the others are withdrawn.
            ValueError: as for a single call.
        """
        return self._wait(name, inputs, requested_outputs)

    def _wait(
        self, name: str, inputs: Iterable[Any], requested_outputs: Iterable[str]
    ) -> list[TensorList]:
        arrived: SimpleQueue[Outcome] = SimpleQueue()
        calls = self._calls(name, inputs, requested_outputs, arrived.put)
        if not calls.inputs:
            return []
        self._run.issue([calls])
        return _copies(arrived.get())


class AsyncMetaCall(_AnyCall):
    """The same for an `async` `run`: await the calls, several at once by `asyncio.gather`.

    Calls that are made in one step of the event loop reach the queue together, so they share
    batches. On the thread of `run`, inside its event loop.
    """

    def __init__(self, run: Calling) -> None:
        super().__init__(run)
        self._loop = asyncio.get_running_loop()
        self._collected: list[SubCalls] = []

    async def __call__(
        self, name: str, inputs: Any, requested_outputs: Iterable[str] = ()
    ) -> TensorList:
        """Call a model; see `MetaCall.__call__`."""
        return (await self._answers(name, [inputs], requested_outputs))[0]

    async def map(
        self, name: str, inputs: Iterable[Any], requested_outputs: Iterable[str] = ()
    ) -> list[TensorList]:
        """Call a model several times at once; see `MetaCall.map`."""
        return await self._answers(name, inputs, requested_outputs)

    async def _answers(
        self, name: str, inputs: Iterable[Any], requested_outputs: Iterable[str]
    ) -> list[TensorList]:
        arrived: asyncio.Future[Outcome] = self._loop.create_future()

        def settle(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop of `run` has ended, and nobody waits
                self._loop.call_soon_threadsafe(_arrive, arrived, outcome)

        calls = self._calls(name, inputs, requested_outputs, settle)
        if not calls.inputs:
            return []
        if not self._collected:
            self._loop.call_soon(self._issue)
        self._collected.append(calls)
        try:
            return _copies(await arrived)
        except asyncio.CancelledError:
            self._run.withdraw(calls)
            raise

    def _issue(self) -> None:
        collected, self._collected = self._collected, []
        self._run.issue(collected)


def _arrive(arrived: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not arrived.done():
        arrived.set_result(outcome)


def _copies(outcome: Outcome) -> list[TensorList]:
    if isinstance(outcome, BaseException):
        raise outcome
    return [hook_tensors(outputs.keys(), outputs.values()) for outputs in outcome]


def _wanted(shape: Any, dtype: Any) -> Wanted:
    element = np.dtype(dtype)
    if element.hasobject:
        raise ValueError(f"scratch memory holds numbers, not {element}")
    extents = tuple(index(extent) for extent in (shape if np.iterable(shape) else (shape,)))
    if min(extents, default=0) < 0:
        raise ValueError(f"scratch of shape {extents}: extents must not be negative")
    return extents, element


def _named_arrays(model: str, given: Any) -> Tensors:
    """The inputs of a call, by name: C-contiguous, of native byte order, text as bytes."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list | tuple) and all(_is_pair(entry) for entry in given):
        pairs = [tuple(entry) for entry in given]
    else:
        kind = type(given).__name__
        raise ValueError(
            f"inputs of the call to {model!r} are a {kind}, expected a dict of arrays or a list of"
            " NamedTensor"
        )
    arrays: Tensors = {}
    for name, value in pairs:
        if not isinstance(name, str) or name in arrays:
            raise ValueError(f"the call to {model!r} has {name!r} twice, or as no string")
        arrays[name] = _plain_array(model, name, value)
    return arrays


def _is_pair(entry: object) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2


def _plain_array(model: str, name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        kind = type(value).__name__
        raise ValueError(
            f"input {name!r} of the call to {model!r} is a {kind}, expected a NumPy array"
        )
    array = np.asarray(value, order="C")
    if is_text(array):
        return strings_from(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
