"""Taking out of a program what only its tracer's machine needs: sharding, donation, callbacks.

What lives here: turning an MLIR module into a plain program for one device. What does not: reading
modules and all else about them (`hloserve.engine.programs.mlir`, which calls this). One thread per
module.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from hloserve.core.errors import ProgramProblem

__all__ = ["strip_annotations", "walk_ops"]

_DONATION = ("tf.aliasing_output", "jax.buffer_donor")
_PLACEMENT = ("sdy.sharding", "mhlo.sharding", "sdy.sharding_rule", "mhlo.memory_kind")
_IDENTITY_OPS = ("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
_IDENTITY_CALLS = ("Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement")


def strip_annotations(module: Any, source: str) -> frozenset[str]:
    """Turn the module into a plain program for one device. Refuses manual partitioning.

    Returns:
        The targets of the custom calls that it keeps.
    """
    dead, custom_calls = [], set()
    with module.context, ir.Location.unknown():
        for op in walk_ops(module.operation):
            name, target = op.name, None
            if name == "stablehlo.custom_call":
                target = ir.StringAttr(op.attributes["call_target_name"]).value
            if name in _IDENTITY_OPS or target in _IDENTITY_CALLS:
                op.results[0].replace_all_uses_with(op.operands[0])
                dead.append(op)
            elif target is not None:
                custom_calls.add(_checked_target(target, source))
            elif name in ("sdy.mesh", "sdy.sharding_group"):
                dead.append(op)
            elif name.startswith("sdy."):
                raise ProgramProblem(
                    source,
                    f"{name} splits the program over several devices; export it for one",
                )
            _strip_attributes(op)
        for op in dead:
            op.erase()
        _make_single_device(module.operation.attributes)
    return frozenset(custom_calls)


def _checked_target(target: str, source: str) -> str:
    """Refuse calls into the exporting process: here they would jump to an address of that one."""
    if "callback" in target:
        raise ProgramProblem(
            source,
            f"calls back into Python ({target}); take jax.debug.print, pure_callback and"
            " io_callback out and export again",
        )
    return target


def walk_ops(op: Any) -> Iterator[Any]:
    """An operation and all inside of it, outermost first."""
    yield op
    for region in op.regions:
        for block in region:
            for inner in list(block.operations):
                yield from walk_ops(inner.operation)


def _strip_attributes(op: Any) -> None:
    for name in _PLACEMENT:
        if name in op.attributes:
            del op.attributes[name]
    if op.name != "func.func":
        return
    for key in ("arg_attrs", "res_attrs"):
        if key in op.attributes:
            entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(op.attributes[key])]
            op.attributes[key] = ir.ArrayAttr.get([_without_placement(entry) for entry in entries])


def _without_placement(attributes: Any) -> Any:
    gone = (*_DONATION, *_PLACEMENT)
    kept = {}
    for name in [entry.name for entry in attributes]:
        # Of complex numbers the binding has no object, and `entry.attr` would end the process.
        with contextlib.suppress(TypeError):
            if name not in gone:
                kept[name] = attributes[name]
    return ir.DictAttr.get(kept)


def _make_single_device(attributes: Any) -> None:
    one = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
    for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
        if name in attributes:
            attributes[name] = one
    for name in [entry if isinstance(entry, str) else entry.name for entry in attributes]:
        if "sdy" in name or name == "mhlo.frontend_attributes":
            del attributes[name]
