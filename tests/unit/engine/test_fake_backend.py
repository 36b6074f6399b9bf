"""What the fake can be told, beside what every backend does (`tests/contract/test_backend.py`)."""

import json
import threading

import numpy as np
import pytest

from hloserve.core.errors import BackendFailed, DeviceMemoryFull, ProgramProblem
from hloserve.engine.assembly import StagingArea
from hloserve.engine.fake_backend import FakeBackend, FakeBuffer, Gate


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
