"""Small pieces of StableHLO, for rewrites.

What lives here: operations with the arguments that rewrites have, and reading attributes. Each
function inserts where the surrounding block of the binding says. One thread per module.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

__all__ = [
    "integers",
    "is_static",
    "is_wide_float",
    "pad",
    "reshape",
    "slice_of",
    "transpose",
]


def is_static(kind: Any) -> bool:
    """True for a tensor whose extents are all known, and none is 0."""
    return (
        isinstance(kind, ir.RankedTensorType)
        and kind.encoding is None
        and kind.has_static_shape
        and all(extent > 0 for extent in kind.shape)
    )


def is_wide_float(kind: Any) -> bool:
    """True for float32 and float64, the types in which sums may be ordered otherwise."""
    return isinstance(kind.element_type, ir.F32Type | ir.F64Type)


def integers(attributes: Any, name: str, default: Sequence[int]) -> list[int]:
    """The numbers of an attribute, an array or a dense tensor, row by row."""
    if name not in attributes:
        return list(default)
    attribute = attributes[name]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [int(each) for each in np.asarray(attribute).ravel()]
    return list(ir.DenseI64ArrayAttr(attribute))


def transpose(value: Any, order: Sequence[int]) -> Any:
    """Reorder dimensions; nothing where they are in that order."""
    if list(order) == list(range(len(order))):
        return value
    return stablehlo.TransposeOp(value, ir.DenseI64ArrayAttr.get(list(order))).result


def reshape(value: Any, shape: Sequence[int]) -> Any:
    """The same elements in another shape."""
    kind = ir.RankedTensorType.get(list(shape), value.type.element_type)
    return value if kind == value.type else stablehlo.ReshapeOp(kind, value).result


def slice_of(
    value: Any,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """A part of a tensor; all of a dimension where nothing is said."""
    rank = value.type.rank
    bounds = (starts or [0] * rank, ends or value.type.shape, strides or [1] * rank)
    return stablehlo.SliceOp(
        value, *(ir.DenseI64ArrayAttr.get(list(numbers)) for numbers in bounds)
    ).result


def pad(value: Any, low: Sequence[int], high: Sequence[int]) -> Any:
    """Zeros around a tensor; a negative number takes elements away."""
    if not any(low) and not any(high):
        return value
    kind = ir.RankedTensorType.get([], value.type.element_type)
    zero = stablehlo.ConstantOp(
        ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(value.type.element_type, 0.0))
    ).result
    between = [0] * len(low)
    return stablehlo.PadOp(
        value, zero, *(ir.DenseI64ArrayAttr.get(list(edges)) for edges in (low, high, between))
    ).result
