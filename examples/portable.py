"""From a JAX function to a portable program: the export step that the examples share.

What lives here: tracing with `jax.export`, cleaning, and serialising for an old StableHLO version.
What does not: the model, and the bundle around the program (`hloserve.write_bundle`).

Weights are arguments of the program, never constants in it: they come after the inputs, in the
order of the mapping, which is the order that the bundle's `argument_order` records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxlib import _jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, stablehlo

__all__ = ["TARGET_VERSION", "export_program"]

TARGET_VERSION = "1.0.0"
"""The StableHLO version written: old, so that servers with an older jaxlib can read it too."""

_CLEANING = ",".join(
    (
        # Composites (`chlo.erf`, `top_k`) exist only in newer versions; their bodies are plain ops.
        "func.func(stablehlo-legalize-composite-to-call)",
        "symbol-dce",
        "canonicalize",
        "cse",
        # Locations hold the paths of the exporting machine, and old readers cannot parse them.
        "strip-debuginfo",
    )
)


def export_program(
    function: Callable[..., Any],
    inputs: Sequence[jax.ShapeDtypeStruct],
    weights: Mapping[str, Any],
) -> bytes:
    """Trace `function(*inputs, weights)` and return it as a StableHLO portable artifact.

    Args:
        function: takes the inputs, then a dict of weights; returns a tuple of arrays.
        inputs: types of the inputs, with concrete shapes.
        weights: named arrays; the program takes them as arguments in this order.
    """
    names, count = tuple(weights), len(inputs)

    def program(*arguments: Any) -> Any:
        return function(*arguments[:count], dict(zip(names, arguments[count:], strict=True)))

    types = [jax.ShapeDtypeStruct(w.shape, w.dtype) for w in weights.values()]
    # keep_unused: an argument that the function ignores must still be in the signature.
    traced = jax.export.export(jax.jit(program, keep_unused=True), platforms=["cpu"])
    return _clean(traced(*inputs, *types).mlir_module_serialized)


def _clean(artifact: bytes) -> bytes:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    stablehlo.register_stablehlo_passes()
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        chlo.register_dialect(context)
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        passmanager.PassManager.parse(f"builtin.module({_CLEANING})").run(module.operation)
        # jax's own helper; the public `stablehlo.serialize_portable_artifact` changes its argument.
        return bytes(_jax.mlir.serialize_portable_artifact(module, TARGET_VERSION, False))
