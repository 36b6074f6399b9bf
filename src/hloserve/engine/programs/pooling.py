"""Maxima over windows that the CPU computes quicker in another type or layout.

What lives here: rewrites of `stablehlo.reduce_window`, each for one operation, for
`hloserve.engine.programs.rewriting`, which tells where to insert. Both are exact: a maximum is one
of its elements, in whichever order they are looked at.
"""

import math
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloserve.engine.programs.mlir_building import integers, is_static, transpose

__all__ = ["channels_last_pool", "narrow_pool"]

_ATTRIBUTES = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")


def narrow_pool(op: Any) -> bool:
    """Take a maximum in the type that its elements were widened from and go back to.

    PyTorch's exporter writes a pool of float32 in float64.

    Returns:
        False, with nothing changed, when it is something else.
    """
    if not _is_maximum(op) or not _starts_from_minus_infinity(op):
        return False
    widened = _operation_of(op.operands[0])
    if widened is None or widened.name != "stablehlo.convert":
        return False
    narrow = widened.operands[0]
    if not _is_narrower_float(narrow.type.element_type, op.operands[0].type.element_type):
        return False
    backs = [use.owner.operation for use in op.results[0].uses]
    if not backs or any(
        back.name != "stablehlo.convert"
        or back.results[0].type.element_type != narrow.type.element_type
        for back in backs
    ):
        return False
    element = narrow.type.element_type
    start = stablehlo.ConstantOp(
        ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([], element), ir.FloatAttr.get(element, -math.inf)
        )
    ).result
    pooled = _maximum(op, narrow, start, list(range(op.operands[0].type.rank)))
    for back in backs:
        back.results[0].replace_all_uses_with(pooled)
        back.erase()
    op.erase()
    return True


def channels_last_pool(op: Any) -> bool:
    """Take a maximum over the last dimensions, of (n, c, s...), with the channels last.

    What is around it, convolutions, has them last on the CPU, and a register holds several.

    Returns:
        False, with nothing changed, when it is something else.
    """
    if not _is_maximum(op) or not is_static(op.operands[0].type):
        return False
    window = integers(op.attributes, "window_dimensions", [])
    edges = integers(op.attributes, "padding", [0] * 2 * len(window))
    spatial = len(window) - 2
    if spatial < 1 or window[:2] != [1, 1] or all(extent == 1 for extent in window[2:]):
        return False
    if any(edges[:4]):
        return False
    order = [0, *range(2, 2 + spatial), 1]
    pooled = _maximum(op, transpose(op.operands[0], order), op.operands[1], order)
    back = [order.index(at) for at in range(len(order))]
    op.results[0].replace_all_uses_with(transpose(pooled, back))
    op.erase()
    return True


def _maximum(op: Any, value: Any, start: Any, order: list[int]) -> Any:
    """The window of `op`, its dimensions in another order, over `value`."""
    element = value.type.element_type
    shape = op.results[0].type.shape
    attributes = {
        name: ir.DenseI64ArrayAttr.get([integers(op.attributes, name, [])[at] for at in order])
        for name in _ATTRIBUTES
        if name in op.attributes
    }
    edges = integers(op.attributes, "padding", [0] * 2 * len(order))
    rows = ", ".join(f"[{edges[2 * at]}, {edges[2 * at + 1]}]" for at in order)
    made = stablehlo.ReduceWindowOp(
        [ir.RankedTensorType.get([shape[at] for at in order], element)],
        [value],
        [start],
        padding=ir.Attribute.parse(f"dense<[{rows}]> : tensor<{len(order)}x2xi64>"),
        **attributes,
    )
    scalar = ir.RankedTensorType.get([], element)
    body = made.regions[0].blocks.append(scalar, scalar, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(body):
        stablehlo.ReturnOp([stablehlo.MaxOp(*body.arguments).result])
    return made.results[0]


def _is_maximum(op: Any) -> bool:
    """True for a window over one tensor, whose body is the maximum of its two arguments."""
    if len(op.operands) != 2 or not isinstance(op.operands[0].type, ir.RankedTensorType):
        return False
    body = op.regions[0].blocks[0]
    operations = [each.operation for each in body.operations]
    if [each.name for each in operations] != ["stablehlo.maximum", "stablehlo.return"]:
        return False
    maximum, result = operations
    arguments = list(body.arguments)
    return (
        set(map(arguments.index, _among(maximum.operands, arguments))) == {0, 1}
        and result.operands[0] == maximum.results[0]
    )


def _among(values: Any, arguments: list[Any]) -> list[Any]:
    return [value for value in values if value in arguments]


def _starts_from_minus_infinity(op: Any) -> bool:
    start = _operation_of(op.operands[1])
    while start is not None and start.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        start = _operation_of(start.operands[0])
    if start is None or start.name != "stablehlo.constant":
        return False
    value = start.attributes["value"]
    if not isinstance(value, ir.DenseFPElementsAttr) or len(value) != 1:
        return False
    return bool(value[0] == -math.inf)


def _is_narrower_float(narrow: Any, wide: Any) -> bool:
    """True when every value of one type is one of the other."""
    return isinstance(narrow, ir.F16Type | ir.BF16Type | ir.F32Type) and (
        isinstance(wide, ir.F64Type)
        or (isinstance(wide, ir.F32Type) and not isinstance(narrow, ir.F32Type))
    )


def _operation_of(value: Any) -> Any:
    """The operation that makes a value; None for the argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation
