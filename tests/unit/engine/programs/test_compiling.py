"""Options and settings of compiling: what XLA gets, what it refuses, what an executable keeps."""

import os
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from support.engine_programs import program_of, run

from hloserve.core.errors import BackendFailed, ConfigProblem
from hloserve.engine.programs.compiling import (
    CompileSettings,
    OptionValue,
    pack_executable,
    plan_options,
    unpack_executable,
)
from hloserve.engine.programs.notes import NO_NOTES, ProgramNotes, merge_notes
from hloserve.engine.programs.tf32_probe import ProbeResult, classify
from hloserve.engine.xla_backend import XlaBackend

_YNN = "xla_cpu_experimental_ynn_fusion_type"
_TEXT = """module @m { func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32> } }"""


@pytest.fixture
def environment() -> Iterator[None]:
    """The variables of this process, as they were afterwards."""
    before = os.environ.get("NVIDIA_TF32_OVERRIDE")
    yield
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    if before is not None:
        os.environ["NVIDIA_TF32_OVERRIDE"] = before


def test_measured_options_are_of_the_cpu() -> None:
    """Elsewhere XLA's own defaults hold, and with the rewrites they are off."""
    assert {_YNN} == plan_options("cpu", CompileSettings()).keys()
    assert {} == plan_options("cpu", CompileSettings(has_rewrites=False))
    assert {} == plan_options("cuda", CompileSettings())


def test_autotuning_is_mapped_to_options_of_xla() -> None:
    """Off has no trials; a directory keeps what trials found. The CPU has neither."""
    settings = CompileSettings(has_autotuning=False, autotune_cache_dir="/cache")

    assert {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_per_fusion_autotune_cache_dir": "/cache",
        "xla_gpu_experimental_autotune_cache_mode": "AUTOTUNE_CACHE_MODE_UPDATE",
    } == plan_options("cuda", settings)
    assert {_YNN} == plan_options("cpu", settings).keys()


def test_what_the_operator_says_wins() -> None:
    """An option that is set by name is the one that is used."""
    options: dict[str, OptionValue] = {_YNN: "", "xla_gpu_autotune_level": 2}
    settings = CompileSettings(has_autotuning=False, options=options)

    assert options == plan_options("cpu", settings)
    assert options == plan_options("cuda", settings)


@pytest.mark.xla
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"xla_cpu_prefer_vector_widht": 512}, "No such compile option.*vector_widht"),
        ({_YNN: "SOME"}, "ynn_fusion_type, 'SOME' is not a valid"),
        ({"xla_cpu_enable_fast_math": "perhaps"}, "fast_math.*not a valid bool"),
        ({"xla_cpu_prefer_vector_width": 2**70}, "runtime.compile_options"),
    ],
    ids=["name", "word", "bool", "number"],
)
def test_option_that_xla_refuses_is_an_error_at_start(
    options: dict[str, OptionValue], reason: str
) -> None:
    """Not one of each program, much later."""
    with pytest.raises(ConfigProblem, match=reason) as caught:
        XlaBackend("cpu", compiling=CompileSettings(options=options))

    assert "runtime.compile_options" == caught.value.at


@pytest.mark.xla
@pytest.mark.usefixtures("environment")
def test_everything_that_changes_the_code_is_part_of_the_key() -> None:
    """A cache that other settings filled is of no use, and does no harm."""
    program = program_of(_TEXT)
    settings = [
        CompileSettings(),
        CompileSettings(has_rewrites=False),
        CompileSettings(numerics="f32"),
        CompileSettings(options={"xla_cpu_prefer_vector_width": 512}),
        CompileSettings(options={"xla_cpu_prefer_vector_width": 128}),
    ]
    keys = [XlaBackend("cpu", compiling=each).cache_key(program) for each in settings]

    assert all(first != second for first, second in combinations(keys, 2))


@pytest.mark.xla
@pytest.mark.usefixtures("environment")
def test_f32_is_set_in_the_environment_before_a_client_exists() -> None:
    """Libraries of the vendor read it when they are loaded."""
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)

    XlaBackend("cpu", compiling=CompileSettings(numerics="f32"))

    assert "0" == os.environ["NVIDIA_TF32_OVERRIDE"]


@pytest.mark.xla
def test_tf32_needs_a_device_that_has_it() -> None:
    """Also when the CPU took the place of a GPU that did not start."""
    with pytest.raises(ConfigProblem, match="has no TF32; set 'auto' or 'f32'"):
        XlaBackend("cpu", compiling=CompileSettings(numerics="tf32"))


@pytest.mark.xla
@pytest.mark.parametrize("mode", ["auto", "f32"])
def test_cpu_computes_products_exactly(mode: str) -> None:
    """Both legs of the probe, run as programs are."""
    assert ProbeResult.EXACT is classify(XlaBackend("cpu").probe(mode))  # type: ignore[arg-type]


@pytest.mark.xla
def test_notes_come_back_with_a_restored_executable() -> None:
    """A warm start logs what a cold one did, without looking at the program."""
    backend = XlaBackend("cpu")
    program = program_of(_TEXT)
    executable = backend.compile(program, "m")
    payload = backend.serialise(executable)
    assert payload is not None

    restored = backend.restore(payload, program, "m")

    assert "auto (f32: target lacks TF32)" == executable.notes.numerics
    assert executable.notes == restored.notes


@pytest.mark.xla
@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x02\x00\x00\x00{}", b"\xff" * 40])
def test_payload_of_something_else_is_refused(payload: bytes) -> None:
    """Such an entry of the cache is compiled again."""
    with pytest.raises(BackendFailed):
        XlaBackend("cpu").restore(payload, program_of(_TEXT), "m")


@pytest.mark.xla
def test_fast_option_changes_nothing_but_speed() -> None:
    """The measured default computes what XLA's does, up to rounding."""
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    plain = XlaBackend("cpu", compiling=CompileSettings(has_rewrites=False))

    np.testing.assert_allclose(run(XlaBackend("cpu"), _TEXT, x), run(plain, _TEXT, x), rtol=1e-5)


def test_packed_notes_are_what_they_were() -> None:
    """In front of the bytes, which follow unchanged."""
    notes = ProgramNotes("f32 (nothing to pin)", ("custom_call x",), {"a": 2})

    assert (notes, b"\x00bytes") == unpack_executable(pack_executable(notes, b"\x00bytes"))


def test_notes_of_a_model_are_those_of_its_programs() -> None:
    """Each text once, each operation once, each rewrite at its most."""
    first = ProgramNotes("auto", ("b",), {"x": 2})
    second = ProgramNotes("auto", ("a",), {"x": 3, "y": 1})

    assert ProgramNotes("auto", ("a", "b"), {"x": 3, "y": 1}) == merge_notes([first, second])
    assert ProgramNotes("", (), {}) == merge_notes([NO_NOTES])
