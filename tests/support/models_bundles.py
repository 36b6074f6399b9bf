"""Small bundles of real StableHLO text, for the tests that load and run them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.tensors import Array
from hloserve.models.progress import NoProgress

ROWS4 = IOSpec("x", "f32", (1, 4), batch_axis=0)
OUT3 = IOSpec("y", "f32", (1, 3), batch_axis=0)

WEIGHTS: dict[str, Array] = {
    "w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "b": np.array([1, -1, 2], np.float32),
}


def affine_text(rows: int | str) -> str:
    """``y = x @ w + b`` for a number of rows, or for any with ``?``."""
    return f"""module @affine {{
  func.func public @main(%x: tensor<{rows}x4xf32>, %w: tensor<4x3xf32>, %b: tensor<3xf32>)
      -> tensor<{rows}x3xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<{rows}x4xf32>, tensor<4x3xf32>) -> tensor<{rows}x3xf32>
    {_bias(rows)}
    %2 = stablehlo.add %0, %1 : tensor<{rows}x3xf32>
    return %2 : tensor<{rows}x3xf32>
  }}
}}"""


def _bias(rows: int | str) -> str:
    kind = f"tensor<{rows}x3xf32>"
    if rows != "?":
        return f"%1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<3xf32>) -> {kind}"
    return f"""%n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %c = stablehlo.constant dense<3> : tensor<1xi32>
    %s = stablehlo.concatenate %n1, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %1 = stablehlo.dynamic_broadcast_in_dim %b, %s, dims = [1]
      : (tensor<3xf32>, tensor<2xi32>) -> {kind}"""


def affine(x: Array) -> Array:
    """What the program computes."""
    y: Array = x @ WEIGHTS["w"] + WEIGHTS["b"]
    return y


def identity_text(*kinds: str) -> str:
    """A program that returns its arguments: ``identity_text("4xf32", "i1")``."""
    types = [f"tensor<{kind}>" for kind in kinds]
    arguments = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(types))
    names = ", ".join(f"%a{number}" for number in range(len(types)))
    back = f"return {names} : {', '.join(types)}" if types else "return"
    return f"module {{ func.func @main({arguments}) -> ({', '.join(types)}) {{ {back} }} }}"


def write_affine(
    root: Path,
    name: str = "affine",
    *,
    sizes: tuple[int, ...] = (1, 4),
    hook: str | None = None,
    **more: Any,
) -> Path:
    """Write the affine bundle with one program per size."""
    files: Mapping[str, str] = {} if hook is None else {"model.py": hook}
    return write_bundle(
        root / name,
        name,
        [ROWS4],
        [OUT3],
        {size: affine_text(size) for size in sizes},
        WEIGHTS,
        files=files,
        **more,  # whatever write_bundle takes
    )


def replace_in(path: Path, old: str, new: str) -> None:
    """Damage a file of a bundle; `old` must be in it."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class RecordingProgress(NoProgress):
    """Remembers what loading told."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    @override
    def bundle_started(self, name: str) -> None:
        self.events.append(("started", name))

    @override
    def programs_found(self, name: str, programs: int) -> None:
        self.events.append(("programs", name, programs))

    @override
    def program_compiled(
        self, name: str, program: str, seconds: float, *, is_restored: bool
    ) -> None:
        self.events.append(("compiled", name, program))

    @override
    def bundle_warning(self, name: str, warning: str) -> None:
        self.events.append(("warning", name, warning))

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        self.events.append(("ready", name))

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        self.events.append(("failed", name, reason))


def fake_text(function: str, inputs: list[str], outputs: list[str]) -> str:
    """A program of the NumPy backend; `inputs` include the weights."""
    types = [[f"tensor<{kind}>" for kind in kinds] for kinds in (inputs, outputs)]
    return json.dumps({"function": function, "inputs": types[0], "outputs": types[1]})


def write_fake(root: Path, name: str = "m", **more: Any) -> Path:
    """Write a bundle that scales rows of four by a weight, for the NumPy backend."""
    modules = {
        size: fake_text("scale", [f"{size}x4xf32", "4xf32"], [f"{size}x4xf32"]) for size in (1, 4)
    }
    return write_bundle(
        root / name,
        name,
        [ROWS4],
        [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        modules,
        {"w": np.array([1, 2, 3, 4], np.float32)},
        **more,  # whatever write_bundle takes
    )
