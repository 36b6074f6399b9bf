"""Graphs of TorchScript: walking them, where a node comes from, and making them traceable.

What lives here: what depends on torch's private API of graphs. What does not: what is wrong with a
graph (`hloserve.export.torchscript.inspection`).

Tracing runs a module's own graphs on tensors without values. Some things stand in the way, and are
taken out of the graphs without a change of what they compute: `.data`, which leaves the trace;
tensors made of literals, which are folded into constants; and what asks for all extents as numbers,
which fixes them: the length of a tensor, and a tuple as result, which becomes a list and then a
tuple again.

One thread.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hloserve.export.torch.arrays import torch

__all__ = ["is_constant_true", "make_traceable", "place_of", "scripted_parts", "walk"]

_TORCH_PATHS = ("/torch/nn/", "/torch/_", "torch/nn/", "/torch/functional.py", "/torch/jit/")
_LINES = (
    re.compile(r'File "([^"]+)", line (\d+)'),  # of a script
    re.compile(r"^\s*(\S+)\((\d+)\): ", re.MULTILINE),  # of a trace
)
_CHECKS = {f"aten::{check}" for check in ("Bool", "eq", "ne", "lt", "le", "gt", "ge")}


def scripted_parts(module: Any) -> list[Any]:
    """The ScriptModules in a module, itself included."""
    return [part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]


def walk(block: Any) -> Iterator[Any]:
    """Every node of a graph or block, those of inner blocks included."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from walk(inner)


def place_of(node: Any) -> str:
    """The line of the author's code that a node comes from, like ``net.py line 7``; or ``""``."""
    original, _, serialised = node.sourceRange().partition("Serialized")
    lines = next(
        filter(None, (form.findall(text) for text in (original, serialised) for form in _LINES)), []
    )
    own = [line for line in lines if not any(part in line[0] for part in _TORCH_PATHS)]
    if not lines:
        return ""
    file, number = (own or lines)[0]
    return f"{os.path.basename(file)} line {number}"


def is_constant_true(value: Any) -> bool:
    """Whether a value of a graph is the constant True."""
    return value.node().kind() == "prim::Constant" and value.toIValue() is True


def make_traceable(module: Any) -> None:
    """Rewrite the graphs of a ScriptModule and its parts.

    The module must be the exporter's own copy, and fresh: torch keeps what it has compiled, and
    TorchScript that is compiled later, against the declared types, would not fit.
    """
    owners = {str(part._c._type()): part for part in scripted_parts(module)}
    graphs = {
        (kind, name): owner._c._get_method(name).graph
        for kind, owner in owners.items()
        for name in owner._c._method_names()
    }
    for graph in graphs.values():
        _take_out_data(graph)
        _ask_for_single_extents(graph)
        torch._C._jit_pass_constant_propagation(graph)
        torch._C._jit_pass_dce(graph)
    if any(_calls_through_interface(graph) for graph in graphs.values()):
        return  # what is called there is not known, so results stay as they are
    results = {key: next(graph.outputs()).type() for key, graph in graphs.items()}
    listed = {
        key: kind
        for key, kind in results.items()
        if key[1] == "forward" and kind.kind() == "TupleType" and _rebuilding(kind) is not None
    }
    for key, graph in graphs.items():
        _adapt_calls(graph, listed)
        if key in listed:
            _return_list(graph)
    for part in scripted_parts(module):
        result = listed.get((str(part._c._type()), "forward"))
        rebuild = _rebuilding(result) if result is not None else None
        if rebuild is not None:
            part.__dict__["forward"] = _Forward(part._c._get_method("forward"), rebuild)


class _Forward:
    """Calls a method that returns a flat list, and gives what it returned before."""

    def __init__(self, method: Any, rebuild: Callable[[Iterator[Any]], Any]) -> None:
        self._method, self._rebuild = method, rebuild

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._method(*args, **kwargs)
        return self._rebuild(iter(result)) if isinstance(result, list) else result


def _take_out_data(graph: Any) -> None:
    for node in [node for node in walk(graph) if node.kind() in ("prim::data", "aten::data")]:
        node.output().replaceAllUsesWith(next(node.inputs()))
        node.destroy()


def _ask_for_single_extents(graph: Any) -> None:
    """Read the extent of one axis where all were asked for as numbers, which fixes all of them."""
    for node in list(walk(graph)):
        tensor, axis = _tensor_and_axis(node)
        # In a list, an open extent is not equal to the same number: a comparison would go wrong.
        if tensor is None or any(use.user.kind() not in _CHECKS for use in node.output().uses()):
            continue
        if axis is None:
            axis = graph.insertConstant(0)
            axis.node().moveBefore(node)
        extent = graph.create("aten::sym_size", [tensor, axis], 1)
        extent.insertBefore(node)
        extent.output().setType(node.output().type())  # int, so that its users still match
        node.output().replaceAllUsesWith(extent.output())
        node.destroy()


def _tensor_and_axis(node: Any) -> tuple[Any, Any]:
    """What one extent is read of; the axis is None for the first, the tensor for other nodes."""
    inputs = list(node.inputs())
    kinds = [value.type().kind() for value in inputs]
    if node.kind() == "aten::len" and kinds == ["TensorType"]:
        return inputs[0], None
    if node.kind() == "aten::size" and kinds == ["TensorType", "IntType"]:
        return inputs[0], inputs[1]
    if node.kind() == "aten::__getitem__" and inputs[0].node().kind() == "aten::size":
        sizes = list(inputs[0].node().inputs())
        return (sizes[0], inputs[1]) if len(sizes) == 1 else (None, None)
    return None, None


def _calls_through_interface(graph: Any) -> bool:
    calls = (node for node in walk(graph) if node.kind() == "prim::CallMethod")
    return any(next(node.inputs()).type().kind() == "InterfaceType" for node in calls)


def _adapt_calls(graph: Any, listed: Mapping[tuple[str, str], Any]) -> None:
    """Make tuples again of what methods return that now return lists."""
    for node in [node for node in walk(graph) if node.kind() == "prim::CallMethod"]:
        kind = listed.get((str(next(node.inputs()).type()), node.s("name")))
        if kind is None:
            continue
        before = node.output()
        call = graph.create("prim::CallMethod", list(node.inputs()), 1)
        call.s_("name", node.s("name"))
        call.insertBefore(node)
        call.output().setType(_list_of_tensors())
        unpack = graph.create("prim::ListUnpack", [call.output()], _tensors_in(kind))
        unpack.insertBefore(node)
        for output in unpack.outputs():
            output.setType(torch._C.TensorType.get())
        before.replaceAllUsesWith(_packed(graph, node, kind, iter(list(unpack.outputs()))))
        node.destroy()


def _packed(graph: Any, before: Any, kind: Any, tensors: Iterator[Any]) -> Any:
    """The value of a type, made of tensors by nodes that are inserted before another."""
    if kind.kind() == "TensorType":
        return next(tensors)
    elements = [_packed(graph, before, element, tensors) for element in kind.elements()]
    node = graph.create("prim::TupleConstruct", elements, 1)
    node.insertBefore(before)
    node.output().setType(kind)
    return node.output()


def _list_of_tensors() -> Any:
    return torch._C.ListType(torch._C.TensorType.get())


def _tensors_in(kind: Any) -> int:
    return 1 if kind.kind() == "TensorType" else sum(map(_tensors_in, kind.elements()))


def _return_list(graph: Any) -> None:
    """Return the tensors of a tuple as a flat list."""
    (result,) = graph.outputs()
    tensors = list(_unpacked(graph, result))
    flat = graph.create("prim::ListConstruct", tensors, 1)
    flat.output().setType(_list_of_tensors())
    graph.appendNode(flat)
    graph.eraseOutput(0)
    graph.registerOutput(flat.output())


def _rebuilding(kind: Any) -> Callable[[Iterator[Any]], Any] | None:
    """From tensors to a value of a type; None for a type that holds more than tuples of tensors."""
    if kind.kind() == "TensorType":
        return next
    # A named tuple prints its name; its type is known, so nothing is looked up.
    if kind.kind() != "TupleType" or not kind.annotation_str.startswith("Tuple["):
        return None
    parts = [_rebuilding(element) for element in kind.elements()]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return lambda tensors: tuple(part(tensors) for part in found)


def _unpacked(graph: Any, value: Any) -> Iterator[Any]:
    if value.type().kind() == "TensorType":
        yield value
        return
    elements = value.type().elements()
    unpack = graph.create("prim::TupleUnpack", [value], len(elements))
    graph.appendNode(unpack)
    for output, kind in zip(unpack.outputs(), elements, strict=True):
        output.setType(kind)
    for output in unpack.outputs():
        yield from _unpacked(graph, output)
