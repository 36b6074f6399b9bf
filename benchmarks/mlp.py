"""The tiny MLP that every load benchmark serves: 64 inputs, tanh of 64, 10 outputs, float32.

It is small enough that the server, not the device, is what is measured.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hloserve import IOSpec, write_bundle
from hloserve.core.tensors import Array

__all__ = ["SIZES", "program_text", "weights", "write_mlp_bundle"]

SIZES = (1, 2, 4, 8, 16, 32, 64)

_TEXT = """
module @mlp {{
  func.func public @main(%x: tensor<{n}x64xf32>, %w1: tensor<64x64xf32>, %w2: tensor<64x10xf32>)
      -> tensor<{n}x10xf32> {{
    %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
      : (tensor<{n}x64xf32>, tensor<64x64xf32>) -> tensor<{n}x64xf32>
    %1 = stablehlo.tanh %0 : tensor<{n}x64xf32>
    %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0]
      : (tensor<{n}x64xf32>, tensor<64x10xf32>) -> tensor<{n}x10xf32>
    return %2 : tensor<{n}x10xf32>
  }}
}}
"""


def program_text(size: int) -> str:
    """StableHLO of the MLP for a batch of `size` rows."""
    return _TEXT.format(n=size)


def weights() -> list[tuple[str, Array]]:
    """The weights, always the same."""
    generator = np.random.default_rng(0)
    return [
        ("w1", generator.standard_normal((64, 64)).astype("float32") / 8),
        ("w2", generator.standard_normal((64, 10)).astype("float32") / 8),
    ]


def write_mlp_bundle(repository: Path, name: str = "mlp", sizes: Sequence[int] = SIZES) -> Path:
    """Write the bundle under `repository` and return its directory."""
    bundle = repository / name
    write_bundle(
        bundle,
        name,
        executable_inputs=[IOSpec("x", "f32", (1, 64), batch_axis=0)],
        executable_outputs=[IOSpec("y", "f32", (1, 10), batch_axis=0)],
        modules={size: program_text(size) for size in sizes},
        weights=weights(),
    )
    return bundle
