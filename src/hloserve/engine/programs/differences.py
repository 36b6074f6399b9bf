"""How far two arrays of one type are apart.

What lives here: errors and signals of outputs. What does not: what passes
(`hloserve.export.proof.figures`, `hloserve.models.row_check`). Pure; any thread.
"""

from dataclasses import dataclass
from itertools import pairwise

import ml_dtypes
import numpy as np

from hloserve.core.tensors import Array

__all__ = ["Comparison", "compare", "epsilon", "is_float", "row_signal", "signal_between"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output of a program beside the source's, for one input.

    Attributes:
        error: as in `OutputProof`.
        scale: the largest finite value of the source, in size; 0 for integers and bools.
        misplaced: elements where only one side is NaN, infinite, or infinite with that sign.
        unfinite: elements of the source that are NaN or infinite.
        size: number of elements.
    """

    error: float
    scale: float
    misplaced: int
    unfinite: int
    size: int


def is_float(dtype: np.dtype[np.generic]) -> bool:
    """True for every float type of bundles; numpy calls some of them void."""
    return dtype.kind in "fV"


def epsilon(dtype: np.dtype[np.generic]) -> float:
    """The step from 1 to the next number of a float type."""
    return float(ml_dtypes.finfo(dtype).eps)


def compare(want: Array, got: Array) -> Comparison:
    """Compare a program's output with the source's; both of one shape and dtype."""
    if want.size == 0:
        return Comparison(0.0, 0.0, 0, 0, 0)
    if not is_float(want.dtype):
        return Comparison(float((want != got).mean()), 0.0, 0, 0, want.size)
    want, got = _wide(want), _wide(got)
    finite = np.isfinite(want)
    unfinite = want.size - int(np.count_nonzero(finite))
    both = finite & np.isfinite(got)
    same_specials = ~finite & ((want == got) | (np.isnan(want) & np.isnan(got)))
    misplaced = want.size - int(np.count_nonzero(both | same_specials))
    error = _largest_difference(want, got, both)
    scale = _largest(np.where(finite, want, 0))
    return Comparison(error, scale, misplaced, unfinite, want.size)


def signal_between(first: Array, second: Array) -> float:
    """How far an output moves from one input to another; NaN and infinities do not count."""
    if first.size == 0:
        return 0.0
    if not is_float(first.dtype):
        return float((first != second).mean())
    first, second = _wide(first), _wide(second)
    both = np.isfinite(first) & np.isfinite(second)
    return _largest_difference(first, second, both)


def row_signal(output: Array, batch_axis: int) -> float:
    """The signal within one output whose rows come of different inputs.

    Returns:
        The median over neighbouring rows, so that it is comparable with that of two inputs
        however many rows there are.
    """
    rows = np.moveaxis(output, batch_axis, 0)
    return float(np.median([signal_between(a, b) for a, b in pairwise(rows)]))


def _wide(array: Array) -> Array:
    """The array in a type in which differences are exact enough, without a copy where it is."""
    return array if array.dtype.itemsize >= 4 else array.astype(np.float32)


def _largest_difference(first: Array, second: Array, where: Array) -> float:
    with np.errstate(over="ignore"):  # infinite is what such a difference then is
        return _largest(np.subtract(first, second, out=np.zeros_like(first), where=where))


def _largest(array: Array) -> float:
    return float(max(array.max(), -array.min())) if array.size else 0.0
