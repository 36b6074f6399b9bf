"""The highest classes of an output instead of its values: the classification extension.

What lives here: whether an output has classes, and which are the highest. What does not: the
parameter (`hloserve.wire.v2_parameters`) and the files with labels (`hloserve.bundle.labels`). Pure
functions; any thread, as large outputs are classified on a hook thread.

Rules.
1. The values of one row are its classes, all axes but the batch axis taken together, row-major. An
   output without batch axis is one row, and its answer has no row axis.
2. The answer is BYTES, the highest value first: ``value:index``, or ``value:index:label`` where the
   bundle has a label. Of equal values the lower index is first; NaN comes last.
3. Values are written as Triton writes them: floats with six decimals.

Source: V2 protocol, classification extension; Triton, TopkClassifications.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BadRequest
from hloserve.core.tensors import Array, Tensors, TensorSpec

__all__ = ["check_classes", "classify_outputs", "is_large"]

_LARGE_ELEMENTS = 16_384
"""Ordering and writing as many takes some 5 ms, too long for the loop."""

_SORT_ALL = 4
"""Partition first when fewer than one in so many values is wanted."""


def check_classes(specs: Sequence[TensorSpec], classes: Mapping[str, int]) -> None:
    """Check, before anything runs, that the outputs to classify have classes.

    Raises:
        BadRequest: an output holds strings.
    """
    for spec in specs:
        if spec.name in classes and spec.dtype is BYTES:
            raise BadRequest(
                f"output {spec.name!r} is BYTES, which has no classes; ask for it without"
                " classification"
            )


def is_large(outputs: Tensors, classes: Mapping[str, int]) -> bool:
    """True when classifying takes too long for the loop thread."""
    return sum(outputs[name].size for name in classes) > _LARGE_ELEMENTS


def classify_outputs(
    specs: Sequence[TensorSpec],
    outputs: Tensors,
    classes: Mapping[str, int],
    labels: Mapping[str, Sequence[bytes]],
) -> Tensors:
    """Replace outputs by their highest classes.

    Args:
        specs: of the model's outputs.
        outputs: of one request, in the order to send.
        classes: how many classes of each output; others stay what they are.
        labels: name of each class, by output.
    """
    batch_axes = {spec.name: spec.batch_axis for spec in specs}
    return {
        name: _classify(array, batch_axes[name], classes[name], labels.get(name, ()))
        if name in classes
        else array
        for name, array in outputs.items()
    }


def _classify(array: Array, batch_axis: int | None, count: int, labels: Sequence[bytes]) -> Array:
    rows = array.reshape(1, -1) if batch_axis is None else _rows(array, batch_axis)
    count = min(count, rows.shape[1])
    places = _highest(rows, count)
    values = np.take_along_axis(rows, places, axis=1)
    write = b"%f" if array.dtype.kind not in "biu" else b"%d"
    strings = np.empty(places.shape, object)
    for row, (of_row, indices) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
        for place, (value, index) in enumerate(zip(of_row, indices, strict=True)):
            text = b"%b:%d" % (write % value, index)
            if index < len(labels) and labels[index]:
                text += b":" + labels[index]
            strings[row, place] = text
    return strings[0] if batch_axis is None else strings


def _rows(array: Array, batch_axis: int) -> Array:
    by_row = np.moveaxis(array, batch_axis, 0)
    classes = int(np.prod(by_row.shape[1:], dtype=np.int64))
    return by_row.reshape(by_row.shape[0], classes)


def _highest(rows: Array, count: int) -> Array:
    """Indices of the `count` highest values of each row, the highest first.

    Shapes:
        rows: [n, c], any number type.
        returns: [n, count] int64.
    """
    places = np.empty((rows.shape[0], count), np.int64)
    is_few = count * _SORT_ALL < rows.shape[1]
    for row, keys in enumerate(_keys(rows)):
        candidates = np.arange(keys.size)
        if is_few:  # all that equal the last one stay, so that the lower index wins
            least = np.partition(keys, keys.size - count)[-count:].min()
            candidates = np.flatnonzero(keys >= least)
        places[row] = _descending(keys, candidates)[:count]
    return places


def _descending(keys: Array, indices: Array) -> Array:
    """`indices`, which ascend, by falling key; equal keys stay in their order."""
    order = np.argsort(keys[indices][::-1], kind="stable")[::-1]
    return indices[::-1][order]


def _keys(rows: Array) -> Array:
    """Values to compare: NaN is below everything."""
    if rows.dtype.kind in "biu":
        return rows
    wide = rows if rows.dtype.kind == "f" else rows.astype(np.float32)  # bfloat16
    return np.where(np.isnan(wide), -np.inf, wide)
