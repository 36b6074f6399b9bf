"""Reading StableHLO programs: what is accepted, what is said of the rest, what is cleaned."""

import re

import numpy as np
import pytest
from jaxlib import _jax
from jaxlib.mlir.dialects import stablehlo
from support.models_bundles import affine_text, identity_text

from hloserve.core.dtypes import DTYPES, F32
from hloserve.core.errors import ProgramProblem
from hloserve.engine.programs.mlir import MlirProgram, read_program, refine_program
from hloserve.engine.programs.signature import TensorType

pytestmark = pytest.mark.xla


def _artifact(text: str, version: str = "1.0.0") -> bytes:
    program = read_program(text.encode(), "model.mlir")
    return bytes(_jax.mlir.serialize_portable_artifact(program.module, version, False))


def _finding(artifact: bytes) -> str:
    with pytest.raises(ProgramProblem) as raised:
        read_program(artifact, "model.mlir")
    assert raised.value.bundle == "model.mlir"
    return "; ".join(raised.value.findings)


def _text(program: MlirProgram) -> str:
    return str(program.module)


def test_text_is_read() -> None:
    """MLIR text gives a signature in program order."""
    program = read_program(affine_text(8).encode(), "model.b8.mlir")
    assert str(program.signature) == (
        "(tensor<8x4xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>)"
    )


def test_portable_artifact_is_read() -> None:
    """A versioned artifact is what bundles hold."""
    artifact = _artifact(affine_text(2))
    assert artifact.startswith(b"ML\xefR")
    assert read_program(artifact, "model.mlir").signature.outputs == (TensorType(F32, (2, 3)),)


def test_artifact_of_the_current_version_is_read() -> None:
    """The newest version that this jaxlib writes can be read back."""
    current = str(stablehlo.get_current_version())
    assert read_program(_artifact(affine_text(2), current), "model.mlir").signature.inputs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_its_element_type(dtype: object) -> None:
    """All element types of the format are recognised in a program."""
    element = dtype.stablehlo  # type: ignore[attr-defined]
    program = read_program(identity_text(f"2x{element}").encode(), "model.mlir")
    assert program.signature.inputs[0].dtype is dtype


def test_open_extents_are_none() -> None:
    """A symbolic batch axis is None; fixed axes keep their extents."""
    program = read_program(affine_text("?").encode(), "model.mlir")
    assert program.signature.inputs[0].shape == (None, 4)
    assert program.signature.outputs[0].shape == (None, 3)


def test_scalars_zero_sizes_and_no_arguments() -> None:
    """Rank 0, empty tensors and a program without arguments are legal."""
    assert (
        read_program(identity_text("f32", "0x3xi64").encode(), "m").signature.inputs[0].shape == ()
    )
    empty = read_program(identity_text().encode(), "m").signature
    assert (empty.inputs, empty.outputs) == ((), ())


@pytest.mark.parametrize(
    ("artifact", "says"),
    [
        (b"", "the file is empty; export the program again"),
        (b"\x00\x01\xfe\xff", "starts with bytes 00 01 fe ff, a portable artifact starts with 4d"),
        (b"<html>404</html>", "not a valid StableHLO program"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        (b"ML\xefRgarbage", "export the program again"),
        (b"module {}", "no function is called 'main' (it has no function)"),
        (
            identity_text("f32").replace("main", "forward").encode(),
            "no function is called 'main' (it has forward); name the entry function 'main'",
        ),
        (b"module { func.func private @main(tensor<f32>) -> tensor<f32> }", "has no body"),
        (b"module { func.func @main() { foo.bar return } }", "Dialect `foo' not found"),
        (
            b'module { func.func @main() { "stablehlo.zorch"() : () -> () return } }',
            "unregistered operation 'stablehlo.zorch'",
        ),
        (
            identity_text("2xf32").replace("-> (tensor<2x", "-> (tensor<3x").encode(),
            "doesn't match function result type",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else "",
)
def test_unreadable_program_is_explained(
    artifact: bytes, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each kind of broken file gets its own words, and nothing goes to stderr behind our back."""
    assert says in _finding(artifact)
    assert capfd.readouterr().err == ""


def test_cut_artifact_shows_both_versions() -> None:
    """A truncated copy names the version it was written for and ours."""
    current = str(stablehlo.get_current_version())
    text = _finding(_artifact(affine_text(2))[:80])
    assert "artifact of version 1.0.0 cannot be read" in text
    assert f"up to {current}" in text
    assert "cut short or damaged" in text


def test_too_new_artifact_shows_both_versions() -> None:
    """An artifact from a newer exporter names both versions and the way out."""
    newer = _artifact(affine_text(2)).replace(b"_v1.0.0", b"_v9.9.9")
    text = _finding(newer[:80])  # what is unknown in it is its end
    assert "was written for StableHLO 9.9.9" in text
    assert re.search(r"reads up to \d+\.\d+\.\d+ \(jaxlib \d", text)
    assert "target_version" in text


def test_all_faults_of_main_are_found_at_once() -> None:
    """Argument and result types without a bundle dtype are all listed."""
    text = identity_text("2xi4", "3xcomplex<f32>", "?xf32, #stablehlo.bounds<8>")
    with pytest.raises(ProgramProblem) as raised:
        read_program(text.encode(), "model.mlir")
    assert len(raised.value.findings) == 6
    assert "argument 0 of 'main' is tensor<2xi4>: element type i4" in raised.value.findings[0]


def test_platform_index_is_refused() -> None:
    """A program for several platforms takes an argument that no bundle declares."""
    text = identity_text("i32", "f32").replace(
        "%a0: tensor<i32>", '%a0: tensor<i32> {jax.global_constant = "_platform_index"}'
    )
    assert "export it for one (platforms=['cpu'])" in _finding(text.encode())


def test_donation_is_stripped() -> None:
    """Donated weights would be gone after the first run."""
    text = affine_text(2).replace(
        "%w: tensor<4x3xf32>,", "%w: tensor<4x3xf32> {tf.aliasing_output = 0 : i32},"
    )
    text = text.replace("%b: tensor<3xf32>)", "%b: tensor<3xf32> {jax.buffer_donor = true})")
    assert "aliasing" in text
    assert "donor" in text
    clean = _text(read_program(text.encode(), "model.mlir"))
    assert "aliasing" not in clean
    assert "donor" not in clean


def test_annotations_without_an_object_are_stripped() -> None:
    """One of complex numbers, which the binding cannot show, does not end the process."""
    complexes = "dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>"
    program = read_program(
        f"""module attributes {{mhlo.x = {complexes}}} {{
          func.func @main(%x: tensor<2xf32> {{jax.buffer_donor = true, mhlo.y = {complexes}}})
              -> (tensor<2xf32> {{mhlo.z = {complexes}}}) {{
            return %x : tensor<2xf32> }} }}""".encode(),
        "model.mlir",
    )

    assert "buffer_donor" not in _text(program)
    assert program.signature.inputs == program.signature.outputs


def test_sharding_is_stripped() -> None:
    """Annotations of a mesh are dropped, and the program is for one device."""
    text = """module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
          -> (tensor<8xf32> {mhlo.sharding = "{replicated}"}) {
        %0 = sdy.sharding_constraint %a <@mesh, [{}]> : tensor<8xf32>
        %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{replicated}"}
          : (tensor<8xf32>) -> tensor<8xf32>
        return %1 : tensor<8xf32> } }"""
    clean = _text(read_program(text.encode(), "model.mlir"))
    assert "sdy" not in clean
    assert "Sharding" not in clean
    assert "num_partitions = 1" in clean


def test_callback_is_refused() -> None:
    """A host callback is an address in the process that exported the program."""
    text = """module { func.func @main(%a: tensor<f32>) -> tensor<f32> {
        %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a)
          {api_version = 4 : i32, backend_config = {}} : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32> } }"""
    assert "calls back into Python (xla_ffi_python_cpu_callback)" in _finding(text.encode())


def test_custom_calls_are_known() -> None:
    """The backend prepares the libraries that a program calls."""
    text = """module { func.func @main(%a: tensor<f32>) -> tensor<f32> {
        %0 = stablehlo.custom_call @lapack_sgetrf_ffi(%a) {api_version = 4 : i32}
          : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32> } }"""
    assert read_program(text.encode(), "m").custom_calls == {"lapack_sgetrf_ffi"}


def test_manual_partitioning_is_refused() -> None:
    """A program that is split by hand cannot run on one device."""
    text = """module { sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
        %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}]>]
          out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%b: tensor<4xf32>) {
          sdy.return %b : tensor<4xf32>
        } : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32> } }"""
    assert "sdy.manual_computation splits the program over several devices" in _finding(
        text.encode()
    )


def test_open_program_is_refined() -> None:
    """A symbolic batch is fixed to a size, in a copy."""
    program = read_program(affine_text("?").encode(), "model.mlir")
    weights = program.signature.inputs[1:]
    fixed = refine_program(program, [TensorType(F32, (8, 4)), *weights])
    assert str(fixed.signature) == (
        "(tensor<8x4xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>)"
    )
    assert "?" not in _text(fixed)
    assert program.signature.inputs[0].shape == (None, 4)
    again = refine_program(program, [TensorType(F32, (2, 4)), *weights])
    assert again.signature.outputs[0].shape == (2, 3)


def test_refused_extents_are_explained() -> None:
    """Extents that contradict the program give a finding that names them."""
    text = """module { func.func @main(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
        %0 = stablehlo.add %a, %b : tensor<?xf32>
        return %0 : tensor<?xf32> } }"""
    program = read_program(text.encode(), "model.mlir")
    with pytest.raises(
        ProgramProblem, match=r"cannot be specialised to \(tensor<2xf32>, tensor<3x"
    ):
        refine_program(program, [TensorType(F32, (2,)), TensorType(F32, (3,))])


def test_large_constants_survive() -> None:
    """Baked constants keep their values through cleaning and refining."""
    value = np.float32(0.1).item()
    text = f"""module {{ func.func @main(%a: tensor<?xf32>) -> tensor<?x2xf32> {{
        %c = stablehlo.constant dense<[{value}, 2.0]> : tensor<2xf32>
        %n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?xf32>) -> tensor<i32>
        %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
        %t = stablehlo.constant dense<2> : tensor<1xi32>
        %s = stablehlo.concatenate %n1, %t, dim = 0
          : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
        %0 = stablehlo.dynamic_broadcast_in_dim %c, %s, dims = [1]
          : (tensor<2xf32>, tensor<2xi32>) -> tensor<?x2xf32>
        return %0 : tensor<?x2xf32> }} }}"""
    fixed = refine_program(read_program(text.encode(), "m"), [TensorType(F32, (3,))])
    assert "1.000000e-01" in _text(fixed)


def test_program_tells_its_version_and_devices() -> None:
    """Text has no version; what was split over devices is read as a program for one."""
    text = "module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 2 : i32}"
    text += " { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"

    program = read_program(text.encode(), "model.mlir")

    assert ("", 8) == (program.stablehlo_version, program.device_count)
