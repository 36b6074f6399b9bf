"""Bundle directories whose programs the fake backend runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.dtypes import DType, by_numpy, by_token
from hloserve.core.tensors import Array
from hloserve.engine.programs.signature import TensorType


def program_text(function: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """One program of the fake backend; types as ``tensor<?x3xf32>``, weights last."""
    return json.dumps({"function": function, "inputs": list(inputs), "outputs": list(outputs)})


def write_fake_bundle(
    root: Path,
    name: str = "scale3",
    *,
    function: str = "scale",
    inputs: Sequence[IOSpec] = (IOSpec("x", "f32", (1, 3), batch_axis=0),),
    outputs: Sequence[IOSpec] = (IOSpec("y", "f32", (1, 3), batch_axis=0),),
    weights: Mapping[str, Array] | None = None,
    sizes: Sequence[int] = (1, 4, 8),
    files: Mapping[str, bytes | str] | None = None,
) -> Path:
    """Write `root/name`, by default y = 2x on rows of three at batch sizes 1, 4 and 8.

    Args:
        root: the model repository.
        name: the model's name.
        function: one of the fake backend's.
        inputs: of the program; no variable axes.
        outputs: of the program.
        weights: by name, in argument order; None is one weight of three twos for ``scale``.
        sizes: compiled batch sizes; (0,) writes one program, for tensors without a batch axis.
        files: more files, such as ``model.py``.
    """
    if weights is None:
        weights = {"w": np.full(3, 2, np.float32)} if function == "scale" else {}
    tail = [str(TensorType(by_numpy(w.dtype), w.shape)) for w in weights.values()]
    modules = {
        size: program_text(
            function,
            [*(_type_text(spec, size) for spec in inputs), *tail],
            [_type_text(spec, size) for spec in outputs],
        )
        for size in sizes
    }
    return write_bundle(root / name, name, inputs, outputs, modules, weights, files=files)


def _type_text(spec: IOSpec, size: int) -> str:
    dtype = spec.dtype
    if isinstance(dtype, str):
        dtype = by_token(dtype)
    elif not isinstance(dtype, DType):
        dtype = by_numpy(np.dtype(dtype))
    shape: list[int | None] = [
        (size or None) if axis == spec.batch_axis else extent
        for axis, extent in enumerate(map(int, spec.shape))
    ]
    return str(TensorType(dtype, tuple(shape)))
