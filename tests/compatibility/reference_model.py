"""A small model with the operations that changed most between versions of StableHLO.

Convolution, gelu, top_k, sort, erf_inv and gather. Plain JAX that any version since 0.4 runs: this
file is imported by the tests, and by the old Pythons that they start.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export


def predict(image: Any, ids: Any, kernel: Any, table: Any) -> tuple[Any, Any, Any]:
    """Three results of an image (2, 8, 8, 3) and of ids (2, 5).

    Shapes:
        kernel: (3, 3, 3, 4), float32.
        table: (10, 4), float32.
    """
    dimensions = ("NHWC", "HWIO", "NHWC")
    features = jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=dimensions
    )
    features = jax.nn.gelu(features, approximate=False).mean(axis=(1, 2))
    rows = jnp.take(table, ids, axis=0).mean(axis=1)
    mixed = features + jax.lax.erf_inv(jnp.tanh(rows) * 0.9)
    values, indices = jax.lax.top_k(mixed, 3)
    return values, indices, jnp.sort(mixed, axis=1)


def example() -> tuple[Any, Any, Any, Any]:
    """Inputs and weights, in the order of the arguments."""
    random = np.random.default_rng(7)
    return (
        random.standard_normal((2, 8, 8, 3)).astype("float32"),
        random.integers(0, 10, (2, 5)).astype("int32"),
        random.standard_normal((3, 3, 3, 4)).astype("float32"),
        random.standard_normal((10, 4)).astype("float32"),
    )


def export_model() -> Any:
    """What `jax.export` of the version that runs this makes of it."""
    types = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in example()]
    return export.export(jax.jit(predict, keep_unused=True), platforms=["cpu"])(*types)
