"""The precision of float32 products: what a program says of it, made what the operator wants.

What lives here: the modes, rewriting a program for one, and the check that nothing was missed. What
does not: whether a device then does as it is told (`hloserve.engine.programs.tf32_probe`), and the
setting (`runtime.numerics`). jaxlib only; one thread at a time per program.

Rules.
1. A program is changed in place by whoever owns it: callers hand in a copy.
2. In mode `f32`, no product or convolution of two float32 tensors is left to the compiler: each
   asks for the highest precision, or names an algorithm without TF32. A walk of its own checks it
   afterwards.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloserve.core.errors import ProgramProblem
from hloserve.engine.programs.mlir_annotations import walk_ops

__all__ = ["NumericsMode", "apply_numerics", "check_f32", "has_tf32", "ungoverned_ops"]

NumericsMode: TypeAlias = Literal["auto", "f32", "tf32"]

_PRODUCTS = ("stablehlo.dot_general", "stablehlo.dot")
_CONVOLUTIONS = ("stablehlo.convolution", "stablehlo.dynamic_conv")
_UNGOVERNED = ("stablehlo.custom_call", "stablehlo.cholesky", "stablehlo.triangular_solve")
_SHOWN = {"stablehlo.dot": "dot", "stablehlo.dot_general": "dot_general"}


def has_tf32(platform: str, compute_capability: str) -> bool:
    """True where products of float32 can be computed in TF32: NVIDIA from Ampere (8.0) on.

    Args:
        platform: short name, such as ``cuda``.
        compute_capability: as the device gives it, such as ``8.6``; what is no such text counts as
            a device without.
    """
    major, _, _ = compute_capability.partition(".")
    return platform == "cuda" and major.isascii() and major.isdigit() and int(major) >= 8


def apply_numerics(module: Any, mode: NumericsMode, *, is_capable: bool, source: str) -> str:
    """Rewrite a module for a mode, nested regions and called functions included.

    Args:
        module: changed in place.
        mode: what the operator wants.
        is_capable: the device has TF32.
        source: the program's file, for messages.

    Returns:
        What the program now is, in words, for the log.

    Raises:
        ProgramProblem: after rewriting for `f32` something is still left to the compiler.
    """
    if mode == "f32":
        text = _pin_f32(module)
        findings = check_f32(module)
        if findings:
            raise ProgramProblem(source, findings)
        return text
    if is_capable:
        return "tf32" if mode == "tf32" else "auto (tf32 active)"
    stripped = _strip_tf32(module)
    if stripped:
        return f"auto (stripped {stripped} tf32 algorithm(s))"
    return "auto (f32: target lacks TF32)"


def check_f32(module: Any) -> list[str]:
    """What of a module the compiler may still compute in less than float32, a finding each."""
    return [
        f"after rewriting for runtime.numerics 'f32', {op.name} of"
        f" {', '.join(str(operand.type) for operand in list(op.operands)[:2])} is neither HIGHEST"
        " nor of an algorithm without TF32; report it, or set runtime.numerics to 'auto'"
        for op in _operations(module)
        if not _is_exact(op)
    ]


def ungoverned_ops(module: Any) -> tuple[str, ...]:
    """Names of operations whose arithmetic no mode decides, sorted; of custom calls the target."""
    names = set()
    for op in _operations(module):
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            names.add(f"custom_call {target}")
        elif op.name in _UNGOVERNED:
            names.add(op.name.removeprefix("stablehlo."))
    return tuple(sorted(names))


def _operations(module: Any) -> Iterator[Any]:
    return walk_ops(module.operation)


def _pin_f32(module: Any) -> str:
    pinned: Counter[str] = Counter()
    rewritten = 0
    with module.context, ir.Location.unknown():
        highest = ir.ArrayAttr.get([stablehlo.PrecisionAttr.get("HIGHEST")] * 2)
        for op in _operations(module):
            if op.name in _PRODUCTS and "algorithm" in op.attributes:
                rewritten += _rewrite_algorithm(op)
            elif _is_of_f32(op) and not _is_highest(op):
                op.attributes["precision_config"] = highest
                pinned[_SHOWN.get(op.name, "convolution")] += 1
    parts = [f"rewrote {rewritten} tf32 algorithm(s)"] if rewritten else []
    names = ("dot_general", "dot", "convolution")
    parts += [f"pinned {pinned[name]} {name}" for name in names if pinned[name]]
    return f"f32 ({', '.join(parts) or 'nothing to pin'})"


def _rewrite_algorithm(op: Any) -> bool:
    """Put float32 where an algorithm says TF32; splitting a value in three is for TF32 only."""
    if not _mentions_tf32(op):
        return False
    old = stablehlo.DotAlgorithm(op.attributes["algorithm"])
    types = [
        ir.F32Type.get() if isinstance(kind, ir.FloatTF32Type) else kind
        for kind in (old.lhs_precision_type, old.rhs_precision_type, old.accumulation_type)
    ]
    op.attributes["algorithm"] = stablehlo.DotAlgorithm.get(
        *types, 1, 1, 1, old.allow_imprecise_accumulation
    )
    return True


def _strip_tf32(module: Any) -> int:
    """Take the algorithms out that a device without TF32 would refuse."""
    stripped = 0
    for op in _operations(module):
        if op.name in _PRODUCTS and _mentions_tf32(op):
            del op.attributes["algorithm"]
            stripped += 1
    return stripped


def _mentions_tf32(op: Any) -> bool:
    return "algorithm" in op.attributes and "tf32" in str(op.attributes["algorithm"])


def _is_exact(op: Any) -> bool:
    if op.name in _PRODUCTS and "algorithm" in op.attributes:
        return not _mentions_tf32(op)
    return not _is_of_f32(op) or _is_highest(op)


def _is_of_f32(op: Any) -> bool:
    """True for a product or convolution of two float32 tensors."""
    if op.name not in (*_PRODUCTS, *_CONVOLUTIONS):
        return False
    return all(_element_is_f32(operand.type) for operand in list(op.operands)[:2])


def _element_is_f32(kind: Any) -> bool:
    return isinstance(kind.element_type, ir.F32Type)


def _is_highest(op: Any) -> bool:
    if "precision_config" not in op.attributes:
        return False
    wanted: Iterable[Any] = ir.ArrayAttr(op.attributes["precision_config"])
    precisions = [stablehlo.PrecisionAttr(each).value for each in wanted]
    return len(precisions) == 2 and set(precisions) == {"HIGHEST"}
