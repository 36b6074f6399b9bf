"""The export step of the examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from examples.portable import TARGET_VERSION, export_program

pytestmark = pytest.mark.xla


def _affine(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array]:
    return (jax.lax.erf(x @ weights["w"]) + weights["c"],)


_WEIGHTS = {
    "w": np.ones((3, 2), np.float32),
    "unused": np.ones(7, np.float32),
    "c": np.ones(2, np.float32),
}


def _export() -> bytes:
    return export_program(_affine, [jax.ShapeDtypeStruct((4, 3), np.float32)], _WEIGHTS)


def test_weights_follow_the_inputs_in_order_and_unused_ones_stay() -> None:
    """The program's arguments are what the bundle's `argument_order` will say."""
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, _export())
        (main,) = (op for op in module.body.operations if op.name.value == "main")
        types = [str(argument.type) for argument in main.arguments]

    assert types == ["tensor<4x3xf32>", "tensor<3x2xf32>", "tensor<7xf32>", "tensor<2xf32>"]


def test_artifact_is_of_the_old_version_and_names_no_file() -> None:
    """Old servers can read it, and it tells nothing about the exporting machine."""
    artifact = _export()

    assert artifact.startswith(b"ML\xefR")
    assert f"StableHLO_v{TARGET_VERSION}".encode() in artifact[:64]
    assert b".py" not in artifact


def test_exporting_twice_gives_the_same_bytes() -> None:
    """A bundle that is made again does not look like a new one."""
    assert _export() == _export()


def test_weights_are_not_constants_of_the_program() -> None:
    """The artifact's size does not grow with the weights."""

    def scale(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array]:
        return (x * jnp.sum(weights["w"]),)

    sizes = {
        len(
            export_program(
                scale,
                [jax.ShapeDtypeStruct((1,), np.float32)],
                {"w": np.arange(count, dtype=np.float32)},
            )
        )
        for count in (11_111, 99_999)
    }

    assert len(sizes) == 1
