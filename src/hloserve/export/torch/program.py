"""An exported program of torch as a function of JAX arrays, with its weights in order.

What lives here: taking a program apart into operators that have a lowering, everything that such a
program must not hold, and its weights. What does not: making the program of a module
(`hloserve.export.torch.source`) or of TorchScript (`hloserve.export.torchscript.source`).

Rules.
1. Weights are bound by the program's own list of inputs, in its order, never by two lists side by
   side: decomposing puts lifted constants between parameters and buffers.
2. Parameters and buffers that nothing uses stay; tied ones are one weight, under their first name.

One thread.
"""

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hloserve.core.errors import ExportProblem
from hloserve.export.source import NamedArrays
from hloserve.export.torch.arrays import array_of, dtype_of, torch
from hloserve.export.torch.interpreter import (
    WRAPPED,
    describe_place,
    is_known,
    needed_nodes,
    run_graph,
    subgraphs,
)
from hloserve.export.torch.ops import OpTable, load_op_table

__all__ = ["TorchProgram", "quiet_torch", "read_program"]

_MOST_PLACES = 3
"""Places that a message names of one operator."""
_LAPACK = frozenset(
    f"aten.{name}"
    for name in (
        *("_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex"),
        *("_linalg_svd", "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf"),
        *("linalg_cholesky_ex", "linalg_eig", "linalg_eigvals", "linalg_householder_product"),
        *("linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lstsq"),
        *("linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_qr"),
        *("linalg_solve_triangular", "lu_unpack", "ormqr", "triangular_solve"),
    )
)
"""Operators that XLA leaves to LAPACK, or to a library of the device."""
_CHECKS = ("aten._linalg_check_errors",)
"""What operators with effects do not matter: they look at what LAPACK says."""


@dataclass(frozen=True)
class TorchProgram:
    """A program that JAX can trace.

    Attributes:
        weights: in the order of the program's inputs; arrays share the module's memory.
        notes: what was merged.
    """

    weights: NamedArrays
    notes: tuple[str, ...]
    _module: Any
    _slots: tuple["_Slot", ...]
    _results: tuple[int, ...]
    _table: OpTable

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run on the inputs, one per tensor among the program's, then the weights.

        Raises:
            LoweringFailed: an operator cannot be lowered for these shapes.
        """
        inputs = iter(arrays[: len(arrays) - len(self.weights)])
        weights = arrays[len(arrays) - len(self.weights) :]
        arguments = [slot.fill(inputs, weights) for slot in self._slots]
        results = run_graph(self._module, arguments, self._table)
        return [results[index] for index in self._results]


@dataclass(frozen=True)
class _Slot:
    """A placeholder: weight number `weight`, or an input, or what torch fixed when it traced."""

    weight: int | None = None
    is_input: bool = False
    fixed: Any = None

    def fill(self, inputs: Iterator[Any], weights: Sequence[Any]) -> Any:
        if self.weight is not None:
            return weights[self.weight]
        return next(inputs) if self.is_input else self.fixed


def read_program(exported: Any, model: str, *, has_batch: bool = False) -> TorchProgram:
    """Decompose an exported program, check it and bind its weights.

    Args:
        exported: a `torch.export.ExportedProgram`, of a module in eval mode. Changed.
        model: the bundle's name, for messages.
        has_batch: there are batch sizes, so its rows must not depend on each other.

    Raises:
        ExportProblem: it holds what cannot or must not be served; all findings.
    """
    table = load_op_table()
    _reshape_instead_of_view(exported)
    by_batch = list(_batch_statistics(exported.graph_module)) if has_batch else []
    with quiet_torch():
        program = exported.run_decompositions(dict(table.decompositions))
    findings = [
        *by_batch,
        *_mutations(program.graph_signature),
        *_open_shapes(program.graph_module),
        *_random_operators(program.graph_module),
        *_platform_operators(program.graph_module),
        *_missing_operators(program.graph_module, table),
    ]
    slots, weights, notes = _bind(program, findings)
    if findings:
        raise ExportProblem(model, findings)
    return TorchProgram(weights, notes, program.graph_module, slots, _results(program), table)


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Trace without what torch prints, warns of and logs about itself, and without fused kernels.

    On failure torch.export prints the whole graph on stderr. A fused encoder layer is one operator
    that nothing can lower.
    """
    fused, silenced = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.mha.set_fastpath_enabled(False)
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(silenced)
            torch.backends.mha.set_fastpath_enabled(fused)


def _reshape_instead_of_view(exported: Any) -> None:
    """A view asks for strides that operators which are kept whole do not promise."""
    aten = torch.ops.aten
    for module in subgraphs(exported.graph_module):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target in (
                aten.view.default,
                aten._unsafe_view.default,
            ):
                node.target = aten.reshape.default
        module.recompile()


def _results(program: Any) -> tuple[int, ...]:
    kinds = torch.export.graph_signature
    return tuple(
        index
        for index, spec in enumerate(program.graph_signature.output_specs)
        if spec.kind is kinds.OutputKind.USER_OUTPUT
        and not isinstance(spec.arg, kinds.ConstantArgument)
    )


def _bind(
    program: Any, findings: list[str]
) -> tuple[tuple[_Slot, ...], NamedArrays, tuple[str, ...]]:
    kinds = torch.export.graph_signature
    weights: list[tuple[str, Any]] = []
    notes: list[str] = []
    places: dict[Any, int] = {}
    slots = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is kinds.InputKind.USER_INPUT:
            constant = isinstance(spec.arg, kinds.ConstantArgument)
            slots.append(_Slot(fixed=spec.arg.value) if constant else _Slot(is_input=True))
            continue
        if spec.kind is kinds.InputKind.TOKEN:  # orders effects, which have been looked at
            slots.append(_Slot())
            continue
        name = str(spec.target).removeprefix(f"{WRAPPED}.")
        tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if not isinstance(tensor, torch.Tensor):
            findings.append(
                f"{name}: the model holds an object that is no tensor ({spec.arg}), as layers with"
                " packed weights do; export the model before it is quantised"
            )
            continue
        place = places.setdefault(_memory(tensor), len(weights))
        if place < len(weights):
            notes.append(f"weight {name!r} is tied to {weights[place][0]!r} and stored once")
        elif dtype_of(tensor.dtype) is None:
            findings.append(f"weight {name!r} has dtype {tensor.dtype}, which no bundle can hold")
        else:
            weights.append((name, array_of(tensor)))
        slots.append(_Slot(weight=place))
    return tuple(slots), tuple(weights), tuple(notes)


def _memory(tensor: Any) -> Any:
    """Equal for tensors that are one; an empty tensor has no address to compare."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _mutations(signature: Any) -> Iterator[str]:
    kinds = torch.export.graph_signature.OutputKind
    for spec in signature.output_specs:
        if spec.kind in (kinds.BUFFER_MUTATION, getattr(kinds, "PARAMETER_MUTATION", None)):
            yield (
                f"buffer {spec.target.removeprefix(f'{WRAPPED}.')!r} is changed by each call, and a"
                " served model keeps nothing between calls; is its layer in training mode? Call"
                " .eval(), or take the update out of forward()"
            )


def _calls(module: Any) -> Iterator[Any]:
    """The operators that results depend on, of the graph and of those it calls."""
    for part in subgraphs(module):
        needed = needed_nodes(part.graph)
        yield from (n for n in part.graph.nodes if n.op == "call_function" and n in needed)


def _batch_statistics(module: Any) -> Iterator[str]:
    """Batch normalisation by the batch itself; before decomposition, when it still has its name."""
    for node in _calls(module):
        if node.target is torch.ops.aten.batch_norm.default and node.args[5]:
            yield (
                f"batch_norm in {describe_place(node)} normalises by the batch it is given, as in"
                " training, so each row's answer depends on the rows of other requests; pass"
                " running statistics and training=False, use another normalisation, or leave"
                " batch_sizes out"
            )


def _open_shapes(module: Any) -> Iterator[str]:
    """Shapes that depend on values: the first operator of each is named."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    known: set[Any] = set()
    for node in _calls(module):
        said = node.meta.get("val")
        tensors = said if isinstance(said, tuple | list) else [said]
        shapes = [t.shape for t in tensors if isinstance(t, torch.Tensor)]
        symbols = {s for shape in shapes for s in free_unbacked_symbols(tuple(shape))}
        if symbols - known:
            yield (
                f"the shape of the result of {_short(node.target)} in {describe_place(node)}"
                " depends on values: a program has fixed shapes; use torch.where and a mask, topk"
                " with a fixed count, or leave this part to a postprocess hook"
            )
        known |= symbols


def _random_operators(module: Any) -> Iterator[str]:
    for node in _calls(module):
        if _draws(node):
            yield (
                f"{_short(node.target)} in {describe_place(node)} draws random numbers: the same"
                " request would get one answer for ever; is the layer in training mode? Call"
                " .eval(), or make the random numbers an input"
            )


def _draws(node: Any) -> bool:
    """Whether a node makes random numbers; some do so only when told a rate of dropout."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    schema = node.target._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    given.update(node.kwargs)
    if node.target._schema.name == "aten::scaled_dot_product_attention":
        return bool(given.get("dropout_p"))
    if "train" in given and "dropout" in given:
        return bool(given["train"] and given["dropout"])
    return True


def _platform_operators(module: Any) -> Iterator[str]:
    for node in _calls(module):
        name = _short(node.target)
        if name in _LAPACK:
            yield (
                f"{name} in {describe_place(node)} needs LAPACK, or another library of one"
                " platform: no program of it runs everywhere; compute it before the export, in a"
                " hook, or with plain operations"
            )
        elif name == "with_effects" and _short(node.args[1]) not in _CHECKS:
            yield (
                f"{_short(node.args[1])} in {describe_place(node)} does something besides computing"
                " its result, which a program cannot; take it out"
            )


def _missing_operators(module: Any, table: OpTable) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    for node in _calls(module):
        name = _short(node.target)
        is_told = name in _LAPACK or name == "with_effects" or _draws(node)
        if not is_known(node.target, table) and not is_told:
            found = places.setdefault(name, [])
            where = describe_place(node)
            if where not in found:
                found.append(where)
    for name, found_at in sorted(places.items()):
        more = f" and {len(found_at) - _MOST_PLACES} more" if len(found_at) > _MOST_PLACES else ""
        yield (
            f"operator {name} has no lowering (in {'; '.join(found_at[:_MOST_PLACES])}{more});"
            " write it by other operators"
        )


@functools.lru_cache(maxsize=1024)
def _short(target: Any) -> str:
    """``aten.topk`` of an overload's full name."""
    text = target.name() if hasattr(target, "name") and callable(target.name) else str(target)
    return text.replace("::", ".").removesuffix(".default")
