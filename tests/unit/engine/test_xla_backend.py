"""XLA on the CPU: what the engine relies on beyond the contract that every backend keeps."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
import pytest
from jax._src import xla_bridge
from support.models_bundles import WEIGHTS, affine, affine_text, identity_text

from hloserve.core.dtypes import BOOL, DTYPES, F32, I64, DType
from hloserve.core.errors import BackendFailed, ConfigProblem, DeviceMemoryFull
from hloserve.core.tensors import Array
from hloserve.engine.arena import HostArena
from hloserve.engine.programs.signature import TensorType
from hloserve.engine.xla_backend import XlaBackend
from hloserve.engine.xla_client import client_options, request_memory
from hloserve.engine.xla_executable import XlaExecutable

pytestmark = pytest.mark.xla

_MEMORY = {"memory_fraction": 0.9, "preallocate": False}


@pytest.fixture(scope="module")
def backend() -> XlaBackend:
    """One CPU device for all tests of the file."""
    return XlaBackend("cpu")


def _compile(backend: XlaBackend, text: str) -> XlaExecutable:
    return backend.compile(backend.read_program(text.encode(), "model.mlir"), "m")


def _run(backend: XlaBackend, executable: XlaExecutable, *arrays: Array) -> list[Array]:
    arguments = backend.to_device(arrays)
    results = backend.execute(executable, arguments)
    outputs = backend.to_host(results)
    backend.free([*arguments, *results])
    return outputs


def _aligned(values: Array, dtype: DType) -> Array:
    array = HostArena(values.nbytes + 64).take(dtype, values.shape)
    array[...] = values
    return array


def test_device_that_is_not_there_says_what_it_takes() -> None:
    """XLA's own words name neither the driver nor what to install."""
    with suppress(RuntimeError):
        jax.local_devices(backend="cuda")
        pytest.skip("there is an NVIDIA GPU")

    with pytest.raises(ConfigProblem, match=r"runtime.backend: cuda: .*hloserve\[cuda13\]"):
        XlaBackend("cuda")


def test_versions_are_in_the_tested_range() -> None:
    """The names we use are private: a new version needs a look at this file and at 03-pjrt.md."""
    for version in (jax.__version__, jaxlib.version.__version__):
        major, minor = map(int, version.split(".")[:2])
        assert (0, 10) <= (major, minor) < (0, 12), "run this suite, then widen the range"


def test_private_names_are_there(backend: XlaBackend) -> None:
    """Each private name does what the backend expects of it, so that a move is seen here first."""
    executable = _compile(backend, affine_text(2))
    assert hasattr(executable.loaded, "execute_sharded")
    results = backend.execute(
        executable, backend.to_device([np.zeros((2, 4), "f4"), *WEIGHTS.values()])
    )
    assert hasattr(results[0], "unsafe_buffer_pointer")
    assert hasattr(results[0], "delete")


def test_program_computes(backend: XlaBackend) -> None:
    """The answer is the one NumPy gives."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (y,) = _run(backend, _compile(backend, affine_text(2)), x, *WEIGHTS.values())
    assert np.array_equal(y, affine(x))


def test_aligned_array_is_not_copied_to_the_device(backend: XlaBackend) -> None:
    """On CPU the device uses the very bytes of an aligned host array."""
    array = _aligned(np.arange(1000, dtype=np.float32), F32)
    (buffer,) = backend.to_device([array])
    assert buffer.unsafe_buffer_pointer() == array.ctypes.data  # type: ignore[attr-defined]


def test_read_only_array_is_not_copied_either(backend: XlaBackend) -> None:
    """Weights are read-only views of their arena."""
    array = _aligned(np.arange(1000, dtype=np.float32), F32)
    array.flags.writeable = False
    (buffer,) = backend.to_device([array])
    assert buffer.unsafe_buffer_pointer() == array.ctypes.data  # type: ignore[attr-defined]


def test_misaligned_array_may_be_overwritten_once_its_run_is_over(backend: XlaBackend) -> None:
    """It is copied in the background, so the caller waits for the run, as for an aligned one."""
    memory = np.zeros(4 * (1 << 20) + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 4
    array = memory[start : start + 4 * (1 << 20)].view(np.float32)
    array[:] = 1
    (out,) = _run(backend, _compile(backend, identity_text("1048576xf32")), array)
    array[:] = 2
    assert (out == 1).all()


def test_result_is_a_view_of_device_memory(backend: XlaBackend) -> None:
    """Fetching copies nothing on CPU, and the view cannot be written."""
    executable = _compile(backend, identity_text("1024xf32"))
    results = backend.execute(executable, backend.to_device([np.ones(1024, "f4")]))
    (array,) = backend.to_host(results)
    assert array.ctypes.data == results[0].unsafe_buffer_pointer()  # type: ignore[attr-defined]
    assert not array.flags.writeable


def test_view_outlives_its_buffer(backend: XlaBackend) -> None:
    """An array is valid for as long as it is referenced, whatever runs after it."""
    executable = _compile(backend, identity_text("65536xf32"))
    kept = [_run(backend, executable, np.full(65536, value, "f4"))[0] for value in range(20)]
    assert all((array == value).all() for value, array in enumerate(kept))


def test_freeing_twice_is_ignored(backend: XlaBackend) -> None:
    """`free` may be called from a `finally` that knows little."""
    buffers = backend.to_device([np.zeros(4, "f4")])
    backend.free(buffers)
    backend.free(buffers)


def test_use_after_free_is_an_error(backend: XlaBackend) -> None:
    """Freed weights fail the execution instead of giving garbage."""
    executable = _compile(backend, identity_text("4xf32"))
    buffers = backend.to_device([np.zeros(4, "f4")])
    backend.free(buffers)
    with pytest.raises(BackendFailed, match="execution of model 'm' failed"):
        backend.execute(executable, buffers)


def test_weights_survive_many_runs(backend: XlaBackend) -> None:
    """Nothing is donated, even when the exporter asked for it."""
    text = affine_text(2).replace(
        "%w: tensor<4x3xf32>,", "%w: tensor<4x3xf32> {jax.buffer_donor = true},"
    )
    executable = _compile(backend, text)
    weights = backend.to_device(list(WEIGHTS.values()))
    x = np.ones((2, 4), np.float32)
    for _ in range(3):
        results = backend.execute(executable, [*backend.to_device([x]), *weights])
        assert np.array_equal(backend.to_host(results)[0], affine(x))


@pytest.mark.parametrize("value", [2**40, 2**63 - 1, -(2**63)])
def test_int64_is_exact(backend: XlaBackend, value: int) -> None:
    """64-bit integers pass whole; jax's default would cut them to 32 bits in silence."""
    array = np.array([value, 1], np.int64)
    (out,) = _run(backend, _compile(backend, identity_text("2xi64")), array)
    assert out.dtype == np.int64
    assert out.tolist() == [value, 1]


def test_float64_and_uint64_are_exact(backend: XlaBackend) -> None:
    """So do the other 64-bit types."""
    executable = _compile(backend, identity_text("f64", "ui64"))
    third, large = _run(backend, executable, np.array(1 / 3), np.array(2**64 - 1, np.uint64))
    assert (float(third), int(large)) == (1 / 3, 2**64 - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (2, 1, 3)], ids=str)
def test_every_dtype_and_shape_passes_bit_for_bit(
    backend: XlaBackend, dtype: DType, shape: Sequence[int]
) -> None:
    """All element types of the format, of rank 0, without elements, and plain."""
    count = int(np.prod(shape))
    bits = np.random.default_rng(0).integers(0, 2 if dtype is BOOL else 256, count * dtype.itemsize)
    array = bits.astype(np.uint8).view(dtype.numpy).reshape(shape)
    executable = _compile(backend, identity_text("x".join([*map(str, shape), dtype.stablehlo])))
    (out,) = _run(backend, executable, array)
    assert (out.dtype, out.shape) == (array.dtype, array.shape)
    assert out.tobytes() == array.tobytes()


def test_program_without_arguments_or_results(backend: XlaBackend) -> None:
    """Degenerate programs run."""
    assert _run(backend, _compile(backend, identity_text())) == []


def test_unused_arguments_are_kept(backend: XlaBackend) -> None:
    """An argument that the program ignores still has its place."""
    text = "module { func.func @main(%a: tensor<2xf32>, %b: tensor<3xi64>) -> tensor<2xf32> {"
    text += " return %a : tensor<2xf32> } }"
    (out,) = _run(backend, _compile(backend, text), np.ones(2, "f4"), np.zeros(3, "i8"))
    assert out.tolist() == [1, 1]


def test_specialised_program_runs_at_each_size(backend: XlaBackend) -> None:
    """One symbolic program becomes an executable per batch size."""
    program = backend.read_program(affine_text("?").encode(), "model.mlir")
    for rows in (1, 3, 8):
        types = [TensorType(F32, (rows, 4)), *program.signature.inputs[1:]]
        executable = backend.compile(backend.specialise(program, types), "m")
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_allclose(
            _run(backend, executable, x, *WEIGHTS.values())[0], affine(x), rtol=1e-5
        )


def test_open_program_is_not_compiled(backend: XlaBackend) -> None:
    """Open extents are named, instead of what the compiler makes of them."""
    with pytest.raises(BackendFailed, match=r"extents are open: \(tensor<\?x4xf32>"):
        _compile(backend, affine_text("?"))


def test_foreign_custom_call_names_the_way_out(backend: XlaBackend) -> None:
    """A program lowered for another platform says so."""
    text = """module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %0 = stablehlo.custom_call @cusolver_getrf_ffi(%a) {api_version = 4 : i32}
          : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32> } }"""
    with pytest.raises(BackendFailed, match=r"cusolver_getrf_ffi.*export for cpu"):
        _compile(backend, text)


def test_wrong_arguments_are_refused(backend: XlaBackend) -> None:
    """Too few arguments, or of other types, are errors of ours with the cause kept."""
    executable = _compile(backend, affine_text(2))
    buffers = backend.to_device([np.zeros((2, 4), "f4"), *WEIGHTS.values()])
    with pytest.raises(BackendFailed, match="supplied 2 arguments") as raised:
        backend.execute(executable, buffers[:2])
    assert raised.value.__cause__ is not None
    with pytest.raises(BackendFailed, match="incompatible size"):
        backend.execute(executable, [buffers[1], buffers[0], buffers[2]])


def test_array_of_strings_is_refused(backend: XlaBackend) -> None:
    """What is no tensor gets our error, too."""
    with pytest.raises(BackendFailed, match="transfer to the device failed"):
        backend.to_device([np.array(["a"])])


def test_lack_of_memory_is_retryable(backend: XlaBackend) -> None:
    """An allocation that the device refuses is its own type, with the bytes it needed."""
    shape = "1000000x1000000x8xf32"
    text = f"""module {{ func.func @main(%a: tensor<f32>) -> tensor<{shape}> {{
        %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<{shape}>
        return %0 : tensor<{shape}> }} }}"""
    executable = _compile(backend, text)
    with pytest.raises(DeviceMemoryFull) as raised:
        backend.to_host(backend.execute(executable, backend.to_device([np.array(1, "f4")])))
    assert raised.value.needed_bytes == 32 * 10**12
    assert raised.value.retryable


def test_compile_and_execute_release_the_gil(backend: XlaBackend) -> None:
    """While XLA works, the loop thread goes on."""
    n = 700
    square = f"tensor<{n}x{n}xf32>"
    text = f"""module {{ func.func @main(%a: {square}) -> {square} {{
        %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
          : ({square}, {square}) -> {square}
        %1 = stablehlo.tanh %0 : {square}
        return %1 : {square} }} }}"""
    program = backend.read_program(text.encode(), "model.mlir")
    compiled: list[XlaExecutable] = []
    (buffer,) = backend.to_device([np.ones((n, n), "f4")])

    def compile_it() -> None:
        compiled.append(backend.compile(program, "m"))

    def execute_it() -> None:
        backend.to_host(backend.execute(compiled[0], [buffer]))

    # Others may have the cores for a while; a lock that is held lets nobody through, ever.
    assert any(_steps_beside(compile_it) > 50 for _ in range(20))
    assert any(_steps_beside(execute_it) > 50 for _ in range(20))


def _steps_beside(work: object) -> int:
    """How often this thread gets to run while another one works."""
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    steps = 0
    while thread.is_alive():
        steps += 1
        time.sleep(0)
    thread.join()
    return steps


def test_programs_compile_on_several_threads_at_once(backend: XlaBackend) -> None:
    """Loaders of different bundles do not disturb each other."""
    outputs: dict[int, list[float]] = {}

    def work(rows: int) -> None:
        executable = _compile(backend, affine_text(rows))
        x = np.ones((rows, 4), np.float32)
        outputs[rows] = _run(backend, executable, x, *WEIGHTS.values())[0][0].tolist()

    threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(row == affine(np.ones((1, 4), "f4"))[0].tolist() for row in outputs.values())
    assert len(outputs) == 6


def test_device_says_what_it_is(backend: XlaBackend) -> None:
    """The CPU reports no memory, so nothing is budgeted on it."""
    assert (backend.platform, backend.device_kind) == ("cpu", "cpu")
    assert backend.memory() is None


def test_missing_device_is_a_setting_to_correct() -> None:
    """A wrong ordinal or platform names the key of the configuration."""
    with pytest.raises(ConfigProblem, match=r"runtime\.device_ordinal: 3: cpu has 1"):
        XlaBackend("cpu", 3)
    with pytest.raises(ConfigProblem, match=r"runtime\.backend: abacus"):
        XlaBackend("abacus")


@pytest.mark.parametrize(
    ("given", "mem_fraction", "preallocate", "options"),
    [
        (None, None, None, {}),
        (None, 0.5, None, {"memory_fraction": 0.5}),
        (None, 0.9, False, {"memory_fraction": 0.9, "preallocate": False}),
        ({"a": 1, "preallocate": True}, 0.9, False, {"a": 1, **_MEMORY}),
        ("a:1;b:x;", 0.9, False, {"a": "1", "b": "x", **_MEMORY}),
        ("", 0.9, False, _MEMORY),
    ],
)
def test_memory_settings_join_the_options_that_jax_was_given(
    given: Any, mem_fraction: float, preallocate: bool, options: Mapping[str, Any]
) -> None:
    """An operator's other options are kept, in each form that jax takes them."""
    assert options == client_options(given, mem_fraction, preallocate)


@pytest.fixture
def restored_options() -> Iterator[None]:
    """What a test sets for jax's next client is undone."""
    before = jax.config.jax_pjrt_client_create_options
    yield
    jax.config.update("jax_pjrt_client_create_options", before)


@pytest.mark.usefixtures("restored_options")
def test_jax_takes_the_memory_settings_for_its_gpu_client() -> None:
    """They are among the options that jax merges last when it makes the client of a plugin."""
    request_memory(0.25, False)

    options = xla_bridge._options_from_jax_configs("cuda")

    assert (options["memory_fraction"], options["preallocate"]) == (0.25, False)


@pytest.mark.usefixtures("restored_options")
def test_memory_settings_leave_the_cpu_alone() -> None:
    """The CPU has no such limit, and a later client shall not get it by accident."""
    before = jax.config.jax_pjrt_client_create_options

    XlaBackend("cpu", mem_fraction=0.1, preallocate=True)

    assert before == jax.config.jax_pjrt_client_create_options


def _import_with(hidden: str) -> str:
    script = f"""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
try:
    import hloserve.engine.xla_backend
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("library", ["jax", "jaxlib"])
def test_missing_library_prints_the_command(library: str) -> None:
    """Without the server extra the error is the command that installs it."""
    text = _import_with(library)
    assert text.startswith("MissingExtra")
    assert "pip install 'hloserve[server]'" in text


def test_moved_internals_name_the_tested_versions() -> None:
    """A version that moved what we use is refused with the range that works."""
    text = _import_with("jaxlib.mlir.dialects.sdy")
    assert text.startswith("UntestedVersion")
    assert "0.10 to 0.11" in text


def test_int64_zero_rank_constant(backend: XlaBackend) -> None:
    """A constant result of 64 bits is exact as well."""
    text = f"""module {{ func.func @main() -> tensor<i64> {{
        %0 = stablehlo.constant dense<{2**40}> : tensor<i64>
        return %0 : tensor<i64> }} }}"""
    (out,) = _run(backend, _compile(backend, text))
    assert (out.dtype, int(out)) == (I64.numpy, 2**40)


def test_cpu_needs_no_pinned_memory(backend: XlaBackend) -> None:
    """It computes with host memory as it is; asking harms nothing."""
    memory = np.zeros(4096, np.uint8)

    assert not backend.pin(memory)
    backend.unpin(memory)


def test_failure_of_a_device_that_runs_ahead_is_told_at_the_latest_by_fetching() -> None:
    """Starting the copy to the host says nothing, so that there is one place that does."""
    ahead = XlaBackend("cpu", runs_ahead=True)
    buffers = ahead.to_device([np.zeros(3, np.float32)])
    ahead.free(buffers)

    ahead.begin_to_host(buffers)

    with pytest.raises(BackendFailed):
        ahead.to_host(buffers)


def _pool_threads() -> int:
    """How many threads of this process XLA computes with."""
    names = (task / "comm" for task in Path("/proc/self/task").iterdir())
    return sum(name.read_text().startswith("tf_XLAEigen") for name in names)


def test_programs_compute_with_as_many_threads_as_they_are_given() -> None:
    """Others of the machine keep their cores, and the environment is as it was."""
    before, environment = _pool_threads(), dict(os.environ)

    XlaBackend("cpu", cpu_threads=3)

    assert (_pool_threads() - before, environment) == (3, dict(os.environ))


def test_programs_for_other_threads_have_other_keys() -> None:
    """XLA divides the work when it compiles."""
    keys = set()
    for threads in (1, 2):
        backend = XlaBackend("cpu", cpu_threads=threads)
        keys.add(
            backend.cache_key(
                backend.read_program(b"module { func.func public @main() { return } }", "m")
            )
        )

    assert len(keys) == 2
