"""What PyTorch tests share: a module traced as an export traces it, run on XLA, beside torch."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from hloserve.core.dtypes import by_numpy
from hloserve.core.tensors import Array
from hloserve.engine.programs.mlir import refine_program
from hloserve.engine.programs.signature import TensorType
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export.artifact import clean_program
from hloserve.export.options import ExportOptions
from hloserve.export.source import Shape, Traced
from hloserve.export.torch.source import TorchSource, as_arguments

__all__ = ["Calling", "check_against_torch", "run_traced", "source_of"]

_TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Share of the largest value of the output."""


class Calling(torch.nn.Module):
    """A module, in eval mode, whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)


def source_of(module: Any, inputs: Any, kwargs: Any = None, **options: Any) -> TorchSource:
    """A source with example inputs."""
    args, named = as_arguments(inputs, kwargs)
    strict = options.pop("strict", False)
    given = cast(ExportOptions, {"dir": "/none/model", **options})
    return TorchSource(module, args, named, given, strict=strict)


def check_against_torch(
    module: Any,
    inputs: Any,
    kwargs: Any = None,
    *,
    batch: Sequence[bool] | bool = True,
    tolerance: float | None = None,
    **options: Any,
) -> Traced:
    """Trace a module, run the program and compare each output with what torch computes.

    Args:
        module: in eval mode.
        inputs: example inputs.
        kwargs: keyword ones.
        batch: which inputs have an open batch axis 0; the program then runs with one row more
            than the example. False for a trace of the example's shapes.
        tolerance: share of the largest value; by default that of the dtype.
        **options: of the export.
    """
    source = source_of(module, inputs, kwargs, **options)
    arrays = [array for _, array in source.inputs]
    has_batch = [batch] * len(arrays) if isinstance(batch, bool) else list(batch)
    shapes: list[Shape] = [
        ("batch", *array.shape[1:]) if opened else array.shape
        for array, opened in zip(arrays, has_batch, strict=True)
    ]
    traced = source.trace(shapes)
    fed = [
        np.concatenate([array, array[:1]]) if opened else array
        for array, opened in zip(arrays, has_batch, strict=True)
    ]
    wanted, got = source.run(fed), run_traced(traced, fed)
    assert len(traced.output_names) == len(wanted) == len(got)
    for name, expected, found in zip(traced.output_names, wanted, got, strict=True):
        _compare(name, expected, found, tolerance)
    return traced


def run_traced(traced: Traced, inputs: Sequence[Array]) -> list[Array]:
    """Run a traced program on the CPU."""
    arguments = [*inputs, *(array for _, array in traced.weights)]
    program = clean_program(traced.artifact, "model")
    types = [TensorType(by_numpy(array.dtype), array.shape) for array in arguments]
    backend = XlaBackend("cpu")
    executable = backend.compile(refine_program(program, types), "model")
    buffers = backend.to_device(arguments)
    results = backend.execute(executable, buffers)
    arrays = [array.copy() for array in backend.to_host(results)]
    backend.free([*buffers, *results])
    return arrays


def _compare(name: str, expected: Array, found: Array, tolerance: float | None) -> None:
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape), name
    share = _TOLERANCES.get(expected.dtype.name)
    if share is None:
        np.testing.assert_array_equal(expected, found, err_msg=name)
        return
    wide, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(wide[~finite], other[~finite], err_msg=name)
    scale = np.max(np.abs(wide[finite]), initial=1e-6)
    error = np.max(np.abs(wide[finite] - other[finite]), initial=0.0)
    assert error <= (tolerance or share) * scale, f"{name}: error {error:.1e} of {scale:.1e}"
