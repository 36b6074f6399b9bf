"""Device models on a real device, in a line each."""

import numpy as np

from hloserve.core.dtypes import F32
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.backend import Backend
from hloserve.engine.device_model import DeviceModel

WIDTH = 256


def wide_text(rows: int) -> str:
    """StableHLO of tanh(x w) for so many rows."""
    x, w = f"tensor<{rows}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xf32>"
    return f"""module @wide {{ func.func public @main(%x: {x}, %w: {w}) -> {x} {{
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0],
        precision = [HIGHEST, HIGHEST] : ({x}, {w}) -> {x}
      %z = stablehlo.tanh %y : {x}
      return %z : {x} }} }}"""


def wide_model(backend: Backend, name: str = "wide", factor: float = 1.0) -> DeviceModel:
    """A model of rows of 256 whose answer is tanh(factor x)."""
    axes = (Axis("n", AxisKind.BATCH), Axis("c", AxisKind.FIXED, WIDTH))
    programs = {
        rows: backend.compile(backend.read_program(wide_text(rows).encode(), "wide.mlir"), name)
        for rows in (1, 4, 16)
    }
    weights = backend.to_device([np.eye(WIDTH, dtype=np.float32) * np.float32(factor)])
    return DeviceModel(
        name, (TensorSpec("x", F32, axes),), (TensorSpec("y", F32, axes),), {(): programs}, weights
    )
