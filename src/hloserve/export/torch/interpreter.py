"""Runs a graph of torch.export on JAX arrays, operator by operator.

What lives here: the walk, control flow, and what a failed operator says about where it stands.
What does not: the operators themselves (`hloserve.export.torch.ops`), and what is checked before a
graph is run at all (`hloserve.export.torch.program`).

Rules.
1. Only what the results need is run: assertions, dead code and unused draws cost nothing.
2. Every result has the dtype that torch says, and its shape: a lowering that gives another one is
   wrong, and is refused rather than exported.

One thread; called while JAX traces.
"""

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hloserve.export.torch.arrays import dtype_of, torch
from hloserve.export.torch.ops import OpTable

__all__ = [
    "WRAPPED",
    "LoweringFailed",
    "describe_place",
    "is_known",
    "needed_nodes",
    "run_graph",
    "subgraphs",
]

WRAPPED = "hloserve_model"
"""Name of the author's model within a module that wraps it; not part of any name that we tell."""

_TORCH, _OURS = os.path.dirname(torch.__file__), os.path.dirname(__file__)


class LoweringFailed(Exception):
    """An operator could not be lowered for these shapes; the message says which and where."""


def run_graph(module: Any, arguments: Sequence[Any], table: OpTable) -> list[Any]:
    """Run a graph.

    Args:
        module: a GraphModule of functional operators.
        arguments: one per placeholder: arrays, or what torch fixed (numbers, text, None).
        table: the operators.

    Returns:
        The graph's results, flat.

    Raises:
        LoweringFailed: see there.
    """
    values: dict[Any, Any] = {}
    feed = iter(arguments)
    needed = needed_nodes(module.graph)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(feed)
        elif node not in needed:
            continue
        elif node.op == "output":
            results = torch.fx.map_arg(node.args[0], values.__getitem__)
            return list(results) if isinstance(results, tuple | list) else [results]
        elif node.op == "get_attr":
            values[node] = _attribute(module, node.target)
        else:
            values[node] = _run_node(node, values, table)
    raise AssertionError("a graph has an output node")


def needed_nodes(graph: Any) -> set[Any]:
    """The nodes that the results depend on, the output included."""
    waiting = [node for node in graph.nodes if node.op == "output"]
    needed = set(waiting)
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in needed:
                needed.add(node)
                waiting.append(node)
    return needed


def subgraphs(module: Any) -> Iterator[Any]:
    """The graph and those it calls: the branches and bodies of control flow."""
    return (part for part in module.modules() if isinstance(part, torch.fx.GraphModule))


def describe_place(node: Any) -> str:
    """Where a node comes from: the layer and the line of the author's code, as far as known."""
    parts = []
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    layer = stack[-1][0].removeprefix("L['self'].").removeprefix(WRAPPED) if stack else ""
    if layer.strip("."):
        parts.append(f"layer {layer.strip('.')!r}")
    lines = [
        line.strip()
        for line in (node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File ") and _TORCH not in line and _OURS not in line
    ]
    if lines:
        parts.append(_shortened(lines[-1]))
    return ", ".join(parts) or "the model"


def _shortened(line: str) -> str:
    """``File "/a/b/net.py", line 7, in forward`` as ``net.py line 7``."""
    file, _, rest = line.removeprefix('File "').partition('", ')
    return f"{os.path.basename(file)} {rest.split(',')[0]}"


def _attribute(module: Any, path: str) -> Any:
    found = operator.attrgetter(path)(module)
    if isinstance(found, torch.Tensor):
        raise LoweringFailed(
            f"the graph holds the tensor {path!r}, which is no parameter or buffer"
        )
    return found


def _run_node(node: Any, values: Mapping[Any, Any], table: OpTable) -> Any:
    args = torch.fx.map_arg(node.args, values.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, values.__getitem__)
    try:
        result = _call(node.target, args, kwargs, table)
        return _as_torch_says(result, node.meta.get("val"))
    except LoweringFailed:
        raise
    except Exception as error:  # lowerings of others raise anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise LoweringFailed(f"{node.target} in {describe_place(node)}: {reason}") from error


def _call(target: Any, args: Any, kwargs: Any, table: OpTable) -> Any:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _CONTROL[target.name()](table, *args, **kwargs)
    if isinstance(target, torch._ops.OpOverload):
        lowering = table.find(target)
        if lowering is None:
            raise NotImplementedError("no lowering")
        return lowering(*args, **kwargs)
    return _OF_EXTENTS.get(target, target)(*args, **kwargs)


def _as_torch_says(result: Any, said: Any) -> Any:
    if isinstance(said, tuple | list):
        return [
            _as_torch_says(part, expected) for part, expected in zip(result, said, strict=False)
        ]
    if not isinstance(said, torch.Tensor) or result is None:
        return result
    dtype = dtype_of(said.dtype)
    array = jnp.asarray(result, None if dtype is None else dtype.numpy)
    agrees = array.ndim == said.ndim and all(
        have == want
        for have, want in zip(array.shape, said.shape, strict=True)
        if isinstance(have, int) and isinstance(want, int)
    )
    if not agrees:
        raise ValueError(f"lowered to shape {array.shape}, torch has {tuple(said.shape)}")
    return array


# Control flow: the table, then the operator's own arguments.


def _subprogram(body: Any, table: OpTable) -> Callable[..., tuple[Any, ...]]:
    return lambda *operands: tuple(run_graph(body, operands, table))


def _condition(table: OpTable, condition: Any, then: Any, otherwise: Any, operands: Any) -> Any:
    branches = (_subprogram(branch, table) for branch in (then, otherwise))
    return jax.lax.cond(jnp.reshape(condition, ()), *branches, *operands)


def _while(table: OpTable, condition: Any, body: Any, carried: Any, fixed: Any) -> Any:
    holds, advance = _subprogram(condition, table), _subprogram(body, table)
    return jax.lax.while_loop(
        lambda state: jnp.reshape(holds(*state, *fixed)[0], ()),
        lambda state: advance(*state, *fixed),
        tuple(carried),
    )


def _scan(table: OpTable, body: Any, start: Any, rows: Any, fixed: Any) -> Any:
    advance = _subprogram(body, table)

    def step(state: Any, row: Any) -> tuple[Any, Any]:
        results = advance(*state, *row, *fixed)
        return results[: len(state)], results[len(state) :]

    end, stacked = jax.lax.scan(step, tuple(start), tuple(rows))
    return [*end, *stacked]


def _map(table: OpTable, body: Any, rows: Any, fixed: Any) -> Any:
    apply = _subprogram(body, table)
    return jax.lax.map(lambda row: apply(*row, *fixed), tuple(rows))


def _under_grad_mode(table: OpTable, _enabled: bool, body: Any, *operands: Any) -> Any:
    return _subprogram(body, table)(*operands)


def _under_autocast(
    table: OpTable, _device: str, _dtype: Any, _on: bool, _cache: Any, body: Any, *operands: Any
) -> Any:
    # Decomposing made every cast that autocast implies an operator of the body.
    return _subprogram(body, table)(*operands)


_CONTROL: Mapping[str, Callable[..., Any]] = {
    "cond": _condition,
    "while_loop": _while,
    "scan": _scan,
    "map_impl": _map,
    "wrap_with_set_grad_enabled": _under_grad_mode,
    "wrap_with_autocast": _under_autocast,
}

_OF_EXTENTS: Mapping[Any, Callable[..., Any]] = {
    torch.sym_max: jax.core.max_dim,
    torch.sym_min: jax.core.min_dim,
    torch.sym_float: lambda extent: jnp.asarray(extent, jnp.float64),
    torch.sym_not: operator.not_,
}


def is_known(target: Any, table: OpTable) -> bool:
    """True when `run_graph` knows what to do for a node's target."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in _CONTROL
    return not isinstance(target, torch._ops.OpOverload) or table.find(target) is not None
