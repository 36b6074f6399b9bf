"""A model for the proof: one function for the source, and one, perhaps another, for the program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.core.tensors import Array, TensorSpec
from hloserve.export.proof.prove import Candidate
from hloserve.export.source import NamedArrays, Shape, Traced

Function = Callable[..., Sequence[Any]]


class FunctionSource:
    """A source whose own run is a function of NumPy arrays.

    Args:
        function: of the inputs; returns the outputs.
        examples: the inputs by name.
    """

    framework = "numpy"
    provenance: Mapping[str, object] = {}

    def __init__(self, function: Callable[..., Sequence[Array]], **examples: Array) -> None:
        self.function = function
        self.inputs: NamedArrays = tuple(examples.items())
        self.runs: list[list[Array]] = []

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        """Not traced: tests make programs with `candidate`."""
        raise NotImplementedError

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Call the function, and keep what it was called with."""
        self.runs.append(list(inputs))
        return [np.asarray(array) for array in self.function(*inputs)]


def candidate(
    function: Function, arguments: Sequence[Array], size: int = 0, **more: Any
) -> Candidate:
    """Make a program of a JAX function of inputs and weights, for arrays of these types."""
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arguments]
    with jax.enable_x64(True):
        traced = export.export(jax.jit(function, keep_unused=True), platforms=["cpu"])(*shapes)
    file = f"model.b{size}.mlir" if size else "model.mlir"
    return Candidate(file, traced.mlir_module_serialized, size, **more)


def specs(*declared: IOSpec) -> tuple[TensorSpec, ...]:
    """Specs of declarations that are in order."""
    findings: list[str] = []
    built = build_specs("test", declared, findings)
    assert not findings, findings
    return built
