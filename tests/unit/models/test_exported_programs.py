"""Programs as jax exports them, not as we would write them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.models_bundles import replace_in

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import ProgramProblem
from hloserve.core.tensors import Array
from hloserve.engine.programs.compiling import CompileSettings
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.engine.programs.numerics import NumericsMode
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import LoadOptions, load_model
from hloserve.models.model import Model

pytestmark = pytest.mark.xla

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(3, 3, 1, 4)).astype(np.float32)
HEAD = RNG.normal(size=(4, 5)).astype(np.float32)
IMAGE = IOSpec("image", "f32", (1, 8, 8, 1), batch_axis=0)
OUTPUTS = [
    IOSpec("probabilities", "f32", (1, 5), batch_axis=0),
    IOSpec("best", "i32", (1, 2), batch_axis=0),
]


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


@pytest.fixture
def tf32_variable() -> Iterator[None]:
    """A variable that mode f32 sets in this process, as it was afterwards."""
    before = os.environ.get("NVIDIA_TF32_OVERRIDE")
    yield
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    if before is not None:
        os.environ["NVIDIA_TF32_OVERRIDE"] = before


def _classify(image: jax.Array, kernel: jax.Array, head: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.gelu(x).mean(axis=(1, 2))
    probabilities = jax.nn.softmax(x @ head)
    return probabilities, jax.lax.top_k(probabilities, 2)[1].astype(jnp.int32)


def _export(batch: object, platforms: tuple[str, ...] = ("cpu",)) -> bytes:
    shape = jax.ShapeDtypeStruct
    exported = export.export(jax.jit(_classify, keep_unused=True), platforms=platforms)(
        shape((batch, 8, 8, 1), np.float32),  # may be symbolic
        shape(KERNEL.shape, np.float32),
        shape(HEAD.shape, np.float32),
    )
    return bytes(exported.mlir_module_serialized)


def _write(root: Path, modules: dict[int, bytes]) -> Path:
    weights = {"kernel": KERNEL, "head": HEAD}
    return write_bundle(root / "m", "m", [IMAGE], OUTPUTS, modules, weights)


def _answer(backend: XlaBackend, model: Model, image: Array) -> list[Array]:
    executable = model.device.executables[()][len(image)]
    arguments = [*backend.to_device([image]), *model.device.weights]
    return backend.to_host(backend.execute(executable, arguments))


def _check(backend: XlaBackend, model: Model) -> None:
    for size in model.device.sizes(()):
        image = RNG.normal(size=(size, 8, 8, 1)).astype(np.float32)
        probabilities, best = _answer(backend, model, image)
        expected = jax.jit(_classify)(image, KERNEL, HEAD)
        np.testing.assert_allclose(probabilities, expected[0], atol=1e-6)
        assert np.array_equal(best, expected[1])
    model.free()


def test_program_per_size_serves(tmp_path: Path, backend: XlaBackend) -> None:
    """The common form: an artifact for each batch size."""
    model = load_model(_write(tmp_path, {1: _export(1), 4: _export(4)}), backend)
    assert model.device.sizes(()) == (1, 4)
    _check(backend, model)


def test_symbolic_program_serves_every_size(tmp_path: Path, backend: XlaBackend) -> None:
    """One artifact with a symbolic batch, fixed to each size at load."""
    (batch,) = export.symbolic_shape("b")
    bundle = _write(tmp_path, {0: _export(batch)})
    replace_in(bundle / "manifest.yaml", "compiled_batch_sizes: []", "compiled_batch_sizes: [1, 3]")
    model = load_model(bundle, backend)
    assert model.device.sizes(()) == (1, 3)
    _check(backend, model)


def test_constraint_of_a_symbolic_program_is_told(tmp_path: Path, backend: XlaBackend) -> None:
    """A batch size that the exporter excluded is refused at load, in its words."""
    (batch,) = export.symbolic_shape("b", constraints=["b >= 2"])
    bundle = _write(tmp_path, {0: _export(batch)})
    replace_in(bundle / "manifest.yaml", "compiled_batch_sizes: []", "compiled_batch_sizes: [1]")
    with pytest.raises(ProgramProblem, match=r"model\.mlir at batch size 1: cannot be .*b >= 2"):
        load_model(bundle, backend)


def test_program_for_several_platforms_is_refused(tmp_path: Path, backend: XlaBackend) -> None:
    """Its first argument is the platform, which no bundle declares."""
    with pytest.raises(ProgramProblem, match="exported for several platforms"):
        load_model(_write(tmp_path, {1: _export(1, ("cpu", "cuda"))}), backend)


def test_dropped_argument_is_told(tmp_path: Path, backend: XlaBackend) -> None:
    """Unused arguments are dropped by jax unless it is told not to."""
    exported = export.export(jax.jit(lambda x, unused: x), platforms=("cpu",))(
        jax.ShapeDtypeStruct((1, 4), np.float32), jax.ShapeDtypeStruct((4,), np.float32)
    )
    bundle = write_bundle(
        tmp_path / "m", "m",
        [IOSpec("x", "f32", (1, 4), batch_axis=0)], [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        {1: bytes(exported.mlir_module_serialized)}, {"unused": np.zeros(4, np.float32)},
    )  # fmt: skip
    with pytest.raises(ProgramProblem, match="keep_unused=True"):
        load_model(bundle, backend)


def test_linear_algebra_of_this_platform_runs(tmp_path: Path) -> None:
    """LAPACK calls of a CPU export find their implementation in a process that lowered nothing."""
    exported = export.export(
        jax.jit(lambda x: jnp.linalg.qr(x)[1]), platforms=("cpu",),
        disabled_checks=[export.DisabledSafetyCheck.custom_call("lapack_sgeqrf_ffi")],
    )(jax.ShapeDtypeStruct((3, 3), np.float32))  # fmt: skip
    bundle = write_bundle(
        tmp_path / "m", "m", [IOSpec("x", "f32", (3, 3))], [IOSpec("r", "f32", (3, 3))],
        {0: bytes(exported.mlir_module_serialized)}, {},
    )  # fmt: skip
    script = f"""
import numpy as np
from hloserve.engine.xla_backend import XlaBackend
from hloserve.models.loader import load_model
backend = XlaBackend("cpu")
model = load_model({str(bundle)!r}, backend)
x = np.arange(9, dtype=np.float32).reshape(3, 3) + np.eye(3, dtype=np.float32)
results = backend.execute(model.device.executables[()][0], backend.to_device([x]))
(r,) = backend.to_host(results)
np.testing.assert_allclose(np.abs(r), np.abs(np.linalg.qr(x)[1]), atol=1e-5)
print("equal")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


@pytest.mark.parametrize("mode", ["auto", "f32"])
@pytest.mark.usefixtures("tf32_variable")
def test_model_knows_what_was_done_to_its_programs(tmp_path: Path, mode: NumericsMode) -> None:
    """The effective numerics of a model are logged once, also when its programs were restored."""
    backend = XlaBackend("cpu", compiling=CompileSettings(numerics=mode))
    bundle = _write(tmp_path, {1: _export(1), 4: _export(4)})
    options = LoadOptions(cache=ExecutableCache(tmp_path / "cache", 2**30))

    cold, warm = (load_model(bundle, backend, options) for _ in range(2))

    texts = {
        "auto": "auto (f32: target lacks TF32)",
        "f32": "f32 (pinned 1 dot_general, pinned 1 convolution)",
    }
    assert texts[mode] == cold.notes.numerics
    assert (0, 2) == (cold.restored_programs, warm.restored_programs)
    assert cold.notes == warm.notes
    cold.free()
    warm.free()
