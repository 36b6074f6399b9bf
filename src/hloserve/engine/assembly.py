"""Rows of several requests in one batch, and back.

What lives here: copying rows together into aligned staging memory, cutting results into views, and
splitting and joining a request that is larger than any program. What does not: deciding what goes
together (`hloserve.engine.scheduling.batching`). `StagingArea` belongs to whoever owns the device;
the functions are pure.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any

import numpy as np

from hloserve.core.errors import BackendFailed
from hloserve.core.tensors import Array, TensorSpec
from hloserve.engine.backend import ALIGNMENT_BYTES, Backend
from hloserve.engine.scheduling.batching import split_rows

__all__ = [
    "StagingArea",
    "assemble",
    "check_outputs",
    "is_transferable",
    "join_outputs",
    "slice_rows",
    "split_inputs",
]


class StagingArea:
    """Aligned host memory that batches are assembled in, used again for each dispatch.

    An area serves every model, variant and size, and one dispatch at a time; there are as many as
    dispatches in flight. So memory is bounded by the largest dispatch, not by the number of models,
    and stays warm in the cache.

    Rule: nothing is written from `assemble` until the dispatch has ended, since the device may read
    the memory in place. Threading: the one that owns the device.

    Args:
        backend: the device that pins the memory, so that it reads it without a copy between; None
            for one that needs no pins.
    """

    __slots__ = ("_backend", "_memory", "_outgrown", "_pinned", "_used_bytes", "_views")

    def __init__(self, backend: Backend | None = None) -> None:
        self._backend = backend
        self._memory = _aligned_memory(0)
        self._outgrown: list[Array] = []  # pinned memory that the dispatch may still use
        self._pinned: Array | None = None
        self._used_bytes = 0
        self._views: dict[tuple[int, tuple[int, ...], np.dtype[Any]], Array] = {}

    @property
    def capacity_bytes(self) -> int:
        """What it has grown to."""
        return self._memory.nbytes

    def start(self) -> None:
        """Begin a new dispatch: what was handed out before may be overwritten from now on."""
        self._used_bytes = 0
        if self._outgrown:
            self._unpin_outgrown()

    def close(self) -> None:
        """Give the memory up: no dispatch uses it any more."""
        self._replace_memory(0)
        self._unpin_outgrown()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An aligned, C-contiguous array of unspecified content.

        It does not overlap another one taken since `start`.
        """
        view = self._views.get((self._used_bytes, shape, dtype))
        if view is None:
            view = self._make_view(shape, dtype)
        self._used_bytes += -(-view.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return view

    def _make_view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        if self._used_bytes + nbytes > self._memory.nbytes:
            # What this dispatch has taken keeps the old memory alive until it ends.
            self._replace_memory(max(self._used_bytes + nbytes, 2 * nbytes))
        if len(self._views) >= _VIEWS_KEPT:
            self._views.clear()
        view: Array = np.ndarray(shape, dtype, self._memory.data, self._used_bytes)
        self._views[self._used_bytes, shape, dtype] = view
        return view

    def _replace_memory(self, nbytes: int) -> None:
        if self._pinned is not None:
            self._outgrown.append(self._pinned)
            self._pinned = None
        self._memory = _aligned_memory(nbytes)
        self._views.clear()
        self._used_bytes = 0
        if self._backend is not None and nbytes and self._backend.pin(self._memory):
            self._pinned = self._memory

    def _unpin_outgrown(self) -> None:
        for memory in self._outgrown:
            assert self._backend is not None, "somebody pinned the memory"
            self._backend.unpin(memory)
        self._outgrown.clear()


_VIEWS_KEPT = 1024
"""Making a view costs 1 us; a model of a few inputs and sizes needs a few dozen."""


def _aligned_memory(nbytes: int) -> Array:
    raw = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[skip : skip + nbytes]


def is_transferable(array: Array) -> bool:
    """True when a device takes the array as it lies: C-contiguous and aligned.

    A misaligned array would be copied inside XLA, which is slower than copying it into staging.
    """
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT_BYTES == 0


_SMALL_BYTES = 8192
"""Up to this size a copy is cheaper than asking numpy where an array lies (about 1.5 us)."""


def assemble(
    specs: Sequence[TensorSpec],
    requests: Sequence[Sequence[Array]],
    rows: int,
    size: int,
    staging: StagingArea,
) -> list[Array]:
    """Lay the rows of several requests together, each input along its own batch axis.

    A large input of a lone request that fills the program goes through as it is if the device can
    take it so; every other one is copied into `staging`, followed by zeros.

    Args:
        specs: the model's inputs.
        requests: inputs of each request, in the order of `specs`; not empty.
        rows: rows they carry together.
        size: rows of the program, at least `rows`; 0 for a program that takes a lone request as
            it comes.
        staging: of this dispatch alone.

    Shapes:
        requests: each input with its own rows along the batch axis of its spec.
        result: one array per spec, `size` rows along its batch axis.
    """
    staging.start()
    if len(requests) == 1 and (
        size in (0, rows) or not any(s.batch_axis is not None for s in specs)
    ):
        return [_lone(array, staging) for array in requests[0]]
    return [
        _merged(spec.batch_axis, [inputs[place] for inputs in requests], rows, size, staging)
        for place, spec in enumerate(specs)
    ]


def _lone(array: Array, staging: StagingArea) -> Array:
    if array.nbytes > _SMALL_BYTES and is_transferable(array):
        return array
    copy = staging.take(array.shape, array.dtype)
    copy[...] = array
    return copy


def _merged(
    axis: int | None, parts: list[Array], rows: int, size: int, staging: StagingArea
) -> Array:
    assert axis is not None, "only a model whose inputs all have a batch axis is coalesced"
    first = parts[0]
    batch = staging.take((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype)
    before = (slice(None),) * axis
    np.concatenate(parts, axis, out=batch if rows == size else batch[(*before, slice(0, rows))])
    if rows != size:
        batch[(*before, slice(rows, size))] = 0
    return batch


def check_outputs(
    model: str, specs: Sequence[TensorSpec], outputs: Sequence[Array], rows: int | None
) -> None:
    """Refuse results that do not have the declared shapes, before anybody gets wrong rows.

    Args:
        model: for the error text.
        specs: the model's outputs.
        outputs: what came back.
        rows: extent of their batch axes; None when the inputs do not decide it.

    Raises:
        BackendFailed: a result is missing, or has another rank, extent or row count.
    """
    if len(outputs) != len(specs):
        raise BackendFailed(
            "execution", model, f"it gave {len(outputs)} results, {len(specs)} are declared"
        )
    for spec, output in zip(specs, outputs, strict=True):
        if not _fits(spec, output.shape, rows):
            extents = [
                rows if axis == spec.batch_axis else extent
                for axis, extent in enumerate(spec.shape)
            ]
            wanted = ", ".join("?" if extent is None else str(extent) for extent in extents)
            raise BackendFailed(
                "execution",
                model,
                f"output {spec.name!r} came with shape {list(output.shape)}, expected [{wanted}]",
            )


def _fits(spec: TensorSpec, shape: tuple[int, ...], rows: int | None) -> bool:
    if len(shape) != len(spec.shape):
        return False
    for want, have in zip(spec.shape, shape, strict=True):  # all() would cost 1 us more
        if want is not None and want != have:
            return False
    return rows is None or spec.batch_axis is None or shape[spec.batch_axis] == rows


def slice_rows(
    specs: Sequence[TensorSpec], outputs: Sequence[Array], rows: Sequence[int]
) -> list[list[Array]]:
    """Cut a batch's outputs into those of each request.

    An output without a batch axis belongs to the batch as a whole: every request gets all of it.

    Args:
        specs: the model's outputs; not empty.
        outputs: in the same order.
        rows: of each request, in the order in which they were laid together.

    Shapes:
        outputs: each with at least as many rows along its batch axis as the requests together.
        result: per request, each output with the request's rows; views, not copies.
    """
    bounds = list(pairwise(accumulate(rows, initial=0)))
    columns: list[Iterable[Array]] = []
    for spec, output in zip(specs, outputs, strict=True):
        axis = spec.batch_axis
        if axis is None:
            columns.append(repeat(output, len(bounds)))
        elif axis == 0:
            columns.append([output[start:stop] for start, stop in bounds])
        else:
            before = (slice(None),) * axis
            columns.append([output[(*before, slice(start, stop))] for start, stop in bounds])
    return list(map(list, zip(*columns, strict=True)))


def split_inputs(
    specs: Sequence[TensorSpec], inputs: Sequence[Array], rows: int, largest: int
) -> list[tuple[int, list[Array]]]:
    """Cut a request into parts of at most `largest` rows: (rows, views of the inputs) each.

    Every input needs a batch axis: it is for models that can coalesce.
    """
    parts = split_rows(rows, largest)
    return list(zip(parts, slice_rows(specs, inputs, parts), strict=True))


def join_outputs(specs: Sequence[TensorSpec], parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Put the outputs of a request's parts together again, in order.

    Every output needs a batch axis: it is for models that can coalesce.
    """
    if len(parts) == 1:
        return list(parts[0])
    return [
        np.concatenate([part[place] for part in parts], axis=spec.batch_axis)
        for place, spec in enumerate(specs)
    ]
