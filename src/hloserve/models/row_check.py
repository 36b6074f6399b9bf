"""Whether the answer of a row depends on the other rows of its batch.

What lives here: the batches that tell, and what they told. What does not: running them
(`hloserve.models.bundle_run`, `hloserve.export.proof.rows`), and what is done about it. Pure but
for the caller's `run`; one thread.

A server merges rows of different requests into one batch, and fills it up with zeros. Rules.
1. *Others*: with zeros in place of all rows but the first, the first row's answer stays. Program
   and place are the same, so it stays to the last bit; more than one step of its type is influence.
2. *Place*: without the first row, and another one at the end, the answers of the rest move with
   them. In another place rounding may differ, so they may be off by a share of the signal: the root
   of the step of the coarsest type that is computed with.
3. NaN and infinities must stay where they are. A row of nothing else cannot show an influence.
4. What the program does to the same batch run twice (sums in another order) is no influence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from hloserve.core.tensors import Array, TensorSpec
from hloserve.engine.programs.differences import compare, epsilon, is_float, row_signal

__all__ = ["Batch", "Influenced", "allowed_share", "find_influences", "merges_rows"]

Influence = Literal["others", "place"]

_NEAR_TIES = 1e-3
_ABOVE_NOISE = 10


@dataclass(frozen=True, slots=True)
class Influenced:
    """An output whose rows are not independent.

    Attributes:
        name: the output.
        by: what its answer depends on.
        error: how far a row's answer moves; of integers and bools, the share that changes;
            infinite where numbers become NaN or infinite, or the other way round.
        signal: how far the output moves from one row to the next.
    """

    name: str
    by: Influence
    error: float
    signal: float

    @override
    def __str__(self) -> str:
        why = {
            "others": "the rows influence each other: with zeros in place of the other rows of its"
            " batch, the answer of a row",
            "place": "the rows influence each other: one place further up, without the first row"
            " of its batch, the answer of a row",
        }[self.by]
        if self.error == float("inf"):
            return f"output {self.name!r}: {why} turns into NaN or infinity, or stops being it"
        share = f" ({self.error / self.signal:.1%} of its signal)" if self.signal else ""
        return f"output {self.name!r}: {why} moves by {self.error:.2g}{share}"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that a program was run on, and another one.

    Attributes:
        inputs: of more than one row.
        others: of the same types; its last row is of use.
        axes: batch axis of each input.
        results: what the program made of `inputs`.
    """

    inputs: Sequence[Array]
    others: Sequence[Array]
    axes: Sequence[int]
    results: Sequence[Array]

    def padded(self) -> list[Array]:
        """The first row, and zeros."""
        padded = [array.copy() for array in self.inputs]
        for array, axis in zip(padded, self.axes, strict=True):
            np.moveaxis(array, axis, 0)[1:] = 0
        return padded

    def moved(self) -> list[Array]:
        """All rows but the first, then one of the others."""
        moved = [array.copy() for array in self.others]
        for array, before, axis in zip(moved, self.inputs, self.axes, strict=True):
            np.moveaxis(array, axis, 0)[:-1] = np.moveaxis(before, axis, 0)[1:]
        return moved


def merges_rows(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], size: int) -> bool:
    """Whether servers merge and pad the rows of a program of this batch size."""
    specs = (*inputs, *outputs)
    return size > 1 and bool(inputs) and all(spec.batch_axis is not None for spec in specs)


def allowed_share(dtypes: Iterable[np.dtype[np.generic]]) -> float:
    """The share of the signal that rule 2 allows a model of these types."""
    steps = [epsilon(dtype) for dtype in dtypes if is_float(dtype)]
    return max(_NEAR_TIES, max(steps) ** 0.5) if steps else 0.0


def find_influences(
    run: Callable[[Sequence[Array]], Sequence[Array]],
    batch: Batch,
    outputs: Sequence[TensorSpec],
    share: float,
    tolerance: float = 0.0,
) -> list[Influenced]:
    """Run a program on the two batches that show whether its rows influence each other.

    Args:
        run: the program, of more than one row; returns arrays that stay.
        batch: what it was run on.
        outputs: all with a batch axis.
        share: see `allowed_share`.
        tolerance: share of the signal that is no influence whatever the types.
    """
    padded, moved = run(batch.padded()), run(batch.moved())
    found: dict[int, Influenced] = {}
    for number, spec in enumerate(outputs):
        before, alone, moved_up = (
            np.moveaxis(each[number], spec.batch_axis or 0, 0)
            for each in (batch.results, padded, moved)
        )
        signal = row_signal(before, 0)
        step = epsilon(before.dtype) if is_float(before.dtype) else 0.0
        trials: tuple[tuple[Influence, Array, Array, float], ...] = (
            ("others", before[:1], alone[:1], tolerance),
            ("place", before[1:], moved_up[:-1], max(share, tolerance)),
        )
        for by, want, got, of_signal in trials:
            compared = compare(want, got)
            error = float("inf") if compared.misplaced else compared.error
            if error > max(of_signal * signal, step * compared.scale):
                found.setdefault(number, Influenced(spec.name, by, error, signal))
    return _above_noise(run, batch, found) if found else []


def _above_noise(
    run: Callable[[Sequence[Array]], Sequence[Array]],
    batch: Batch,
    found: dict[int, Influenced],
) -> list[Influenced]:
    again = run(batch.inputs)
    return [
        influenced
        for number, influenced in found.items()
        if influenced.error > _ABOVE_NOISE * compare(batch.results[number], again[number]).error
    ]
