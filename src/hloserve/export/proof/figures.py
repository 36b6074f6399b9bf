"""The arithmetic of the proof: how far a program is off, and against what that is judged.

What lives here: tolerance and verdict of one output. What does not: making the arrays
(`hloserve.export.proof.prove`), error and signal (`hloserve.engine.programs.differences`). Pure;
any thread.

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

import numpy as np

from hloserve.core.dtypes import by_numpy
from hloserve.core.tensors import Array
from hloserve.engine.programs.differences import Comparison, epsilon, is_float
from hloserve.export.report import OutputProof

__all__ = ["TOLERANCES", "default_tolerance", "judge"]

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


def default_tolerance(output: Array, others: Iterable[np.dtype[np.generic]]) -> float:
    """The tolerance of an output of a model with inputs and weights of these types."""
    floats = [dtype for dtype in others if is_float(dtype)]
    if not is_float(output.dtype):
        return NEAR_TIES if floats else 0.0
    tokens = {by_numpy(dtype).token for dtype in floats}
    tokens = {_STORAGE_ONLY.get(token, token) for token in tokens} | {by_numpy(output.dtype).token}
    return max(TOLERANCES[token] for token in tokens)


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
