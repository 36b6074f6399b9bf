"""Making a program quicker on a device, with the same meaning: which rewrites run, and on what.

What lives here: the list of rewrites, and running them on a copy. What does not: the rewrites
(`hloserve.engine.programs.convolutions`, `hloserve.engine.programs.pooling`) and whether they are
wanted (`runtime.program_rewrites`). jaxlib only; one thread at a time per program.

Rules.
1. A rewrite says what is computed in other operations. It may change the order of a sum, so results
   differ by rounding; it never changes types, or the precision that a program asks for.
2. It looks at one operation at a time, wherever it stands: in `main`, in other functions, in bodies
   of loops and branches.
3. What it does not know for sure, it leaves alone: open extents, other element types, groups.
4. Every rewrite is here because it was measured (docs/decisions/23-programs.md).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from jaxlib.mlir import ir

from hloserve.engine.programs.convolutions import depthwise_to_sums, pointwise_to_product
from hloserve.engine.programs.mlir_annotations import walk_ops
from hloserve.engine.programs.pooling import channels_last_pool, narrow_pool

__all__ = ["CPU_REWRITES", "apply_rewrites"]

Rewrite = Callable[[Any], bool]

CPU_REWRITES: Mapping[str, tuple[str, Rewrite]] = {
    "pointwise convolution": ("stablehlo.convolution", pointwise_to_product),
    "depthwise convolution": ("stablehlo.convolution", depthwise_to_sums),
    "widened maximum": ("stablehlo.reduce_window", narrow_pool),
    "maximum over channels first": ("stablehlo.reduce_window", channels_last_pool),
}
"""By name: the operation that a rewrite looks at, and the rewrite, which says whether it fitted."""


def apply_rewrites(
    module: Any, rewrites: Mapping[str, tuple[str, Rewrite]] = CPU_REWRITES
) -> Mapping[str, int]:
    """Run rewrites over a module, one after the other.

    Args:
        module: changed in place.
        rewrites: by name.

    Returns:
        How often each was used; those that were not are left out.
    """
    used: Counter[str] = Counter()
    with module.context:
        for name, (operation, rewrite) in rewrites.items():
            for op in [op for op in walk_ops(module.operation) if op.name == operation]:
                with ir.InsertionPoint(op), op.location:
                    used[name] += rewrite(op)
    return {name: count for name, count in used.items() if count}
