"""What every backend does: one suite, run on NumPy and on XLA, synchronous and running ahead."""

import json
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from hloserve.core.dtypes import DTYPES, F32, DType
from hloserve.core.errors import BackendFailed, ProgramProblem
from hloserve.core.tensors import Array
from hloserve.engine.assembly import StagingArea
from hloserve.engine.backend import Backend, Executable
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.programs.signature import Signature, TensorType, parse_tensor_type

_BODIES = {
    "scale": """%1 = stablehlo.broadcast_in_dim %b, dims = [1] : ({B}) -> {A}
      %2 = stablehlo.multiply %a, %1 : {A}
      return %2 : {A}""",
    "identity": "return %a : {A}",
    "both": "return %a, %b : {A}, {B}",
}


@dataclass
class Case:
    """A backend and the way its programs are written."""

    backend: Backend
    write: Callable[[str, list[str], list[str]], bytes]

    def build(self, function: str, inputs: list[str], outputs: list[str]) -> Executable:
        """Read and compile one of the suite's programs."""
        artifact = self.write(function, inputs, outputs)
        return self.backend.compile(self.backend.read_program(artifact, "model.mlir"), "m")

    def run(self, executable: Executable, *arrays: Array) -> list[Array]:
        """Take arrays through the device and free what was made for it."""
        arguments = self.backend.to_device(arrays)
        results = self.backend.execute(executable, arguments)
        self.backend.begin_to_host(results)
        outputs = self.backend.to_host(results)
        self.backend.free([*arguments, *results])
        return outputs


def _write_json(function: str, inputs: list[str], outputs: list[str]) -> bytes:
    name = "identity" if function == "both" else function
    return json.dumps({"function": name, "inputs": inputs, "outputs": outputs}).encode()


def _write_mlir(function: str, inputs: list[str], outputs: list[str]) -> bytes:
    names = dict(zip("AB", inputs, strict=False))
    arguments = ", ".join(f"%{letter.lower()}: {kind}" for letter, kind in names.items())
    body = _BODIES[function].format(**names)
    return f"""module @m {{
    func.func public @main({arguments}) -> ({", ".join(outputs)}) {{
      {body}
    }} }}""".encode()


@pytest.fixture(
    params=[
        "fake",
        "fake ahead",
        pytest.param("xla", marks=pytest.mark.xla),
        pytest.param("xla ahead", marks=pytest.mark.xla),
        pytest.param("gpu", marks=[pytest.mark.xla, pytest.mark.gpu]),
    ],
    scope="module",
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each backend in turn."""
    runs_ahead = request.param.endswith("ahead")
    if request.param.startswith("fake"):
        fake = FakeBackend(runs_ahead=runs_ahead)
        yield Case(fake, _write_json)
        fake.close()
        return
    xla_backend = pytest.importorskip("hloserve.engine.xla_backend")
    if request.param == "gpu":
        yield Case(xla_backend.XlaBackend(request.getfixturevalue("gpu")), _write_mlir)
        return
    yield Case(xla_backend.XlaBackend("cpu", runs_ahead=runs_ahead), _write_mlir)


@pytest.fixture(scope="module")
def scale(case: Case) -> Executable:
    """Four rows of three, times a weight."""
    return case.build("scale", ["tensor<4x3xf32>", "tensor<3xf32>"], ["tensor<4x3xf32>"])


X = np.arange(12, dtype=np.float32).reshape(4, 3)
W = np.array([1, 2, 3], np.float32)


def _aligned(array: Array) -> Array:
    copy = StagingArea().take(array.shape, array.dtype)
    copy[...] = array
    return copy


def test_device_has_a_name(case: Case) -> None:
    """Logs and metrics can say what a worker runs on."""
    assert case.backend.platform
    assert case.backend.device_kind


def test_signature_is_that_of_the_program(case: Case) -> None:
    """Types are known before compiling, open extents included, and kept by compiling."""
    artifact = case.write("identity", ["tensor<?x3xi8>"], ["tensor<?x3xi8>"])
    open_type = parse_tensor_type("tensor<?x3xi8>")
    closed = parse_tensor_type("tensor<2x3xi8>")

    program = case.backend.read_program(artifact, "model.mlir")
    fixed = case.backend.specialise(program, [closed])

    assert program.signature == Signature((open_type,), (open_type,))
    assert case.backend.compile(fixed, "m").signature.inputs == (closed,)


@pytest.mark.parametrize("artifact", [b"", b"rubbish", b"{}", b"module {", b"\xff\x00ML\xefR"])
def test_rubbish_is_refused_by_name(case: Case, artifact: bytes) -> None:
    """What is not a program is a problem of its file."""
    with pytest.raises(ProgramProblem, match=r"model\.b1\.mlir"):
        case.backend.read_program(artifact, "model.b1.mlir")


def test_program_computes(case: Case, scale: Executable) -> None:
    """Arguments in, results out."""
    (y,) = case.run(scale, X, W)

    np.testing.assert_array_equal(y, X * W)
    assert y.flags.c_contiguous


def test_weights_serve_many_executions(case: Case, scale: Executable) -> None:
    """A buffer that is not freed can be used again."""
    weights = case.backend.to_device([_aligned(W)])
    for factor in (1, 2, 3):
        inputs = case.backend.to_device([_aligned(factor * X)])
        results = case.backend.execute(scale, [*inputs, *weights])
        np.testing.assert_array_equal(case.backend.to_host(results)[0], factor * X * W)
        case.backend.free([*inputs, *results])
    case.backend.free(weights)


def test_several_executions_may_be_asked_for_before_the_first_is_fetched(
    case: Case, scale: Executable
) -> None:
    """Each has its own results, whatever is fetched first."""
    asked = []
    for factor in (1, 2, 3):
        staged = _aligned(factor * X), _aligned(W)
        arguments = case.backend.to_device(staged)
        results = case.backend.execute(scale, arguments)
        case.backend.begin_to_host(results)
        asked.append((staged, arguments, results))

    answers = [case.backend.to_host(results)[0] for _, _, results in reversed(asked)]
    for _, arguments, results in asked:
        case.backend.free([*arguments, *results])

    for factor, y in zip((3, 2, 1), answers, strict=True):
        np.testing.assert_array_equal(y, factor * X * W)


def test_results_are_arguments_of_the_next_execution(case: Case, scale: Executable) -> None:
    """A device that runs ahead waits for what an execution reads."""
    x, w = case.backend.to_device([_aligned(X)]), case.backend.to_device([_aligned(W)])

    once = case.backend.execute(scale, [*x, *w])
    twice = case.backend.execute(scale, [*once, *w])

    np.testing.assert_array_equal(case.backend.to_host(twice)[0], X * W * W)
    case.backend.free([*x, *w, *once, *twice])


def test_buffers_may_be_freed_while_they_are_computed(case: Case, scale: Executable) -> None:
    """Giving up what runs harms nothing that runs after it."""
    staged = _aligned(X), _aligned(W)
    arguments = case.backend.to_device(staged)
    case.backend.free(case.backend.execute(scale, arguments))

    np.testing.assert_array_equal(case.run(scale, X, W)[0], X * W)
    case.backend.free(arguments)


def test_pinned_memory_is_transferred_as_any_other(case: Case, scale: Executable) -> None:
    """Pinning changes the speed of a transfer and nothing else, where there is such a thing."""
    memory = StagingArea().take((64,), np.dtype(np.float32))
    x = memory[:12].reshape(4, 3)
    x[...] = X
    is_pinned = case.backend.pin(memory)

    (y,) = case.run(scale, x, W)

    np.testing.assert_array_equal(y, X * W)
    if is_pinned:
        case.backend.unpin(memory)


def test_results_come_in_order(case: Case) -> None:
    """Several results keep their order."""
    kinds = ["tensor<4x3xf32>", "tensor<3xf32>"]

    x, w = case.run(case.build("both", kinds, kinds), X, W)

    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(w, W)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_passes_exactly(case: Case, dtype: DType) -> None:
    """Bits go to the device and back unchanged, 64-bit ones too."""
    kind = str(TensorType(dtype, (2, 3)))
    if dtype.numpy.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        x = np.array([[0, 1, 2], [limits.min, limits.max, 3]], dtype.numpy)
    else:
        x = np.array([[0, 1, 2], [0.5, 1, 0]], np.float32).astype(dtype.numpy)

    (y,) = case.run(case.build("identity", [kind], [kind]), x)

    assert y.dtype == dtype.numpy
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)], ids=str)
def test_scalars_and_empty_tensors_pass(case: Case, shape: tuple[int, ...]) -> None:
    """Rank 0 and extent 0 are tensors like others."""
    kind = str(TensorType(F32, shape))

    (y,) = case.run(case.build("identity", [kind], [kind]), np.ones(shape, np.float32))

    assert y.shape == shape


@pytest.mark.parametrize("shape", [(4, 3), (64, 1024)], ids=["small", "large"])
def test_read_only_array_is_taken(case: Case, shape: tuple[int, ...]) -> None:
    """A view of a received message goes to the device as it is."""
    kind = str(TensorType(F32, shape))
    received = _aligned(np.ones(shape, np.float32))
    received.flags.writeable = False

    (y,) = case.run(case.build("identity", [kind], [kind]), received)

    np.testing.assert_array_equal(y, received)


def test_result_never_aliases_an_argument(case: Case) -> None:
    """Staging memory may be written again after a dispatch without changing its answers."""
    kind = "tensor<4x3xf32>"
    executable = case.build("identity", [kind], [kind])
    staged = _aligned(X)

    (y,) = case.run(executable, staged)
    staged[...] = -1

    np.testing.assert_array_equal(y, X)


def test_host_array_outlives_its_buffer(case: Case, scale: Executable) -> None:
    """Answers are encoded after the dispatch has freed its buffers and others have run."""
    answers = [case.run(scale, _aligned(factor * X), W)[0] for factor in range(20)]

    for factor, y in enumerate(answers):
        np.testing.assert_array_equal(y, factor * X * W)


def test_host_array_is_let_go_of_when_its_buffer_is_freed(case: Case, scale: Executable) -> None:
    """Memory of a large request is free for the next one, also when nothing runs meanwhile."""
    staged = _aligned(X)
    is_alive = weakref.ref(staged)

    case.run(scale, staged, W)
    del staged
    end_s = time.monotonic() + 10
    while is_alive() and case.backend.runs_ahead:  # where another thread lets go of it
        assert time.monotonic() < end_s, "the device keeps what was freed"
        case.backend.free([])

    assert is_alive() is None


def test_freeing_twice_is_ignored(case: Case) -> None:
    """Giving a buffer back again does nothing."""
    buffers = case.backend.to_device([X])

    case.backend.free(buffers)
    case.backend.free(buffers)


@pytest.mark.parametrize(
    "arguments", [[X], [X, W, W], [X[:3].copy(), W], [X.astype(np.float64), W]],
    ids=["too few", "too many", "wrong shape", "wrong dtype"],
)  # fmt: skip
def test_wrong_arguments_fail_and_the_device_goes_on(
    case: Case, scale: Executable, arguments: list[Array]
) -> None:
    """A bad call is reported and harms no later one."""
    buffers = case.backend.to_device(arguments)

    with pytest.raises(BackendFailed):
        case.backend.to_host(case.backend.execute(scale, buffers))
    case.backend.free(buffers)

    np.testing.assert_array_equal(case.run(scale, X, W)[0], X * W)


def test_freed_argument_is_refused(case: Case, scale: Executable) -> None:
    """Use after free is an error, not a wrong answer."""
    buffers = case.backend.to_device([X, W])
    case.backend.free(buffers)

    with pytest.raises(BackendFailed):
        case.backend.execute(scale, buffers)


def test_memory_is_reported_in_bytes_or_not_at_all(case: Case) -> None:
    """What the allocator says is plausible."""
    memory = case.backend.memory()

    assert memory is None or memory.in_use_bytes >= 0


def test_restored_executable_computes_the_same(case: Case) -> None:
    """What was serialised for a program serves as well as what was compiled."""
    kinds = ["tensor<2x3xf32>", "tensor<3xf32>"], ["tensor<2x3xf32>"]
    program = case.backend.read_program(case.write("scale", *kinds), "model.mlir")
    compiled = case.backend.compile(program, "m")
    payload = case.backend.serialise(compiled)
    assert payload is not None

    restored = case.backend.restore(payload, program, "m")

    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], np.float32)
    (expected,), (got,) = case.run(compiled, x, w), case.run(restored, x, w)
    np.testing.assert_array_equal(expected, got)
    assert compiled.signature == restored.signature


def test_executable_that_was_restored_can_be_written_down_again(case: Case) -> None:
    """A bundle that is redeployed after a restart takes its programs along, in a new directory."""
    kinds = ["tensor<2x3xf32>", "tensor<3xf32>"], ["tensor<2x3xf32>"]
    program = case.backend.read_program(case.write("scale", *kinds), "model.mlir")
    executable = case.backend.compile(program, "m")
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], np.float32)
    (expected,) = case.run(executable, x, w)

    for _ in range(3):
        payload = case.backend.serialise(executable)
        assert payload is not None
        executable = case.backend.restore(payload, program, "m")

        np.testing.assert_array_equal(expected, case.run(executable, x, w)[0])


def test_key_of_a_compiled_program_tells_programs_apart(case: Case) -> None:
    """The same program has the same key each time it is read; another type is another program."""

    def key(kind: str) -> str:
        artifact = case.write("identity", [kind], [kind])
        return case.backend.cache_key(case.backend.read_program(artifact, "model.mlir"))

    assert key("tensor<2xf32>") == key("tensor<2xf32>")
    assert len({key(f"tensor<{kind}>") for kind in ("2xf32", "3xf32", "2xi32", "2x1xf32")}) == 4
    assert set(key("tensor<2xf32>")) <= set("0123456789abcdef")


@pytest.mark.parametrize("payload", [b"", b"nonsense"])
def test_payload_that_cannot_be_restored_is_a_failure(case: Case, payload: bytes) -> None:
    """One of our own errors, whatever the library raises."""
    artifact = case.write("identity", ["tensor<2xf32>"], ["tensor<2xf32>"])
    program = case.backend.read_program(artifact, "model.mlir")

    with pytest.raises(BackendFailed):
        case.backend.restore(payload, program, "m")
