"""Memory for copies: when it is used again, and that it never is too early."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloserve.core.reused_memory import ReusedMemory

MIB = 2**20


@pytest.mark.parametrize("nbytes", [1, 4096, MIB, 3 * MIB + 1])
def test_memory_is_aligned_and_of_the_size_asked_for(nbytes: int) -> None:
    """Whatever the size."""
    memory = ReusedMemory().take(nbytes)

    assert (nbytes, 0) == (memory.nbytes, memory.ctypes.data % 64)


@pytest.mark.parametrize(
    "use",
    [
        lambda memory: memory,
        lambda memory: memory[5:9],
        lambda memory: memory.data,
        lambda memory: memoryview(memory)[3:4],
        lambda memory: np.ndarray((2, 2), np.float32, memory.data),
        lambda memory: np.ndarray((2, 2), np.float32, memory.data)[1:].T.reshape(-1),
        lambda memory: np.frombuffer(memory, np.int8)[7:],
        lambda memory: [memory.view(np.int16)],
    ],
)
def test_memory_is_used_again_once_nothing_refers_to_it(use: Callable[[Any], Any]) -> None:
    """A view of a view of it is enough to keep it."""
    buffers = ReusedMemory()
    memory = buffers.take(2 * MIB)
    address = memory.ctypes.data
    kept = use(memory)
    del memory

    assert address != buffers.take(2 * MIB).ctypes.data
    del kept
    gc.collect()
    assert address == buffers.take(2 * MIB).ctypes.data


def test_memory_of_another_size_is_not_wasted() -> None:
    """A copy takes memory of at most twice its size; and what is kept has a limit."""
    buffers = ReusedMemory(8 * MIB)
    large = buffers.take(4 * MIB).ctypes.data

    assert large == buffers.take(3 * MIB).ctypes.data
    assert large != buffers.take(MIB).ctypes.data
    taken = [buffers.take(3 * MIB) for _ in range(4)]

    assert 4 == len({memory.ctypes.data for memory in taken})
    assert buffers.kept_bytes <= 8 * MIB
    assert 9 * MIB == buffers.take(9 * MIB).nbytes
    assert buffers.kept_bytes <= 8 * MIB
