"""What a TorchScript module holds, and what in it stands in the way of an export.

What lives here: traps that are found by looking at its graph, with the author's lines, and the
figures that `hloserve inspect-torchscript` prints. What does not: tracing it
(`hloserve.export.torchscript.source`). Nothing is executed. One thread.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hloserve.export.torch.arrays import torch
from hloserve.export.torchscript.graph import is_constant_true, place_of, scripted_parts, walk

__all__ = ["OperatorCount", "TreeLine", "count_operators", "find_traps", "module_tree"]

_WATCHED = {
    "prim::If": "a branch; fine when it depends on shapes or settings alone",
    "prim::Loop": "a loop; fine when its count depends on shapes or settings alone",
    "aten::nonzero": "the shape of its result depends on values",
    "aten::index": "with a mask, the shape of its result depends on values",
    "aten::masked_select": "the shape of its result depends on values",
    "aten::unique": "the shape of its result depends on values",
    "aten::_unique2": "the shape of its result depends on values",
    "aten::unique_consecutive": "the shape of its result depends on values",
    "aten::repeat_interleave": "with a tensor of counts, its shape depends on values",
    "torchvision::nms": "the number of boxes depends on values; cut it off with wrap",
    "aten::item": "reads a value, which a program cannot decide by",
    "aten::gru": "recurrent",
    "aten::lstm": "recurrent",
    "aten::rnn_tanh": "recurrent",
    "aten::rnn_relu": "recurrent",
    "aten::_convolution": "a traced convolution",
    "aten::adaptive_max_pool2d": "its windows differ when extents do not divide",
}
_READS_VALUE = {
    "aten::Bool", "aten::Int", "aten::Float", "aten::IntImplicit", "aten::FloatImplicit",
    "aten::ScalarImplicit", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose",
    "prim::tolist",
}  # fmt: skip
_TRAINING_INPUT = {
    "aten::dropout": 2,
    "aten::dropout_": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
    "aten::feature_alpha_dropout": 2,
    "aten::batch_norm": 5,
}
"""Which input of an operator says that it trains."""
_MOST_PLACES = 3


@dataclass(frozen=True, slots=True)
class OperatorCount:
    """How often an operator occurs in the inlined graph.

    Attributes:
        remark: why it is worth a look; empty for most.
        reads_values: it decides by a tensor's values, which no program can.
        places: the first lines of the author's code, when there is a remark.
    """

    operator: str
    count: int
    remark: str
    reads_values: bool
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A module of the tree: its path, type, and the size of all that is in it."""

    path: str
    depth: int
    kind: str
    parameters: int


def module_tree(module: Any, depth: int = 2) -> list[TreeLine]:
    """The modules down to a depth, parents first."""
    lines = []
    for path, part in module.named_modules():
        level = path.count(".") + 1 if path else 0
        if level <= depth:
            kind = getattr(part, "original_name", type(part).__name__)
            lines.append(TreeLine(path, level, kind, sum(p.numel() for p in part.parameters())))
    return lines


def count_operators(module: Any) -> list[OperatorCount]:
    """The operators of `forward` and all that it calls, the most frequent first."""
    nodes = list(walk(module.inlined_graph))
    deciding = {_id_of(node) for node in nodes if _decides_by_values(node)}
    counts = Counter(node.kind() for node in nodes if node.kind() != "prim::Constant")
    found = []
    for kind, count in counts.most_common():
        same = [node for node in nodes if node.kind() == kind]
        reading = [node for node in same if _id_of(node) in deciding]
        remark = _WATCHED.get(kind, "")
        if reading:
            remark = "decides by a tensor's values, which a program cannot; cut it off with wrap"
        places = tuple(filter(None, dict.fromkeys(map(place_of, reading or same))))
        found.append(
            OperatorCount(
                kind, count, remark, bool(reading), places[:_MOST_PLACES] if remark else ()
            )
        )
    return found


def _id_of(node: Any) -> str:
    """Tells nodes apart: each access makes a new Python object."""
    return f"{node.kind()}:{[value.debugName() for value in node.outputs()]}:{place_of(node)}"


def _decides_by_values(node: Any) -> bool:
    if node.kind() not in ("prim::If", "prim::Loop"):
        return False
    deciding = list(node.inputs())[: 1 if node.kind() == "prim::If" else 2]
    if node.kind() == "prim::Loop":  # its body returns whether to go on
        deciding.append(next(next(node.blocks()).outputs()))
    return any(_comes_of_values(value, set()) for value in deciding)


def _comes_of_values(value: Any, seen: set[str]) -> bool:
    name = value.debugName()
    if name in seen or value.type().kind() == "TensorType":
        return False  # of a tensor only the operators below read values
    seen.add(name)
    node = value.node()
    inputs = list(node.inputs())
    if node.kind() in _READS_VALUE and any(i.type().kind() == "TensorType" for i in inputs):
        return True
    return any(_comes_of_values(each, seen) for each in inputs)


def find_traps(module: Any) -> list[str]:
    """What is wrong with the ScriptModules in a module, one sentence each.

    Args:
        module: in eval mode; what it computes then is looked at.
    """
    findings: list[str] = []
    roots = _roots(module)
    for part in roots:
        nodes = list(walk(_evaluation_graph(part)))
        findings += _kept_state(nodes)
        findings += _training(nodes)
    return list(dict.fromkeys(findings))


def _roots(module: Any) -> list[Any]:
    """ScriptModules that are not inside of another one."""
    parts = scripted_parts(module)
    inner = {id(child) for part in parts for child in part.modules() if child is not part}
    return [part for part in parts if id(part) not in inner and part._c._has_method("forward")]


def _evaluation_graph(part: Any) -> Any:
    """The inlined graph of forward, without the branches that only training takes."""
    try:
        frozen = torch._C._freeze_module(part._c, preserveParameters=True)
    except RuntimeError:  # torch cannot freeze modules with interfaces
        return part.inlined_graph
    return frozen._get_method("forward").graph


def _kept_state(nodes: list[Any]) -> Iterator[str]:
    kept = [node for node in nodes if node.kind() == "prim::SetAttr"]
    names = ", ".join(repr(name) for name in dict.fromkeys(node.s("name") for node in kept))
    if kept:
        yield (
            f"forward() keeps {names} from call to call{_at(kept)}, and a served model keeps"
            " nothing between requests; with wrap, call an inner module and make its state an"
            " input and an output"
        )


def _training(nodes: list[Any]) -> Iterator[str]:
    places: dict[str, list[Any]] = {}
    for node in nodes:
        index = _TRAINING_INPUT.get(node.kind())
        if index is not None and is_constant_true(list(node.inputs())[index]):
            places.setdefault(node.kind(), []).append(node)
    for kind, found in places.items():
        yield (
            f"{len(found)} x {kind.removeprefix('aten::')} in training mode, fixed in the"
            f" script{_at(found)}: call .eval() on the module before it is traced or scripted"
        )


def _at(nodes: list[Any]) -> str:
    places = list(filter(None, dict.fromkeys(map(place_of, nodes))))[:_MOST_PLACES]
    return f" ({', '.join(places)})" if places else ""
