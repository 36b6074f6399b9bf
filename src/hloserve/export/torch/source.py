"""PyTorch modules as a source of bundles.

What lives here: `export_pytorch`, tracing a module by torch.export for given shapes, and running it
for the proof. What does not: making a JAX function of what was traced
(`hloserve.export.torch.program`) and which modules are refused (`hloserve.export.torch.traps`).

Rules.
1. The module is never changed: not its mode, its weights nor its device.
2. torch's own settings are as before when a function here returns, and it prints nothing.

One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from typing_extensions import Unpack

from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.author_line import author_line, error_text
from hloserve.export.callbacks import select_outputs
from hloserve.export.jax.tracing import trace_function
from hloserve.export.options import ExportOptions, MatmulPrecision
from hloserve.export.pipeline import export_source
from hloserve.export.report import ExportReport
from hloserve.export.source import NamedArrays, Shape, SymbolicTraceFailed, Traced
from hloserve.export.torch.arrays import array_of, tensor_of, torch
from hloserve.export.torch.interpreter import WRAPPED, LoweringFailed
from hloserve.export.torch.program import quiet_torch, read_program
from hloserve.export.torch.results import named_tensors
from hloserve.export.torch.traps import (
    check_input,
    check_module,
    explain_failure,
    is_data_dependent,
)

__all__ = ["TorchSource", "as_arguments", "export_pytorch", "export_torch_source"]

_PRECISIONS: Mapping[str, MatmulPrecision] = {
    "highest": "highest",
    "high": "high",
    "medium": "default",
}
"""From `torch.get_float32_matmul_precision`."""

_SMALLEST_OPEN_EXTENT = 2
"""torch takes an example extent of 1 for a fixed one."""


def export_pytorch(
    module: Any,
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export a PyTorch module as a bundle.

    Args:
        module: a `torch.nn.Module` on the CPU and in eval mode; it is left as it is. Its forward
            returns a tensor, or a tuple, list, dict or dataclass of tensors, nested or not.
        example_inputs: the arguments of forward: a tuple of tensors or arrays, a single one, or a
            mapping, which is then its keyword arguments. Numbers, text and None among them are
            fixed in the program.
        example_kwargs: keyword arguments of forward; their tensors are inputs by that name.
        strict: trace by TorchDynamo instead of running forward on fake tensors.
        **options: see `ExportOptions`. The shape variants are example inputs as above.

    Raises:
        ExportProblem: the module cannot or must not be exported; all findings.
        ProofFailed: the program does not compute what the module does.
        BundleProblem: the bundle cannot be written.
    """
    args, kwargs = as_arguments(example_inputs, example_kwargs)
    source = TorchSource(module, args, kwargs, options, strict=strict)
    return export_torch_source(source, options)


def export_torch_source(source: "TorchSource", options: ExportOptions) -> ExportReport:
    """Export a source; the shape variants of `options` are arguments of forward."""
    variants = options.get("shape_variants")
    if variants is not None:
        named = [_named_inputs(*as_arguments(given, None))[0] for given in variants]
        arrays = [[array_of(tensor) for _, tensor in variant] for variant in named]
        options = {**options, "shape_variants": arrays}
    return export_source(source, options)


class TorchSource:
    """A module with example inputs.

    Args:
        module: see `export_pytorch`.
        args: positional arguments of its forward.
        kwargs: keyword arguments.
        options: those of the export: output selection, precision and compile options are of use.
        strict: see `export_pytorch`.

    Raises:
        ExportProblem: the module must not be exported, or fails on the example.
    """

    framework = "pytorch"

    def __init__(
        self,
        module: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: ExportOptions,
        *,
        strict: bool = False,
    ) -> None:
        self._options, self._strict = options, strict
        self._model = options.get("name") or Path(options.get("dir", "")).name
        self.provenance: Mapping[str, object] = {
            "torch_version": str(torch.__version__),
            "torchax_version": version("torchax"),
            "jax_version": jax.__version__,
            **({"torch_export_strict": True} if strict else {}),
        }
        named, place = _named_inputs(args, kwargs)
        findings = self._check_module(module)
        findings += [wrong for name, t in named if (wrong := check_input(name, t)) is not None]
        findings += _check_compile_options(options)
        if findings:
            raise ExportProblem(self._model, findings)
        self._names = [name for name, _ in named]
        self._examples = [tensor.detach() for _, tensor in named]
        self._flat = _FlatModule(module, place, options.get("output_select"))
        self.inputs: NamedArrays = tuple((name, array_of(tensor)) for name, tensor in named)
        self._output_names = self._run_example()

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        """See `Source.trace`."""
        symbolic = any(isinstance(extent, str) for shape in shapes for extent in shape)
        exported = self._export(shapes, symbolic=symbolic)
        program = read_program(exported, self._model, has_batch=self._has_batch)
        try:
            artifact = trace_function(
                program,
                shapes,
                [array.dtype for _, array in self.inputs],
                program.weights,
                model=self._model,
                precision=self._options.get("matmul_precision") or _PRECISIONS[_torch_precision()],
                # torch's int64 would become int32 in silence
                compile_options={
                    **(self._options.get("compile_options") or {}),
                    "enable_x64": True,
                },
                input_names=self._names,
            )
        except (ExportProblem, SymbolicTraceFailed) as failed:
            if not isinstance(failed.__cause__, LoweringFailed):
                raise
            if symbolic:
                raise SymbolicTraceFailed(str(failed.__cause__)) from failed
            raise ExportProblem(self._model, str(failed.__cause__)) from failed
        return Traced(artifact, program.weights, self._output_names, program.notes)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the module itself, without gradients."""
        with torch.no_grad():
            results = self._flat(*map(tensor_of, inputs))
        return [array_of(result) for result in results]

    def _run_example(self) -> tuple[str, ...]:
        """Run the module once, for the names of its outputs; what is wrong with them is said."""
        try:
            with torch.no_grad():
                result = self._flat.call([example.clone() for example in self._examples])
        except Exception as error:  # the model's own code runs here, so anything can be raised
            at = author_line(error)
            shapes = ", ".join(
                f"{name} {list(example.shape)}"
                for name, example in zip(self._names, self._examples, strict=True)
            )
            raise ExportProblem(
                self._model,
                f"the model does not run on its example inputs{at}: {error_text(error)}; give"
                f" inputs that forward() takes (these are {shapes})",
            ) from error
        try:
            return tuple(name for name, _ in named_tensors(result))
        except TypeError as error:
            raise ExportProblem(self._model, str(error)) from error

    def _check_module(self, module: Any) -> list[str]:
        """What is wrong with the module before it is traced; TorchScript says it differently."""
        return check_module(module, has_batch=self._has_batch)

    @property
    def _has_batch(self) -> bool:
        """Whether servers merge rows: there are batch sizes, and no output opts out of it."""
        axes = self._options.get("output_batch_axes") or ()
        return self._options.get("batch_sizes") is not None and None not in axes

    def _examples_of(self, shapes: Sequence[Shape]) -> list[Any]:
        """Tensors to trace with; values matter only where a shape is the example's."""
        extents = _open_extents(shapes, self._examples)
        return [
            example.new_zeros([extents[e] if isinstance(e, str) else e for e in shape])
            if tuple(shape) != tuple(example.shape)
            else example
            for shape, example in zip(shapes, self._examples, strict=True)
        ]

    def _export(self, shapes: Sequence[Shape], *, symbolic: bool) -> Any:
        extents = _open_extents(shapes, self._examples)
        examples = self._examples_of(shapes)
        dims = {name: torch.export.Dim(name) for name in extents}
        dynamic = tuple(
            {axis: dims[e] for axis, e in enumerate(shape) if isinstance(e, str)}
            for shape in shapes
        )
        try:
            with quiet_torch(), torch.no_grad():
                return torch.export.export(
                    self._flat,
                    tuple(examples),
                    dynamic_shapes={"tensors": dynamic} if symbolic else None,
                    strict=self._strict,
                )
        except Exception as error:  # torch and the model's own code raise anything here
            reason = explain_failure(error, symbolic=symbolic)
            if symbolic and not is_data_dependent(error):
                raise SymbolicTraceFailed(reason) from error
            raise ExportProblem(self._model, reason) from error


class _FlatModule(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A module whose forward takes tensors and returns a tuple of them.

    Args:
        model: the author's.
        place: from tensors to the arguments of its forward.
        select: from its result to what is exported.
    """

    def __init__(
        self,
        model: Any,
        place: Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]],
        select: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__()
        self.training = False  # of this wrapper alone; .eval() would change the author's module
        setattr(self, WRAPPED, model)
        self._place, self._select = place, select

    def arguments(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the model's forward, these tensors among them."""
        return self._place(tensors)

    def call(self, tensors: Sequence[Any]) -> Any:
        """What the model returns, selected but as it is."""
        args, kwargs = self._place(tensors)
        result = getattr(self, WRAPPED)(*args, **kwargs)
        return select_outputs(self._select, result)

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        """The tensors of what the model returns."""
        return tuple(tensor for _, tensor in named_tensors(self.call(tensors)))


def as_arguments(
    example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of forward from what an exporter was given."""
    kwargs = dict(example_kwargs or {})
    if isinstance(example_inputs, Mapping):
        return (), {**example_inputs, **kwargs}
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), kwargs
    return (example_inputs,), kwargs


def _named_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]]:
    """The tensors among the arguments by name, and the way back from tensors to arguments."""
    pytree = torch.utils._pytree
    leaves, tree = pytree.tree_flatten((list(args), dict(kwargs)))
    leaves = [_as_tensor(leaf) for leaf in leaves]
    paths = [path for path, _ in pytree.tree_flatten_with_path((list(args), dict(kwargs)))[0]]
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    keys = [
        [str(getattr(key, "key", getattr(key, "idx", key))) for key in paths[index]]
        for index in places
    ]
    # The arguments are numbered among those that hold tensors.
    numbers = {
        key: number for number, key in enumerate(dict.fromkeys(k for w, k, *_ in keys if w == "0"))
    }
    named = []
    for index, (of_kwargs, first, *rest) in zip(places, keys, strict=True):
        first = first if of_kwargs == "1" else f"input_{numbers[first]}"
        named.append((".".join([first, *rest]), leaves[index]))

    def place(tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        filled = list(leaves)
        for index, tensor in zip(places, tensors, strict=True):
            filled[index] = tensor
        arguments: tuple[list[Any], dict[str, Any]] = pytree.tree_unflatten(filled, tree)
        return arguments

    return named, place


def _as_tensor(leaf: Any) -> Any:
    """Arrays of NumPy and JAX as tensors; all else as it is."""
    is_array = not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__array__")
    return tensor_of(leaf) if is_array else leaf


def _open_extents(shapes: Sequence[Shape], examples: Sequence[Any]) -> dict[str, int]:
    """An extent for each name to trace with: the example's, but not 1 and no two the same."""
    extents: dict[str, int] = {}
    for shape, example in zip(shapes, examples, strict=True):
        for name, of_example in zip(shape, example.shape, strict=True):
            if isinstance(name, str) and name not in extents:
                extent = max(of_example, _SMALLEST_OPEN_EXTENT)
                while extent in extents.values():
                    extent += 1
                extents[name] = extent
    return extents


def _check_compile_options(options: ExportOptions) -> list[str]:
    given = options.get("compile_options") or {}
    if given.get("enable_x64") is False:
        return [
            "compile_options: enable_x64 cannot be off: torch's int64 would become int32; convert"
            " in the model's forward"
        ]
    return []


def _torch_precision() -> str:
    return str(torch.get_float32_matmul_precision())
