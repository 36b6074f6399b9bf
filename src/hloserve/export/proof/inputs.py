"""Random inputs for the proof, made to fit the domain of the model.

What lives here: drawing arrays like an example, and changing one in its last bit. What does not:
what is done with them (`hloserve.export.proof.prove`). Pure but for the generator; one thread.

Rules.
1. Floats follow the distribution of the example's values, between the smallest and the largest,
   and are distinct as far as the dtype allows, so that whatever is exchanged shows. An example that
   is the same everywhere says nothing: zeros give standard normal values, other values give what
   lies within half of them, so that the sign stays.
2. Of a float example of few different values (a mask of 0 and -inf) those are drawn, no others.
3. Integers and bools lie between the smallest and the largest value of the example, both included:
   an index beyond them may be one that the model does not have. Where all are equal they stay.
"""

from collections.abc import Sequence

import numpy as np

from hloserve.core.tensors import Array
from hloserve.engine.programs.differences import epsilon, is_float

__all__ = ["draw_like", "is_fixed", "nudge"]

_FEW = 8
_MOST_LOOKED_AT = 100_000


def is_fixed(example: Array) -> bool:
    """True for an example that `draw_like` repeats: integers or bools, the same everywhere."""
    if is_float(example.dtype):
        return False
    return example.size == 0 or bool((example == example.reshape(-1)[0]).all())


def draw_like(example: Array, shape: Sequence[int], generator: np.random.Generator) -> Array:
    """Draw an array of `shape` and the example's dtype, with values like the example's."""
    if is_float(example.dtype):
        values = _draw_floats(example, tuple(shape), generator)
    elif example.size == 0:
        values = np.zeros(shape, example.dtype)
    elif example.dtype == np.bool_:
        values = generator.integers(int(example.min()), int(example.max()) + 1, shape)
    else:
        values = generator.integers(
            example.min(), example.max(), shape, dtype=example.dtype, endpoint=True
        )
    return np.asarray(values).astype(example.dtype, order="C").reshape(shape)


def nudge(array: Array) -> Array:
    """The array with every float a step of its type larger in size; others as they are."""
    if not is_float(array.dtype):
        return array
    with np.errstate(over="ignore"):
        moved: Array = (array.astype(np.float64) * (1 + epsilon(array.dtype))).astype(array.dtype)
    return moved


def _draw_floats(example: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    seen: Array = example.reshape(-1)[:: max(1, example.size // _MOST_LOOKED_AT)].astype(np.float64)
    values = np.unique(seen)
    finite = values[np.isfinite(values)]
    drawn: Array
    if len(values) != len(finite) or _is_discrete(values, seen):
        drawn = generator.choice(values, shape)
    elif len(finite) == 0 or (len(finite) == 1 and finite[0] == 0):
        drawn = generator.standard_normal(shape)
    elif len(finite) == 1:
        drawn = finite[0] * generator.uniform(0.5, 1.5, shape)
    else:
        ordered = np.sort(seen)
        places = generator.uniform(0, len(ordered) - 1, shape)
        drawn = np.interp(places, np.arange(len(ordered)), ordered)
    return drawn


def _is_discrete(values: Array, seen: Array) -> bool:
    return 1 < len(values) <= _FEW and len(seen) >= 4 * len(values)
