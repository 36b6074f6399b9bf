"""JAX functions as a source of bundles.

What lives here: `export_jax`, and how inputs, weights and results of a function are named and
ordered. What does not: Flax and Equinox, which make such a function of a module
(`hloserve.export.modules.flax_source`, `hloserve.export.modules.equinox_source`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from typing_extensions import Unpack

from hloserve.bundle.findings import listing, repeated
from hloserve.core.dtypes import by_numpy
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.callbacks import select_outputs
from hloserve.export.jax.tracing import jax_settings, needs_x64, trace_function
from hloserve.export.modules.trees import dotted
from hloserve.export.options import ExportOptions
from hloserve.export.pipeline import export_source
from hloserve.export.report import ExportReport
from hloserve.export.source import NamedArrays, Shape, Traced

__all__ = ["JaxSource", "export_jax"]

# What JAX makes of Python's numbers; with 64-bit types on it would be the wide ones.
_MISCALLED = (TypeError, KeyError, AttributeError)
"""What a function raises that is called with other arguments than it expects."""
_SCALAR_DTYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int32), float: np.dtype(np.float32)}


def export_jax(
    function: Callable[..., Any],
    example_inputs: Any,
    weights: Any = (),
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export a JAX function as a bundle.

    Args:
        function: ``function(*inputs, *weights)``; returns an array, or a tuple, list or dict of
            arrays. Weights that are given as a tree are one last argument, of that structure.
        example_inputs: one per input: an array, a number, or a dict, list or tuple of these. A
            mapping of names to inputs names them. A single array may stand alone.
        weights: pairs of name and array, each an argument of its own; or a tree of arrays (a dict,
            a list...), whose paths are the names: ``layer1.kernel``.
        **options: see `ExportOptions`.

    Raises:
        ExportProblem: the function cannot or must not be exported; all findings.
        ProofFailed: the program does not compute what the function does.
        BundleProblem: the bundle cannot be written.
    """
    return export_source(JaxSource(function, example_inputs, weights, options), options)


@dataclass(frozen=True, slots=True)
class _WeightArguments:
    """How the function wants its weights.

    Attributes:
        indices: one per weight that the function takes: which of the stored ones it is.
        tree: structure of the one argument that holds them all; None for an argument each.
        tied: names of weights that are another one's memory, and that one's name.
    """

    indices: tuple[int, ...]
    tree: Any
    tied: Mapping[str, str]

    def __call__(self, stored: Sequence[Any]) -> Sequence[Any]:
        leaves = [stored[index] for index in self.indices]
        return leaves if self.tree is None else (jax.tree.unflatten(self.tree, leaves),)


class JaxSource:
    """A JAX function with example inputs and weights.

    Args:
        function: see `export_jax`.
        example_inputs: see `export_jax`.
        weights: see `export_jax`.
        options: those of the export: output selection, precision and compile options are of use.
        framework: recorded as provenance.
        provenance: likewise.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        example_inputs: Any,
        weights: Any,
        options: ExportOptions,
        *,
        framework: str = "jax",
        provenance: Mapping[str, object] | None = None,
    ) -> None:
        self.framework = framework
        self.provenance: Mapping[str, object] = {
            "jax_version": jax.__version__,
            **(provenance or {}),
        }
        self._function, self._options = function, options
        self._model = options.get("name") or Path(options.get("dir", "")).name
        findings: list[str] = []
        self.inputs, self._input_tree = _named_inputs(example_inputs, findings)
        self.weights, self._weights_of = _named_weights(weights, findings)
        if findings:
            raise ExportProblem(self._model, findings)
        self._jitted = jax.jit(lambda *arguments: self._call(arguments)[1])
        self._notes = tuple(
            f"weight {name!r} is {first!r} again: stored once, under that name"
            for name, first in self._weights_of.tied.items()
        )

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        names: tuple[str, ...] = ()
        notes = list(self._notes)

        def program(*arguments: Any) -> list[Any]:
            nonlocal names
            names, results = self._call(arguments)
            notes.extend(_wide_notes(names, results, {each.dtype for each in arguments}))
            return results

        program.__wrapped__ = self._function  # type: ignore[attr-defined]  # whose closure is looked at
        try:
            artifact = trace_function(
                program,
                shapes,
                [array.dtype for _, array in self.inputs],
                self.weights,
                model=self._model,
                precision=self._options.get("matmul_precision"),
                compile_options=self._options.get("compile_options"),
                input_names=self._options.get("input_names") or [name for name, _ in self.inputs],
                notes=notes,
            )
        except ExportProblem as problem:
            hint = self._call_hint(problem.__cause__)
            if not hint:
                raise
            raise ExportProblem(self._model, [f + hint for f in problem.findings]) from (
                problem.__cause__
            )
        return Traced(artifact, self.weights, names, tuple(notes))

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        # Jitted, because operation by operation compiles each of them: MiniLM takes 9 s and not 3.
        with self.settings():
            results = self._jitted(*inputs, *(array for _, array in self.weights))
            return [np.asarray(result) for result in results]

    def settings(self) -> AbstractContextManager[None]:
        """JAX set up as it is for the trace."""
        arrays = [array for _, array in (*self.inputs, *self.weights)]
        return jax_settings(
            self._options.get("matmul_precision"),
            self._options.get("compile_options"),
            x64=needs_x64([array.dtype for array in arrays]),
        )

    def arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs as the function takes them: what was a tree is one again."""
        return tuple(jax.tree.unflatten(self._input_tree, inputs))

    def results(self, result: Any) -> tuple[tuple[str, ...], list[Any]]:
        """Names and arrays of what the function returned, after the selection, in order."""
        selected = select_outputs(self._options.get("output_select"), result)
        return _named_results(selected, self._model)

    def _call_hint(self, error: BaseException | None) -> str:
        """How the weights arrived, for a function that fails as if it expected them otherwise."""
        if self.framework != "jax" or not self.weights or not isinstance(error, _MISCALLED):
            return ""
        tree = self._weights_of.tree
        if tree is None:
            names = listing(name for name, _ in self.weights)
            return f" (the weights were given as pairs, and are an argument each: {names})"
        kind = tree.node_data()[0].__name__ if tree.node_data() else "array"
        return (
            f" (the weights were given as one {kind}, and are one argument, after the inputs; pairs"
            " [(name, array), ...] are an argument each)"
        )

    def _call(self, arguments: Sequence[Any]) -> tuple[tuple[str, ...], list[Any]]:
        count = len(self.inputs)
        inputs, weights = arguments[:count], self._weights_of(arguments[count:])
        return self.results(self._function(*self.arguments(inputs), *weights))


def _named_inputs(
    examples: Any, findings: list[str]
) -> tuple[NamedArrays, jax.tree_util.PyTreeDef]:
    if isinstance(examples, Mapping):
        names, values = list(examples), tuple(examples.values())
    else:
        is_several = isinstance(examples, list | tuple)
        values = tuple(examples) if is_several else (examples,)
        names = [f"input_{index}" for index in range(len(values))]
    leaves, tree = jax.tree_util.tree_flatten_with_path(values)
    named = []
    for path, leaf in leaves:
        name = ".".join(filter(None, (names[path[0].idx], dotted(path[1:]))))
        array = _host_array(f"input {name!r}", leaf, findings)
        if array is not None:
            named.append((name, array))
    return tuple(named), tree


def _named_weights(weights: Any, findings: list[str]) -> tuple[NamedArrays, "_WeightArguments"]:
    given = list(weights) if isinstance(weights, Iterator) else weights
    if _is_pairs(given):
        names, leaves = [name for name, _ in given], [value for _, value in given]
        tree = None
    else:
        flat, tree = jax.tree_util.tree_flatten_with_path(given)
        names = [dotted(path) or "param" for path, _ in flat]
        leaves = [leaf for _, leaf in flat]
    if repeated(names):
        findings.append(f"weights: {listing(repeated(names))} names several; names are unique")
    named: list[tuple[str, Array]] = []
    indices: list[int] = []
    tied: dict[str, str] = {}
    known: dict[object, int] = {}
    for name, leaf in zip(names, leaves, strict=True):
        array = _host_array(f"weight {name!r}", leaf, findings)
        if array is None:
            continue
        index = known.setdefault(_memory(leaf, array), len(named))
        if index == len(named):
            named.append((name, np.asarray(array, order="C")))
        else:
            tied[name] = named[index][0]
        indices.append(index)
    return tuple(named), _WeightArguments(tuple(indices), tree, tied)


def _is_pairs(weights: Any) -> bool:
    return isinstance(weights, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in weights
    )


def _memory(leaf: Any, array: Array) -> object:
    """Equal for arrays that are the same memory: tied weights."""
    if array.size == 0 or not hasattr(leaf, "shape"):
        return object()
    return array.ctypes.data, array.shape, array.strides, array.dtype


def _host_array(role: str, value: Any, findings: list[str]) -> Array | None:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        findings.append(
            f"{role} is a random key ({dtype}), which a bundle cannot hold; take the random part"
            " out (dropout off), or pass jax.random.key_data(key) and wrap it in the function"
        )
        return None
    if isinstance(value, bool | int | float) and not hasattr(value, "dtype"):
        return np.asarray(value, _SCALAR_DTYPES[type(value)])
    try:
        array = np.asarray(value)
        by_numpy(array.dtype)
    except (KeyError, TypeError, ValueError):
        kind = getattr(value, "dtype", type(value).__name__)
        usable = "; of these, float8_e4m3fn and float8_e5m2 are" if "float8" in str(kind) else ""
        findings.append(f"{role} is {kind}, which is no array that a bundle can hold{usable}")
        return None
    except RuntimeError as error:  # donated to an earlier call, or on devices of other processes
        findings.append(f"{role} cannot be read: {error}")
        return None
    return array


def _named_results(result: Any, model: str) -> tuple[tuple[str, ...], list[Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(result)
    names, arrays, findings = [], [], []
    for path, leaf in flat:
        name = _output_name(path)
        names.append(name)
        if isinstance(leaf, bool | int | float) and not hasattr(leaf, "dtype"):
            leaf = jax.numpy.asarray(leaf, _SCALAR_DTYPES[type(leaf)])
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        if not _has_bundle_dtype(leaf):
            findings.append(f"result {name!r} is {kind}, which is no array that a bundle can hold")
        arrays.append(leaf)
    if not flat:
        findings.append("the function returns nothing; it must return an array, or several")
    if findings:
        raise ExportProblem(model, [f"{f}; choose with output_select" for f in findings])
    return tuple(names), arrays


def _has_bundle_dtype(leaf: Any) -> bool:
    try:
        by_numpy(leaf.dtype)
    except (AttributeError, KeyError):  # no array, or one of keys or complex numbers
        return False
    return True


def _wide_notes(
    names: Sequence[str], results: Sequence[Any], given: Collection[np.dtype[Any]]
) -> list[str]:
    """Say that 64-bit integers among the arguments made JAX's floats 64 bits wide."""
    wide = np.dtype(np.float64)
    return [
        f"result {name!r} is float64, though no argument is: with 64-bit integers among them, JAX"
        " makes new arrays 64 bits wide; give these a dtype"
        for name, result in zip(names, results, strict=True)
        if result.dtype == wide and wide not in given
    ]


def _output_name(path: Sequence[Any]) -> str:
    if not path:
        return "output"
    prefix = "output_" if isinstance(path[0], jax.tree_util.SequenceKey) else ""
    return prefix + dotted(path)
