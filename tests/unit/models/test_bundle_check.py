"""Checking bundles: what the loader refuses, what it does not mind, and what could not be seen."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import ShapeDtypeStruct, export, jit
from jax import numpy as jnp
from support import bundle_examples as examples
from support.faulty_bundles import FAULTS
from support.models_bundles import (
    OUT3,
    ROWS4,
    WEIGHTS,
    affine_text,
    identity_text,
    replace_in,
    write_affine,
)
from typing_extensions import override

from hloserve.bundle import IOSpec, write_bundle
from hloserve.bundle.findings import Finding
from hloserve.core.dtypes import DTYPES
from hloserve.core.errors import DeviceMemoryFull, MissingExtra
from hloserve.engine.backend import Backend
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.bundle_check import BundleReport, check_bundle

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


def _artifact(function: Any, *shapes: Any, dtype: str = "float32") -> bytes:
    kinds = [ShapeDtypeStruct(shape, dtype) for shape in shapes]
    exported = export.export(jit(function, keep_unused=True), platforms=["cpu"])(*kinds)
    return bytes(exported.mlir_module_serialized)


def _write(root: Path, **more: Any) -> Path:
    """A bundle without any finding: artifacts, in two sizes."""
    programs = {n: _artifact(lambda x, w, b: x @ w + b, (n, 4), (4, 3), (3,)) for n in (1, 4)}
    arguments: dict[str, Any] = {
        "executable_inputs": [ROWS4],
        "executable_outputs": [OUT3],
        "modules": programs,
        "weights": WEIGHTS,
    }
    return write_bundle(root / "m", "m", **(arguments | more))


def _run(bundle: Path, backend: Backend) -> BundleReport:
    return check_bundle(bundle, open_backend=lambda: backend)


def _texts(findings: list[Finding]) -> list[str]:
    return [f"{finding.place}: {finding.text}" for finding in findings]


def _one_warning(bundle: Path) -> str:
    report = check_bundle(bundle)
    assert [] == report.errors
    (text,) = _texts(report.warnings)
    return text


def test_sound_bundle_has_no_findings(tmp_path: Path, backend: XlaBackend) -> None:
    """Everything was looked at, and each program ran."""
    report = _run(_write(tmp_path), backend)

    assert [] == report.findings
    assert ["manifest", "files", "weights", "programs", "hooks", "run"] == report.checked
    assert {} == report.not_checked
    assert [(1,), (4,)] == [facts.batch_sizes for facts in report.programs]
    assert 60 == report.weights_bytes
    assert ["model.b1.mlir", "model.b4.mlir"] == [run.program for run in report.runs]
    assert [(16, 12), (64, 48)] == [(run.input_bytes, run.output_bytes) for run in report.runs]
    assert all(run.compile_s > 0 < run.run_s for run in report.runs)
    assert [(3, 0), (12, 0)] == [
        (run.outputs[0].elements, run.outputs[0].nan) for run in report.runs
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_loader_refuses_is_an_error(
    tmp_path: Path, backend: XlaBackend, fault: str
) -> None:
    """In the loader's words, at a file of the bundle or at the bundle itself."""
    damage, says = FAULTS[fault]
    broken = write_affine(tmp_path)
    damage(broken)

    report = _run(broken, backend)

    texts = _texts(report.errors)
    assert any(re.search(says, text, re.S) for text in texts), texts
    assert all("/" not in finding.place for finding in report.findings)
    assert all(str(tmp_path) not in finding.text for finding in report.findings)
    assert all(len(finding.text) < 2000 for finding in report.findings)


def test_faults_of_all_parts_come_at_once(tmp_path: Path) -> None:
    """A program, the weights and the hooks are told together, each at its file."""
    bundle = _write(tmp_path, files={"model.py": "import nowhere\n"})
    (bundle / "model.b4.mlir").write_text("hello")
    (bundle / "model.b1.mlir").write_text(affine_text(2))
    (bundle / "model.b9.mlr").write_text("")

    report = check_bundle(bundle)

    assert {"model.b1.mlir", "model.b4.mlir", "model.py"} == {f.place for f in report.errors}
    FAULTS["no weights"][0](bundle)
    report = check_bundle(bundle)
    assert {"model.b4.mlir", "weights.safetensors", "model.py"} == {f.place for f in report.errors}


def _rewrite(bundle: Path, old: str, new: str) -> Path:
    replace_in(bundle / "manifest.yaml", old, new)
    return bundle


def test_unread_files_are_named(tmp_path: Path) -> None:
    """A misspelt program is one that nobody misses until its size is slow."""
    bundle = _write(tmp_path)
    for name in ("model_b8.mlir", "model.mlir", "model.v0.b1.mlir", "model.B16.mlir.bak"):
        (bundle / name).write_text(affine_text(8))
    (bundle / "old.safetensors").write_bytes(b"")
    (bundle / "README.md").write_text("fine")

    report = check_bundle(bundle)

    assert [] == report.errors
    places = ["model.B16.mlir.bak", "model.mlir", "model.v0.b1.mlir", "model_b8.mlir"]
    assert [*places, "old.safetensors"] == [finding.place for finding in report.warnings]
    assert "programs are called model.mlir or model.b<size>.mlir" in report.warnings[0].text
    assert "here 'model.b1.mlir', 'model.b4.mlir'" in report.warnings[0].text


def test_unlisted_size_is_told(tmp_path: Path) -> None:
    """It is compiled all the same."""
    bundle = _rewrite(_write(tmp_path), "[1, 4]", "[4]")

    assert "model.b1.mlir: it is loaded too, although" in _one_warning(bundle)


def test_manifest_of_another_name_is_pointed_at(tmp_path: Path) -> None:
    """`manifest.yml` is the usual slip."""
    bundle = _write(tmp_path)
    (bundle / "manifest.yaml").rename(bundle / "manifest.yml")

    report = check_bundle(bundle)

    assert ["manifest.yaml is missing", "manifest.yml is there; call it manifest.yaml"] == [
        finding.text for finding in report.errors
    ]
    assert {"files", "weights", "programs", "hooks"} == set(report.not_checked)


def test_missing_patch_is_told(tmp_path: Path) -> None:
    """Provenance that names a file keeps it."""
    bundle = _write(tmp_path, provenance={"git_diff": "diff --git a b\n"})
    assert [] == check_bundle(bundle).findings

    (bundle / "working_tree.patch").unlink()
    assert "names 'working_tree.patch' (str), but there is no such file" in _one_warning(bundle)
    _rewrite(bundle, "working_tree.patch", "../../etc/passwd")
    assert "manifest.yaml: provenance.git_diff_file names '../../etc" in _one_warning(bundle)


def test_version_without_need_is_told(tmp_path: Path) -> None:
    """2.2 keeps older servers from reading what they could read."""
    assert 'write "2.1"' in _one_warning(_rewrite(_write(tmp_path), '"2.1"', '"2.2"'))


def test_version_that_misleads_old_servers_is_told(tmp_path: Path) -> None:
    """A server that knows 2.0 only does not look at axis_order."""
    text = _one_warning(_rewrite(_write(tmp_path), '"2.1"', '"2.0"'))

    assert "would read it transposed" in text


def test_legacy_weights_are_no_fault(tmp_path: Path, backend: XlaBackend) -> None:
    """What the sibling server writes is as good."""
    report = _run(_write(tmp_path, layout="legacy"), backend)

    assert [] == report.findings
    assert 2 == len(report.runs)


def test_variants_are_checked_each(tmp_path: Path, backend: XlaBackend) -> None:
    """The file of a variant takes that variant's shape."""
    spec = IOSpec("x", "f32", (1, -1), batch_axis=0)
    double = {w: {n: _artifact(lambda x: x * 2, (n, w)) for n in (1, 2)} for w in (3, 5)}
    bundle = _write(
        tmp_path, executable_inputs=[spec],
        executable_outputs=[IOSpec("y", "f32", (1, -1), batch_axis=0)],
        modules={(3,): double[3], (5,): double[5]}, input_shapes=[(3,), (5,)], weights={},
    )  # fmt: skip

    report = _run(bundle, backend)
    assert [] == report.findings
    assert [(0, (1,)), (0, (2,)), (1, (1,)), (1, (2,))] == [
        (facts.variant, facts.batch_sizes) for facts in report.programs
    ]
    assert 4 == len(report.runs)

    (bundle / "model.v0.b2.mlir").rename(bundle / "x")
    (bundle / "model.v1.b2.mlir").rename(bundle / "model.v0.b2.mlir")
    (bundle / "x").rename(bundle / "model.v1.b2.mlir")
    swapped = check_bundle(bundle)
    assert {"model.v0.b2.mlir", "model.v1.b2.mlir"} == {finding.place for finding in swapped.errors}


def test_dynamic_bundle_is_checked_at_its_sizes(tmp_path: Path, backend: XlaBackend) -> None:
    """One file, and a run per size that the manifest lists."""
    (batch,) = export.symbolic_shape("b", constraints=["b >= 2"])
    program = _artifact(lambda x, w, b: x @ w + b, (batch, 4), (4, 3), (3,))
    sound = _write(tmp_path / "sound", modules={0: program}, dynamic_sizes=(2, 8))

    report = _run(sound, backend)
    assert [] == report.findings
    assert [(2, 8)] == [facts.batch_sizes for facts in report.programs]
    assert ["model.mlir at batch size 2", "model.mlir at batch size 8"] == [
        run.program for run in report.runs
    ]

    (error,) = check_bundle(_rewrite(sound, "[2, 8]", "[1, 8]")).errors
    assert "model.mlir" == error.place
    assert "at batch size 1: cannot be specialised" in error.text
    assert "b >= 2" in error.text


# ---- portability


def _affine_with(root: Path, line: str) -> Path:
    """An affine bundle whose program for 4 rows has one more operation."""
    text = affine_text(4).replace("%2 = stablehlo.add", f"{line}\n    %2 = stablehlo.add")
    bundle = _write(root)
    (bundle / "model.b4.mlir").write_text(text)
    return bundle


@pytest.mark.parametrize(
    ("target", "severity", "says"),
    [
        ("lapack_spotrf_ffi", "warning", "exists on cpu only; it cannot move elsewhere"),
        ("cusolver_potrf_ffi", "warning", "exists on cuda only"),
        ("__cublas$gemm", "warning", "exists on cuda only"),
        ("tpu_custom_call", "error", "exists on tpu only; servers run on cpu and cuda"),
        ("hipsolver_potrf_ffi", "error", "exists on rocm only"),
        ("tf.call_tf_function", "error", "exists on tensorflow only"),
        ("my_kernel", "warning", "not part of XLA"),
    ],
)
def test_custom_calls_name_their_platform(
    tmp_path: Path, target: str, severity: str, says: str
) -> None:
    """A program that calls a library moves no further than the library."""
    line = f"%k = stablehlo.custom_call @{target}(%0) : (tensor<4x3xf32>) -> tensor<4x3xf32>"
    if "$" in target:
        line = line.replace(f"@{target}", f'@"{target}"')

    report = check_bundle(_affine_with(tmp_path, line))

    found = [f for f in report.findings if repr(target) in f.text]
    assert [(severity, "model.b4.mlir")] == [(f.severity, f.place) for f in found]
    assert says in found[0].text


@pytest.mark.parametrize("target", ["mhlo.erf", "stablehlo.dynamic_top_k", "shape_assertion"])
def test_calls_that_xla_expands_are_fine(tmp_path: Path, target: str) -> None:
    """They stand for plain operations."""
    line = f"%k = stablehlo.custom_call @{target}(%0) : (tensor<4x3xf32>) -> tensor<4x3xf32>"

    assert not any(target in f.text for f in check_bundle(_affine_with(tmp_path, line)).findings)


def test_large_constants_are_weights_in_the_wrong_place(tmp_path: Path) -> None:
    """Each batch size holds them again; of any dtype, and splats cost nothing."""
    table, small = np.arange(40000, dtype=np.float32), jnp.arange(50000, dtype=jnp.bfloat16)

    def function(x: Any, w: Any, b: Any) -> Any:
        return (
            x @ w + b + jnp.asarray(table)[:3] * small[:3].astype("float32") + jnp.ones(100_000)[:3]
        )

    bundle = _write(tmp_path, modules={1: _artifact(function, (1, 4), (4, 3), (3,))})

    text = _one_warning(bundle)
    assert "model.b1.mlir: it holds 2 large constants of 254 KiB" in text
    assert "(the largest is tensor<40000xf32>, 156 KiB)" in text


def test_several_devices_are_told(tmp_path: Path) -> None:
    """Annotations are ignored with a warning; an exchange between devices cannot be."""
    bundle = _write(tmp_path)
    text = affine_text(4).replace("@affine", "@affine attributes {mhlo.num_partitions = 2 : i32}")
    (bundle / "model.b4.mlir").write_text(text)
    report = check_bundle(bundle)
    assert [] == report.errors
    assert any("was exported for 2 devices" in finding.text for finding in report.warnings)

    report = check_bundle(_affine_with(tmp_path / "x", "%k = stablehlo.replica_id : tensor<ui32>"))
    (error,) = report.errors
    assert "exchanges data between devices ('stablehlo.replica_id')" in error.text


def test_callbacks_into_python_are_errors(tmp_path: Path) -> None:
    """They would jump to an address of the process that exported them."""
    line = "%k = stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)"
    line += " : (tensor<4x3xf32>) -> tensor<4x3xf32>"

    (error,) = check_bundle(_affine_with(tmp_path, line)).errors
    assert "calls back into Python" in error.text


def test_random_numbers_are_told(tmp_path: Path) -> None:
    """A program that draws them answers differently on another platform."""
    line = """%lo = stablehlo.constant dense<0.0> : tensor<f32>
    %hi = stablehlo.constant dense<1.0> : tensor<f32>
    %sh = stablehlo.constant dense<[4, 3]> : tensor<2xi64>
    %k = stablehlo.rng %lo, %hi, %sh, distribution = UNIFORM
      : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<4x3xf32>"""

    report = check_bundle(_affine_with(tmp_path, line))
    assert [] == report.errors
    assert any("random numbers that differ" in finding.text for finding in report.warnings)


def test_ignored_input_is_told_once(tmp_path: Path) -> None:
    """A model that ignores what it is given is seldom meant; unused weights often are."""
    programs = {n: _artifact(lambda x, w, b: w[:1] * 0 + 1, (n, 4), (1, 3), (3,)) for n in (1,)}
    bundle = _write(tmp_path, modules=programs, weights={**WEIGHTS, "w": np.ones((1, 3), "f4")})

    assert "model.b1.mlir: the program ignores input 'x': whatever" in _one_warning(bundle)


def test_text_is_not_a_portable_artifact(tmp_path: Path) -> None:
    """It is served, but only here; artifacts tell which jaxlib reads them."""
    bundle = _write(tmp_path)
    (first, second) = check_bundle(bundle).programs
    assert first.stablehlo_version == second.stablehlo_version != ""
    assert "" != first.jaxlib_version

    (bundle / "model.b4.mlir").write_text(affine_text(4))
    assert "model.b4.mlir: it is MLIR text or plain bytecode" in _one_warning(bundle)


# ---- hooks

HOOK = "import hloserve\nhloserve.register_model(preprocess=lambda inputs: inputs)\n"


def test_hook_file_is_run_as_a_server_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints does not mix with the report, and nothing of it stays."""
    before = set(sys.modules)
    bundle = _write(tmp_path, files={"model.py": "print('loading')\n" + HOOK})

    assert [] == check_bundle(bundle).findings
    assert ("", "loading\n") == capsys.readouterr()
    assert not {name for name in set(sys.modules) - before if "hloserve_bundle" in name}


def test_hook_file_is_left_alone_on_request(tmp_path: Path) -> None:
    """It is the author's code."""
    bundle = _write(tmp_path, files={"model.py": "raise SystemExit(3)\n"})

    report = check_bundle(bundle, runs_hooks=False)
    assert [] == report.findings
    assert "hooks" not in report.checked
    (error,) = check_bundle(bundle).errors
    assert ("model.py", True) == (error.place, "SystemExit" in error.text)


def test_client_specs_need_their_hook(tmp_path: Path) -> None:
    """A side that differs from the program's has to be bridged."""
    client = IOSpec("y", "u8", (1, 3), batch_axis=0)
    bundle = _write(tmp_path, client_outputs=[client], files={"model.py": HOOK})

    (error,) = check_bundle(bundle).errors
    assert "client_outputs differ from the program's, but model.py registers no" in error.text


def test_meta_model_is_checked_without_programs(tmp_path: Path, backend: XlaBackend) -> None:
    """It has a hook file alone."""
    bundle = examples.make_bundle(tmp_path / "m", examples.META)
    (bundle / "model.py").write_text("import hloserve\nhloserve.register_meta_model(run=print)\n")

    report = _run(bundle, backend)
    assert ([], {}) == (report.findings, report.not_checked)
    assert ["manifest", "files", "hooks"] == report.checked

    (bundle / "model.b1.mlir").write_text("")
    assert "a meta model has no program of its own" in _one_warning(bundle)


def test_calls_of_a_meta_model_are_looked_for_beside_it(tmp_path: Path) -> None:
    """One that is a meta model itself is refused; one that is not there is warned of."""
    bundle = examples.make_bundle(tmp_path / "m", examples.META)
    (bundle / "model.py").write_text("import hloserve\nhloserve.register_meta_model(run=print)\n")
    examples.make_bundle(tmp_path / "backbone_a", examples.META.replace("backbone_a", "b"))
    (tmp_path / "backbone_a" / "model.py").touch()

    report = check_bundle(bundle)

    assert ["meta.calls names 'backbone_a', which is a meta model itself"] == [
        error.text.partition(";")[0] for error in report.errors
    ]
    assert ["meta.calls names 'head_a', but there is no such bundle beside this one"] == [
        warning.text.partition(";")[0] for warning in report.warnings
    ]


# ---- running


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, w, b: (x @ w + b) / 0, "inf"),
        (lambda x, w, b: (x @ w + b) * jnp.nan, "12 NaN among 12 elements"),
        (lambda x, w, b: jnp.zeros_like(x @ w + b) - jnp.inf, "12 -inf among 12 elements"),
        (lambda x, w, b: jnp.log(jnp.abs(x @ w + b) * 0), "12 -inf among 12 elements"),
    ],
)
def test_outputs_that_are_not_finite_are_counted(
    tmp_path: Path, backend: XlaBackend, function: Any, says: str
) -> None:
    """NaN and both infinities, per output."""
    bundle = _write(tmp_path, modules={4: _artifact(function, (4, 4), (4, 3), (3,))})

    (warning,) = [f for f in _run(bundle, backend).warnings if "ignores input" not in f.text]

    assert "output 'y' of random inputs holds" in warning.text
    assert says in warning.text


def test_weights_that_are_not_finite_are_named(tmp_path: Path, backend: XlaBackend) -> None:
    """They are the likeliest cause."""
    bad = np.array([np.nan, np.inf, 1], np.float32)

    report = _run(_write(tmp_path, weights={**WEIGHTS, "b": bad}), backend)

    assert "weights.safetensors: weight 'b' holds 1 NaN, 1 +inf" in _texts(report.warnings)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_runs(tmp_path: Path, backend: XlaBackend, dtype: Any) -> None:
    """Random inputs are made for each, and results looked at in each."""
    spec = IOSpec("x", dtype, (1, 4), batch_axis=0)
    text = identity_text(f"2x4x{dtype.stablehlo}", f"3x{dtype.stablehlo}")
    visible = IOSpec("c", "f32", (1, 4), batch_axis=0)
    bundle = _write(
        tmp_path, executable_inputs=[spec], executable_outputs=[spec], modules={2: text},
        weights={"w": np.zeros(3, dtype.numpy)},
        client_inputs=[visible], client_outputs=[visible],
        files={"model.py": "import hloserve\n"
               "hloserve.register_model(preprocess=dict, postprocess=dict)\n"},
    )  # fmt: skip

    report = _run(bundle, backend)

    assert [] == report.errors
    (run,) = report.runs
    assert 8 * dtype.itemsize == run.input_bytes
    assert math.prod((2, 4)) == run.outputs[0].elements
    assert all(output.is_finite for output in run.outputs)


def test_programs_with_errors_are_not_run(tmp_path: Path, backend: XlaBackend) -> None:
    """A wrong type would be the caller's memory."""
    report = _run(_write(tmp_path, weights={"w": WEIGHTS["w"]}), backend)

    assert "there are errors" == report.not_checked["run"]
    assert [] == report.runs


def test_device_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    """So is one that cannot be opened a part that was not checked."""

    class Small(XlaBackend):
        @override
        def to_device(self, arrays: Any) -> Any:
            raise DeviceMemoryFull(60, 0)

    (error,) = _run(_write(tmp_path), Small("cpu")).errors
    assert "weights.safetensors" == error.place

    def open_nothing() -> Backend:
        raise MissingExtra("server", "running StableHLO programs", ImportError("jax"))

    report = check_bundle(tmp_path / "m", open_backend=open_nothing)
    assert [] == report.findings
    assert "pip install" in report.not_checked["run"]


def test_run_of_a_monstrous_shape_is_left_out(tmp_path: Path, backend: XlaBackend) -> None:
    """A manifest may claim anything; the machine stays whole."""
    huge = IOSpec("x", "f32", (1, 2**31), batch_axis=0)
    bundle = _write(
        tmp_path, executable_inputs=[huge], executable_outputs=[huge],
        modules={1: identity_text(f"1x{2**31}xf32")}, weights={},
    )  # fmt: skip

    report = _run(bundle, backend)

    assert [] == report.errors
    assert [] == report.runs
    assert any("was not run: its inputs and outputs are 16 GiB" in f.text for f in report.warnings)


def test_endlessly_nested_program_is_an_error(tmp_path: Path) -> None:
    """A hostile file ends in a sentence."""
    bundle = _write(tmp_path)
    (bundle / "model.b4.mlir").write_text("module {" * 1500 + "}" * 1500)

    (error,) = check_bundle(bundle).errors
    assert "model.b4.mlir" == error.place
    assert "damaged content (RecursionError" in error.text


# ---- without XLA


def test_check_without_the_server_extra_says_what_is_missing(tmp_path: Path) -> None:
    """Manifest, files, weights and hooks need no XLA."""
    bundle = _write(tmp_path, files={"model.py": HOOK})
    (bundle / "model_b8.mlir").write_text("")
    script = f"""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from hloserve.cli.main import run
sys.exit(run(["check", {str(bundle)!r}, "--run"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert ("", 0) == (done.stderr, done.returncode)
    assert "ok, 1 warning (manifest, files, weights, hooks)" in done.stdout
    assert "not checked: programs: reading StableHLO programs needs" in done.stdout
    assert "pip install 'hloserve[server]'" in done.stdout
