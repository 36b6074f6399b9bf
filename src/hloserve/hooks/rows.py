"""Results of varying length: a buffer of fixed size inside of the program, exact rows outside.

What lives here: `trim_rows`, which makes such a `postprocess`. What does not: what a program fills
its buffer with. Pure NumPy; any thread.
"""

from collections.abc import Callable, Mapping

import numpy as np

from hloserve.core.tensors import Array
from hloserve.hooks.tensor_list import TensorList

__all__ = ["trim_rows"]


def trim_rows(
    count_name: str,
    buffers: Mapping[str, str] | None = None,
    *,
    counts_as: str | None = None,
    is_batched: bool = False,
) -> Callable[[TensorList], dict[str, Array]]:
    """Make a `postprocess` that cuts buffers down to the rows that the program has filled.

    Args:
        count_name: the output that says how many rows are filled.
        buffers: name of the program's output to name of the client's, for each buffer. None for all
            outputs but the count, under their own names.
        counts_as: the client's name of the count; None leaves it out. It is an int64 array.
        is_batched: the outputs have a batch axis in front, and each of its rows its own count. The
            filled rows then follow each other, those of the first one first, and `counts_as` is
            needed to tell them apart.

    Returns:
        The hook. It raises ValueError for a count that is no whole number of 0 to the buffer's
        length, and for outputs that are not there.

    Shapes:
        count: () or (1,); batched: (n,) or (n, 1); any integer type.
        buffer: (max, ...); batched: (n, max, ...).
        result: (count, ...); batched: (sum of the counts, ...). Copies.
        count of the result: (1,); batched: (n,).

    Raises:
        ValueError: batched without `counts_as`.

    Source: the fixed-size result pattern of the original's detectors.

    Example:
        >>> hook = trim_rows("n", {"boxes": "found"})
        >>> from hloserve.core.tensors import NamedTensor
        >>> outputs = [("boxes", np.arange(8).reshape(4, 2)), ("n", np.array([3]))]
        >>> hook(TensorList(NamedTensor(*pair) for pair in outputs))["found"].tolist()
        [[0, 1], [2, 3], [4, 5]]
    """
    if is_batched and counts_as is None:
        raise ValueError(
            "trim_rows: of a batch, the rows alone do not say whose they are; name the counts that"
            " clients get with counts_as"
        )

    def postprocess(outputs: TensorList) -> dict[str, Array]:
        names = buffers
        if names is None:
            names = {given.name: given.name for given in outputs if given.name != count_name}
        counts = _counts(count_name, _output(outputs, count_name), is_batched=is_batched)
        results = {
            theirs: _trimmed(ours, _output(outputs, ours), counts, is_batched=is_batched)
            for ours, theirs in names.items()
        }
        if counts_as is not None:
            results[counts_as] = counts
        return results

    return postprocess


def _output(outputs: TensorList, name: str) -> Array:
    array = outputs.get(name)
    if array is None:
        known = ", ".join(map(repr, outputs.keys()))
        raise ValueError(f"trim_rows: there is no output {name!r}; the program has {known}")
    return array


def _counts(name: str, array: Array, *, is_batched: bool) -> Array:
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"trim_rows: count {name!r} is of {array.dtype}, expected whole numbers")
    counts = array.astype(np.int64).reshape(-1)
    expected = len(array) if is_batched and array.ndim else 1
    if len(counts) != expected or array.ndim > (2 if is_batched else 1):
        shape = "(n,) or (n, 1)" if is_batched else "() or (1,)"
        raise ValueError(f"trim_rows: count {name!r} is of shape {array.shape}, expected {shape}")
    return counts


def _trimmed(name: str, buffer: Array, counts: Array, *, is_batched: bool) -> Array:
    parts = buffer if is_batched else buffer[np.newaxis]
    if parts.ndim < 2 or len(parts) != len(counts):
        raise ValueError(
            f"trim_rows: buffer {name!r} is of shape {buffer.shape}, which has no rows for"
            f" {len(counts)} counts"
        )
    most = parts.shape[1]
    wrong = [int(count) for count in counts if not 0 <= count <= most]
    if wrong:
        raise ValueError(
            f"trim_rows: a count is {wrong[0]}, but buffer {name!r} has room for 0 to {most} rows"
        )
    return np.concatenate(
        [part[:count] for part, count in zip(parts, counts, strict=True)]
        or [np.empty((0, *parts.shape[2:]), parts.dtype)]
    )
