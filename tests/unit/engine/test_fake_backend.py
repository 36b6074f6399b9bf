"""What the fake can be told, beside what every backend does (`tests/contract/test_backend.py`)."""

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hloserve.core.errors import BackendFailed, DeviceMemoryFull, ProgramProblem
from hloserve.engine.assembly import StagingArea
from hloserve.engine.backend import Executable
from hloserve.engine.fake_backend import FakeBackend, FakeBuffer, Gate


@pytest.fixture
def ahead() -> Iterator[FakeBackend]:
    """A device that executes on a thread of its own."""
    backend = FakeBackend(runs_ahead=True)
    yield backend
    backend.gate.open()
    backend.close()


def _compile(backend: FakeBackend, function: str = "identity") -> Executable:
    kinds = ["tensor<3xf32>"]
    text = json.dumps({"function": function, "inputs": kinds, "outputs": kinds})
    return backend.compile(backend.read_program(text.encode(), "model.mlir"), "m")


def test_gate_holds_until_it_opens() -> None:
    """A closed gate lets nobody through, and says who has arrived."""
    gate = Gate()
    gate.close()
    thread = threading.Thread(target=gate.pass_through)
    thread.start()

    gate.wait_for_arrivals(1)
    assert thread.is_alive()

    gate.open()
    thread.join(10)
    assert not thread.is_alive()


def test_gate_reports_who_did_not_come() -> None:
    """Waiting for an arrival is bounded."""
    with pytest.raises(TimeoutError, match="0 of 1"):
        Gate().wait_for_arrivals(1, timeout_s=0)


@pytest.mark.parametrize("limit_bytes", [None, 100])
def test_memory_is_reported_only_when_it_is_limited(limit_bytes: int | None) -> None:
    """Without a limit the fake is a device that reports nothing, like a CPU."""
    backend = FakeBackend(limit_bytes=limit_bytes)
    buffers = backend.to_device([np.zeros(10, np.float32)])
    backend.free(buffers)

    memory = backend.memory()

    if limit_bytes is None:
        assert memory is None
    else:
        assert memory is not None
        assert (memory.in_use_bytes, memory.peak_in_use_bytes, memory.limit_bytes) == (0, 40, 100)


def test_device_refuses_what_does_not_fit() -> None:
    """Above its limit the device is full, and says by how much."""
    backend = FakeBackend(limit_bytes=100)
    backend.to_device([np.zeros(20, np.float32)])

    with pytest.raises(DeviceMemoryFull) as caught:
        backend.to_device([np.zeros(6, np.float32)])

    assert (caught.value.needed_bytes, caught.value.free_bytes) == (24, 20)


def test_aligned_array_is_used_in_place() -> None:
    """Like the CPU device, the fake sees what is written to an aligned array too early."""
    staging = StagingArea()
    array = staging.take((3,), np.dtype(np.float32))
    array[...] = 1
    backend = FakeBackend()

    (buffer,) = backend.to_device([array])
    array[...] = 2

    assert backend.to_host([buffer])[0].tolist() == [2, 2, 2]


def test_freed_buffer_cannot_be_used() -> None:
    """Use after free is reported, not computed."""
    backend = FakeBackend()
    buffers = backend.to_device([np.zeros(3, np.float32)])
    backend.free(buffers)

    assert isinstance(buffers[0], FakeBuffer)
    assert buffers[0].is_freed
    with pytest.raises(BackendFailed, match="freed"):
        backend.to_host(buffers)


def test_unknown_function_is_refused() -> None:
    """A program may name only functions that the fake was given."""
    text = json.dumps({"function": "magic", "inputs": [], "outputs": []})

    with pytest.raises(ProgramProblem, match="magic"):
        FakeBackend().read_program(text.encode(), "model.b1.mlir")


def test_function_can_be_made_to_fail() -> None:
    """`boom` fails in every execution."""
    backend = FakeBackend()
    text = json.dumps({"function": "boom", "inputs": [], "outputs": []})
    executable = backend.compile(backend.read_program(text.encode(), "model.mlir"), "m")

    with pytest.raises(BackendFailed, match="boom"):
        backend.execute(executable, [])
    assert backend.compiled == ["m"]


def test_gate_lets_as_many_through_as_it_is_told() -> None:
    """Time goes on step by step."""
    gate = Gate()
    gate.close()
    gate.let_through(2)
    threads = [threading.Thread(target=gate.pass_through) for _ in range(3)]
    for thread in threads:
        thread.start()

    gate.wait_for_arrivals(3)
    gate.let_through()

    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_device_that_runs_ahead_returns_before_the_execution_has_ended(ahead: FakeBackend) -> None:
    """Transfers and further executions are taken meanwhile, and run in order."""
    executable = _compile(ahead)
    ahead.gate.close()

    first = ahead.execute(executable, ahead.to_device([np.full(3, 1, np.float32)]))
    ahead.gate.wait_for_arrivals(1)
    second = ahead.execute(executable, ahead.to_device([np.full(3, 2, np.float32)]))
    ahead.gate.open()

    assert [ahead.to_host(r)[0].tolist() for r in (first, second)] == [[1, 1, 1], [2, 2, 2]]
    assert ahead.most_in_flight == 2


def test_device_that_runs_ahead_reads_its_arguments_when_it_executes(ahead: FakeBackend) -> None:
    """What is written to an aligned array before then shows in the results."""
    staged = StagingArea().take((3,), np.dtype(np.float32))
    staged[...] = 1
    ahead.gate.close()
    executable = _compile(ahead, "first")
    results = ahead.execute(executable, ahead.to_device([staged]))

    staged[...] = 2
    ahead.gate.open()

    assert ahead.to_host(results)[0].tolist() == [2, 2, 2]


def test_failure_of_a_device_that_runs_ahead_is_told_to_who_fetches(ahead: FakeBackend) -> None:
    """And to who fetches what was computed from it; the device goes on."""
    failed = ahead.execute(_compile(ahead, "boom"), ahead.to_device([np.ones(3, np.float32)]))
    heirs = ahead.execute(_compile(ahead), failed)

    for results in (failed, heirs):
        with pytest.raises(BackendFailed, match="boom"):
            ahead.to_host(results)
    fine = ahead.execute(_compile(ahead), ahead.to_device([np.ones(3, np.float32)]))
    assert ahead.to_host(fine)[0].tolist() == [1, 1, 1]


def test_results_that_were_freed_while_they_were_computed_take_no_memory(
    ahead: FakeBackend,
) -> None:
    """Giving up a run gives back what it makes later."""
    ahead.gate.close()
    arguments = ahead.to_device([np.ones(3, np.float32)])
    ahead.free(ahead.execute(_compile(ahead), arguments))
    ahead.gate.open()
    ahead.close()

    assert ahead.in_use_bytes == 12
    ahead.free(arguments)
    assert ahead.in_use_bytes == 0


def test_scattered_memory_holds_no_large_array_until_its_neighbours_are_freed() -> None:
    """Contiguous memory fragments: enough is free, and it is of no use."""
    backend = FakeBackend(limit_bytes=48, is_contiguous=True)
    blocks = [backend.to_device([np.zeros(3, np.float32)]) for _ in range(4)]
    backend.free([*blocks[0], *blocks[2]])
    large = np.zeros(6, np.float32)

    with pytest.raises(DeviceMemoryFull):
        backend.to_device([large])
    assert (backend.in_use_bytes, backend.largest_free_bytes) == (24, 12)
    backend.free(blocks[1])
    backend.to_device([large])
    assert (backend.in_use_bytes, backend.largest_free_bytes) == (36, 12)


def test_freed_room_is_used_again_by_what_fits() -> None:
    """The first room that is large enough is taken."""
    backend = FakeBackend(limit_bytes=48, is_contiguous=True)
    blocks = [backend.to_device([np.zeros(4, np.float32)]) for _ in range(3)]
    backend.free(blocks[0])

    backend.to_device([np.zeros(2, np.float32)])
    backend.to_device([np.zeros(2, np.float32)])

    assert (backend.in_use_bytes, backend.largest_free_bytes) == (48, 0)


def test_lost_device_refuses_everything() -> None:
    """Transfers and executions fail from then on."""
    backend = FakeBackend()
    executable, arguments = _compile(backend), backend.to_device([np.ones(3, np.float32)])

    backend.is_lost = True

    with pytest.raises(BackendFailed, match="lost"):
        backend.to_device([np.ones(3, np.float32)])
    with pytest.raises(BackendFailed, match="lost"):
        backend.execute(executable, arguments)
