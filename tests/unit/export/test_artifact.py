"""Artifacts: cleaned, portable, and written for the oldest StableHLO that can hold them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloserve.core.errors import ExportProblem
from hloserve.engine.programs.mlir import MlirProgram, read_program
from hloserve.engine.programs.mlir_annotations import walk_ops
from hloserve.export.artifact import OLDEST_TARGET, clean_program, serialise_program
from hloserve.export.jax.tracing import trace_function

pytestmark = pytest.mark.xla

_F32 = np.dtype(np.float32)


def _special(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    """Traced to composites, which versions before 1.9 do not know."""
    return jax.lax.top_k(jnp.tan(x @ w), 2)[0], jax.scipy.special.erfinv(x), jax.lax.erf(x)


def _trace() -> bytes:
    weights = (("w", np.ones((4, 3), np.float32)),)
    return trace_function(_special, [(2, 4)], [_F32], weights, model="m")


def _program(text: str) -> bytes:
    return text.encode()


def _ops(program: MlirProgram) -> set[str]:
    return {op.name for op in walk_ops(program.module.operation)}


def test_composites_are_legalised_and_locations_stripped() -> None:
    """What is left are plain operations, and no word of the exporting machine."""
    traced = _trace()

    program = clean_program(traced, "m")
    artifact = serialise_program(program, None, "m")

    assert b".py" in traced
    assert b".py" not in artifact.content
    assert "stablehlo.composite" not in _ops(program)
    assert OLDEST_TARGET == artifact.target_version
    assert f"StableHLO_v{OLDEST_TARGET}".encode() in artifact.content[:64]


def test_exporting_twice_gives_the_same_bytes() -> None:
    """A program that is made again does not look like a new one."""
    once, again = (
        serialise_program(clean_program(_trace(), "m"), None, "m").content for _ in range(2)
    )

    assert once == again


def test_writing_leaves_the_program_as_it_was() -> None:
    """A program can be written for several versions, one after the other."""
    program = clean_program(_trace(), "m")
    before = str(program.module)

    for version in ("1.0.0", "1.9.0", None):
        serialise_program(program, version, "m")

    assert before == str(program.module)


@pytest.mark.parametrize("version", ["0.9.0", "0.14.0", "1.0.0", "1.13.7", "1.17.0"])
def test_version_that_is_asked_for_is_written(version: str) -> None:
    """Older and newer versions can be written, and are read again."""
    artifact = serialise_program(clean_program(_trace(), "m"), version, "m")

    assert version == artifact.target_version
    assert 2 == len(read_program(artifact.content, "again").signature.inputs)


@pytest.mark.parametrize("version", ["0.1.0", "1.99.0", "2.0.0"])
def test_version_that_nobody_here_can_write_is_refused(version: str) -> None:
    """A version beyond this jaxlib's range is told with the range."""
    with pytest.raises(ExportProblem, match=rf"writes StableHLO 0.9.0 to .*, got {version}"):
        serialise_program(clean_program(_trace(), "m"), version, "m")


_NEWER = """
module {
  func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0],
      algorithm = <lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32,
        lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1,
        allow_imprecise_accumulation = false>
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
}
"""


def test_newer_version_is_taken_only_when_a_feature_needs_it() -> None:
    """Only the algorithm of a product, which StableHLO has since 1.6, makes it that version."""
    artifact = serialise_program(clean_program(_program(_NEWER), "m"), None, "m")

    assert "1.6.0" == artifact.target_version
    assert "it uses dot_general in a newer form" == artifact.why_newer


def test_version_that_is_too_old_for_the_program_is_told_with_one_that_is_not() -> None:
    """An explicit version is not raised in silence."""
    with pytest.raises(ExportProblem, match=r"StableHLO 1\.0\.0 cannot hold.*1\.6\.0 or newer can"):
        serialise_program(clean_program(_program(_NEWER), "m"), "1.0.0", "m")


def test_what_is_no_program_is_an_export_problem() -> None:
    """Whatever a frontend hands over, its author gets a sentence."""
    with pytest.raises(ExportProblem, match="not a StableHLO program"):
        clean_program(b"\xff\xfe\x00\x01", "m")


def test_other_dialects_are_named() -> None:
    """Only StableHLO is portable."""
    text = """
    module {
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %y = mhlo.add %x, %x : tensor<4xf32>
        return %y : tensor<4xf32>
      }
    }
    """

    with pytest.raises(ExportProblem, match=r"uses the operation mhlo\.add"):
        clean_program(_program(text), "m")


@pytest.mark.parametrize("element", ["f32", "bf16", "i64", "i1"])
def test_large_constants_are_refused_whoever_traced_them(element: str) -> None:
    """The gate is at the artifact, so that it holds for every frontend."""
    values = np.arange(2**20, dtype=np.int64) % 2
    kind = f"tensor<{len(values)}x{element}>"
    arrays: dict[str, np.ndarray] = {
        "f32": values.astype(np.float32),
        "bf16": values.astype(np.uint16) * 0x3F80,
        "i64": values,
        "i1": values.astype(np.uint8),
    }
    text = f"""
    module {{
      func.func @main(%x: {kind}) -> {kind} {{
        %c = stablehlo.constant dense<"0x{arrays[element].tobytes().hex()}"> : {kind}
        %y = stablehlo.add %x, %c : {kind}
        return %y : {kind}
      }}
    }}
    """

    with pytest.raises(ExportProblem, match=r"a constant of \d+ bytes .* weights are arguments"):
        clean_program(_program(text), "m")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (
            "%y = stablehlo.rng %a, %b, %s, distribution = UNIFORM :"
            " (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>",
            "stablehlo.rng",
        ),
        (
            "%y = stablehlo.custom_call @my_kernel(%x) : (tensor<4xf32>) -> tensor<4xf32>",
            "calls my_kernel which",
        ),
        (
            "%y = stablehlo.custom_call @cudnn$fmha(%x) : (tensor<4xf32>) -> tensor<4xf32>",
            r"cudnn\$fmha, usually from attention",
        ),
    ],
    ids=["rng", "unknown", "cudnn"],
)
def test_operations_that_only_some_machines_have_are_refused(op: str, said: str) -> None:
    """Random generators without a state and custom calls are refused by name."""
    text = f"""
    module {{
      func.func @main(%x: tensor<4xf32>, %a: tensor<f32>, %b: tensor<f32>, %s: tensor<1xi64>)
          -> tensor<4xf32> {{
        {op}
        return %y : tensor<4xf32>
      }}
    }}
    """

    with pytest.raises(ExportProblem, match=said):
        clean_program(_program(text), "m")


def test_export_for_several_platforms_is_refused() -> None:
    """Such a program has an argument for the platform, which no manifest declares."""
    exported = jax.export.export(jax.jit(jnp.sin), platforms=["cpu", "cuda"])
    traced = exported(jax.ShapeDtypeStruct((4,), np.float32))

    with pytest.raises(ExportProblem, match="platform index"):
        clean_program(traced.mlir_module_serialized, "m")


def test_open_extents_of_one_name_are_one_extent() -> None:
    """All open extents are of one scope: sums of equal ones are traced, of others refused."""

    def add(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        return (x + y,)

    artifact = trace_function(add, [("n", "s"), ("n", "s")], [_F32, _F32], (), model="m")

    assert (None, None) == clean_program(artifact, "m").signature.inputs[0].shape


def test_complex_constants_are_cleaned_like_others() -> None:
    """A constant that the binding has no object for is no reason to fail, unless it is large."""
    text = """module {{ func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %c = stablehlo.constant dense<{0}> : tensor<{1}xcomplex<f32>>
      %r = stablehlo.real %c : (tensor<{1}xcomplex<f32>>) -> tensor<{1}xf32>
      %s = stablehlo.slice %r [0:2] : (tensor<{1}xf32>) -> tensor<2xf32>
      %y = stablehlo.add %s, %x : tensor<2xf32>
      return %y : tensor<2xf32> }} }}"""

    clean_program(_program(text.format("[(1.0, 2.0), (3.0, 4.0)]", 2)), "m")
    clean_program(_program(text.format("(1.0, 2.0)", 9000)), "m")
    with pytest.raises(ExportProblem, match="a constant of 72000 bytes"):
        clean_program(_program(text.format(f'"0x{"00" * 8 + "01" * 71992}"', 9000)), "m")
