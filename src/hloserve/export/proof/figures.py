"""The arithmetic of the proof: how far a program is off, and against what that is judged.

What lives here: error, signal and verdict of one output. What does not: making the arrays
(`hloserve.export.proof.prove`). Pure; any thread.

Rules.
1. A float output passes when its error is at most `tolerance` times its signal. The error is the
   largest difference of an element between program and source; the signal is how far an element of
   the *source's* output moves between two inputs. Against the output itself an error would look
   small whenever a large constant part hides that the rest is wrong.
2. Without enough signal for that, an output passes when it agrees to the last bits of its largest
   value. It is then not proved: so does a program that ignores its inputs.
3. Integers and bools are counted: the error is the share of elements that differ, the signal the
   share that changes between two inputs, and the rule is the same. Where the model computes with
   floats, one in a thousand may differ: there, two values that are equal but for rounding may be
   ordered either way (argmax), or fall on either side of a threshold. Otherwise none may.
4. NaN and infinities must be in the same places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloserve.core.dtypes import by_numpy
from hloserve.core.tensors import Array
from hloserve.export.proof.inputs import epsilon, is_float
from hloserve.export.report import OutputProof

__all__ = [
    "TOLERANCES",
    "Comparison",
    "compare",
    "default_tolerance",
    "judge",
    "row_signal",
    "signal_between",
]

TOLERANCES = {
    "f64": 1e-9,
    "f32": 1e-3,
    "f16": 3e-2,
    "bf16": 2e-1,
    "f8_e4m3": 0.5,
    "f8_e5m2": 0.5,
}
"""Largest error of a float output, as a share of its signal, by the coarsest type it went through.

Of f32: deep models give 1e-5 to 2e-4 by rounding alone, whatever runs them, and so does an
operation that is approximated (GELU by tanh); a wrong operation or argument gives 1e-2 and more.
"""
NEAR_TIES = 1e-3
_LAST_BITS, _COARSEST = 4, 0.05
_STORAGE_ONLY = {"f8_e4m3": "bf16", "f8_e5m2": "bf16"}  # weights of these are widened to compute


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


def default_tolerance(output: Array, others: Iterable[np.dtype[np.generic]]) -> float:
    """The tolerance of an output of a model with inputs and weights of these types."""
    floats = [dtype for dtype in others if is_float(dtype)]
    if not is_float(output.dtype):
        return NEAR_TIES if floats else 0.0
    tokens = {by_numpy(dtype).token for dtype in floats}
    tokens = {_STORAGE_ONLY.get(token, token) for token in tokens} | {by_numpy(output.dtype).token}
    return max(TOLERANCES[token] for token in tokens)


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


def judge(
    name: str, output: Array, comparisons: Sequence[Comparison], signal: float, tolerance: float
) -> tuple[OutputProof, bool]:
    """The figures of an output over all inputs that were run, and whether it passes.

    Args:
        name: the output.
        output: the source's, for its dtype.
        comparisons: one per input.
        signal: of the source.
        tolerance: largest error as a share of the signal.
    """
    error = max(comparison.error for comparison in comparisons)
    scale = max(comparison.scale for comparison in comparisons)
    last_bits = _last_bits(output.dtype) * scale
    is_proved = signal > last_bits and error <= tolerance * signal
    passes = (is_proved or error <= last_bits) and not any(c.misplaced for c in comparisons)
    note = ""
    if any(comparison.unfinite for comparison in comparisons):
        unfinite = max(c.unfinite / c.size for c in comparisons if c.size)
        note = f"{unfinite:.0%} of the source's values are NaN or infinite"
    token = by_numpy(output.dtype).token
    return OutputProof(name, token, error, signal, tolerance, is_proved and passes, note), passes


def _last_bits(dtype: np.dtype[np.generic]) -> float:
    return min(_LAST_BITS * epsilon(dtype), _COARSEST) if is_float(dtype) else 0.0


def _wide(array: Array) -> Array:
    """The array in a type in which differences are exact enough, without a copy where it is."""
    return array if array.dtype.itemsize >= 4 else array.astype(np.float32)


def _largest_difference(first: Array, second: Array, where: Array) -> float:
    with np.errstate(over="ignore"):  # infinite is what such a difference then is
        return _largest(np.subtract(first, second, out=np.zeros_like(first), where=where))


def _largest(array: Array) -> float:
    return float(max(array.max(), -array.min())) if array.size else 0.0
