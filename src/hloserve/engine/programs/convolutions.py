"""Convolutions that the CPU computes quicker as something else.

What lives here: rewrites of `stablehlo.convolution`, each for one operation, for
`hloserve.engine.programs.rewriting`, which tells where to insert. Channels come last in what they
make: there the CPU reads and multiplies whole registers.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloserve.engine.programs.mlir_building import (
    integers,
    is_static,
    is_wide_float,
    pad,
    reshape,
    slice_of,
    transpose,
)

__all__ = ["depthwise_to_sums", "pointwise_to_product"]

_MOST_TAPS = 81
"""Elements of the largest depthwise kernel that is written out: 9x9."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution without dilated input and without groups of the batch.

    Attributes:
        image, kernel: its operands.
        numbers: which dimension is what.
        strides, dilations: per spatial dimension; the latter of the kernel.
        padding: before and after, per spatial dimension; may be negative.
        groups: of features.
    """

    image: Any
    kernel: Any
    numbers: Any
    strides: Sequence[int]
    dilations: Sequence[int]
    padding: Sequence[tuple[int, int]]
    groups: int

    @property
    def window(self) -> list[int]:
        """Extents of the kernel per spatial dimension."""
        return [self.kernel.type.shape[at] for at in self.numbers.kernel_spatial_dimensions]

    @property
    def channels_last(self) -> list[int]:
        """The order of the image's dimensions that puts the batch first and the features last."""
        of = self.numbers
        return [
            of.input_batch_dimension, *of.input_spatial_dimensions, of.input_feature_dimension
        ]  # fmt: skip

    @property
    def from_channels_last(self) -> list[int]:
        """The order that brings a result with channels last to where the program wants them."""
        of = self.numbers
        placed = [
            of.output_batch_dimension, *of.output_spatial_dimensions, of.output_feature_dimension
        ]  # fmt: skip
        return [placed.index(at) for at in range(len(placed))]


def pointwise_to_product(op: Any) -> bool:
    """Write a convolution with a kernel of one element as one product of two matrices.

    Shapes: image (n, s..., c) to (n * s, c); kernel (o, c); their product (n * s, o).

    Returns:
        False, with nothing changed, when it is another convolution.
    """
    found = _read(op)
    if found is None or found.groups != 1 or any(extent != 1 for extent in found.window):
        return False
    if any(edge for edges in found.padding for edge in edges):
        return False
    image = transpose(found.image, found.channels_last)
    if any(stride != 1 for stride in found.strides):
        image = slice_of(image, strides=[1, *found.strides, 1])
    batch, *spatial, features = image.type.shape
    of = found.numbers
    at_input, at_output = of.kernel_input_feature_dimension, of.kernel_output_feature_dimension
    made = found.kernel.type.shape[at_output]
    is_output_first = at_output < at_input  # the dimensions of extent 1 do not matter
    kernel = reshape(found.kernel, [made, features] if is_output_first else [features, made])
    rows = _product_of((batch, *spatial))
    element = op.results[0].type.element_type
    contracted = stablehlo.DotDimensionNumbers.get([], [], [1], [1 if is_output_first else 0])
    product = stablehlo.DotGeneralOp(
        ir.RankedTensorType.get([rows, made], element),
        reshape(image, [rows, features]),
        kernel,
        contracted,
        precision_config=_precision(op),
    ).result
    result = reshape(product, [batch, *spatial, made])
    _replace(op, transpose(result, found.from_channels_last))
    return True


def depthwise_to_sums(op: Any) -> bool:
    """Write a convolution with a kernel per channel as sums of shifted images times a weight.

    Returns:
        False, with nothing changed, when it is another convolution.
    """
    found = _read(op)
    if found is None or not _is_depthwise(found):
        return False
    image = transpose(found.image, found.channels_last)
    low, high = zip(*found.padding, strict=True)
    image = pad(image, [0, *low, 0], [0, *high, 0])
    shape = [op.results[0].type.shape[at] for at in _output_order(found)]
    of = found.numbers
    order = [*of.kernel_spatial_dimensions, of.kernel_input_feature_dimension,
             of.kernel_output_feature_dimension]  # fmt: skip
    kernel = transpose(found.kernel, order)
    total = None
    for tap in itertools.product(*map(range, found.window)):
        starts = [place * step for place, step in zip(tap, found.dilations, strict=True)]
        ends = [
            start + (extent - 1) * stride + 1
            for start, extent, stride in zip(starts, shape[1:-1], found.strides, strict=True)
        ]
        shifted = slice_of(
            image, [0, *starts, 0], [shape[0], *ends, shape[-1]], [1, *found.strides, 1]
        )
        weights = slice_of(kernel, [*tap, 0, 0], [*(place + 1 for place in tap), 1, shape[-1]])
        term = stablehlo.MulOp(shifted, _along_last(weights, shape)).result
        total = term if total is None else stablehlo.AddOp(total, term).result
    _replace(op, transpose(total, found.from_channels_last))
    return True


def _is_depthwise(found: _Convolution) -> bool:
    of = found.numbers
    shape = found.kernel.type.shape
    return (
        found.groups > 1
        and shape[of.kernel_input_feature_dimension] == 1
        and shape[of.kernel_output_feature_dimension] == found.groups
        and _product_of(found.window) <= _MOST_TAPS
    )


def _read(op: Any) -> _Convolution | None:
    """The parts of a convolution; None for one that no rewrite here knows."""
    image, kernel = op.operands
    kinds = (image.type, kernel.type, op.results[0].type)
    if not all(is_static(kind) and is_wide_float(kind) for kind in kinds):
        return None
    if len({str(kind.element_type) for kind in kinds}) > 1:
        return None
    spatial = image.type.rank - 2
    attributes = op.attributes
    dilated = integers(attributes, "lhs_dilation", [1] * spatial)
    is_reversed = "window_reversal" in attributes and any(
        ir.DenseBoolArrayAttr(attributes["window_reversal"])
    )
    if any(each != 1 for each in dilated) or is_reversed:
        return None
    if ir.IntegerAttr(attributes["batch_group_count"]).value != 1:
        return None
    edges = integers(attributes, "padding", [0] * 2 * spatial)
    return _Convolution(
        image,
        kernel,
        stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"]),
        integers(attributes, "window_strides", [1] * spatial),
        integers(attributes, "rhs_dilation", [1] * spatial),
        list(zip(edges[::2], edges[1::2], strict=True)),
        ir.IntegerAttr(attributes["feature_group_count"]).value,
    )


def _output_order(found: _Convolution) -> list[int]:
    of = found.numbers
    return [of.output_batch_dimension, *of.output_spatial_dimensions, of.output_feature_dimension]


def _along_last(weights: Any, shape: Sequence[int]) -> Any:
    """Repeat a weight per channel over all of a shape."""
    element = weights.type.element_type
    return stablehlo.BroadcastInDimOp(
        ir.RankedTensorType.get(list(shape), element),
        reshape(weights, [shape[-1]]),
        ir.DenseI64ArrayAttr.get([len(shape) - 1]),
    ).result


def _precision(op: Any) -> Any:
    return op.attributes.get("precision_config", None)


def _product_of(extents: Sequence[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product


def _replace(op: Any, result: Any) -> None:
    op.results[0].replace_all_uses_with(result)
    op.erase()
