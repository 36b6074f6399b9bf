"""Weights in host memory: aligned, read-only, straight from the file."""

from pathlib import Path

import numpy as np
import pytest

from hloserve.bundle import IOSpec, write_bundle
from hloserve.bundle.weights import WeightsFile
from hloserve.core.dtypes import BOOL, DTYPES, F32, U8, DType
from hloserve.core.errors import WeightsProblem
from hloserve.core.tensors import Array
from hloserve.engine.arena import HostArena, load_weights
from hloserve.engine.backend import ALIGNMENT_BYTES


def _write(root: Path, weights: dict[str, Array], layout: str = "xla") -> Path:
    bundle = write_bundle(
        root / "m", "m", [IOSpec("x", "f32", (1,))], [], {0: "module {}"}, weights,
        layout=layout,  # type: ignore[arg-type]  # a literal
    )  # fmt: skip
    return bundle / "weights.safetensors"


def _load(path: Path) -> list[Array]:
    with WeightsFile.open(path) as weights:
        arena = HostArena(HostArena.needed_bytes(tensor.nbytes for tensor in weights.arguments))
        return load_weights(weights, arena)


def test_arrays_are_aligned_and_do_not_overlap() -> None:
    """Odd sizes leave gaps, so that each array starts at a multiple of 64."""
    sizes = [1, 64, 65, 0, 7]
    arena = HostArena(HostArena.needed_bytes(sizes))
    arrays = [arena.take(U8, (size,)) for size in sizes]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert not array.any()
        array[...] = number + 1
    assert [array.tolist() for array in arrays] == [[n + 1] * size for n, size in enumerate(sizes)]


def test_full_arena_refuses_more() -> None:
    """An arena never hands the same bytes out twice."""
    arena = HostArena(64)
    arena.take(F32, (16,))
    with pytest.raises(MemoryError, match="arena of 64 bytes has no room for 4 more"):
        arena.take(F32, ())


def test_empty_arena_is_legal() -> None:
    """A model without weights needs no special case."""
    assert HostArena(0).take(F32, (0, 3)).shape == (0, 3)


def test_large_arena_is_aligned_too() -> None:
    """Huge pages change where the block starts, not what it promises."""
    arena = HostArena(16 << 20)
    array = arena.take(U8, (16 << 20,))
    assert array.ctypes.data % ALIGNMENT_BYTES == 0
    array[[0, -1]] = 1


@pytest.mark.parametrize("layout", ["xla", "legacy"])
def test_both_layouts_give_identical_arguments(tmp_path: Path, layout: str) -> None:
    """Program order in memory, whatever the file holds."""
    weights: dict[str, Array] = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(2**40, np.int64),
        "empty": np.zeros((0, 4), np.float16),
        "cube": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    }
    arrays = _load(_write(tmp_path, weights, layout))
    for array, expected in zip(arrays, weights.values(), strict=True):
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(array, expected)
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert not array.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_bit_for_bit(tmp_path: Path, dtype: DType) -> None:
    """NaN payloads and float8 included."""
    bits = np.arange(6 * dtype.itemsize, dtype=np.uint8) % (2 if dtype is BOOL else 251)
    expected = bits.view(dtype.numpy).reshape(2, 3)
    (array,) = _load(_write(tmp_path, {"w": expected}))
    assert array.dtype == dtype.numpy
    assert array.tobytes() == expected.tobytes()


def test_file_that_shrank_is_reported(tmp_path: Path) -> None:
    """A file replaced in place while it is read is an error, not garbage."""
    path = _write(tmp_path, {"w": np.ones(1000, np.float32)})
    with WeightsFile.open(path) as weights:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 8)
        with pytest.raises(WeightsProblem, match="became shorter"):
            load_weights(weights, HostArena(4096))


def test_arrays_keep_their_memory_alive() -> None:
    """Dropping the arena does not pull the memory from under its arrays."""
    array = HostArena(64).take(F32, (16,))
    array[...] = 5
    HostArena(1 << 20).take(U8, (1 << 20,))[...] = 1
    assert (array == 5).all()
