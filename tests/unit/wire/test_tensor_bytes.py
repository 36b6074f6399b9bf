"""Raw tensor bytes: what is accepted, what is refused, and that nothing is copied."""

import numpy as np
import pytest

from hloserve.core.dtypes import BOOL, DTYPES, F32, I64, U8, DType, by_token
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.wire.tensor_bytes import array_from_bytes, bytes_of, check_shape, known_dtype


def test_bytes_become_an_array_without_a_copy() -> None:
    """The array is a read-only view of the received bytes."""
    data = np.arange(6, dtype=np.float32).tobytes()

    array = array_from_bytes("x", F32, (2, 3), data)

    assert array.shape == (2, 3)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.writeable


def test_arrays_over_mutable_memory_are_read_only_too() -> None:
    """A view of a bytearray cannot be written through either."""
    array = array_from_bytes("x", U8, (3,), memoryview(bytearray(b"abc")))

    assert not array.flags.writeable
    assert array.tobytes() == b"abc"


def test_row_major_order_is_kept_for_every_element() -> None:
    """Element (i,j,k) of the wire's row-major bytes is element [i,j,k] of the array."""
    data = b"".join(
        np.float32(100 * i + 10 * j + k).tobytes()
        for i in range(2)
        for j in range(3)
        for k in range(4)
    )

    array = array_from_bytes("x", F32, (2, 3, 4), data)

    assert all(
        100 * i + 10 * j + k == array[i, j, k] for i in range(2) for j in range(3) for k in range(4)
    )


def test_rank_zero_is_one_element() -> None:
    """An empty shape means a scalar, not an empty tensor."""
    array = array_from_bytes("x", I64, (), (2**40).to_bytes(8, "little"))

    assert array.shape == ()
    assert array == 2**40


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 2)])
def test_zero_extents_give_empty_arrays(shape: tuple[int, ...]) -> None:
    """A tensor without elements is valid and keeps its shape."""
    array = array_from_bytes("x", F32, shape, b"")

    assert shape == array.shape
    assert array.size == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_round_trips(dtype: DType) -> None:
    """Bytes to array and back is the identity, FP8 and bf16 included."""
    data = bytes(k % 2 for k in range(4 * dtype.itemsize))

    array = array_from_bytes("x", dtype, (2, 2), data)

    assert dtype.numpy == array.dtype
    assert data == bytes(bytes_of(array))


@pytest.mark.parametrize(
    "shape",
    [
        (2**30, 2**30),
        (2**62, 2**62),
        (0, 2**62, 2**62),
        (2**62, 2**62, 0),
        (2**63,),
        (-4,),
        (-1, -4),
        (2**31, -1),
        (1,) * 65,
        (1,) * 100_000,
    ],
    ids=lambda shape: f"rank{len(shape)}-{shape[0]}",
)
def test_hostile_shapes_are_refused_before_anything_is_allocated(shape: tuple[int, ...]) -> None:
    """Huge, overflowing, negative and very long shapes are errors that name the input."""
    with pytest.raises(BadRequest, match="input 'x'"):
        array_from_bytes("x", F32, shape, b"1234")


@pytest.mark.parametrize("extent", [True, 1.0, "1", None, np.int64(1)])
def test_extents_that_are_not_integers_are_refused(extent: object) -> None:
    """A shape holds integers; 1.0 and true are not taken for 1."""
    with pytest.raises(BadRequest, match="must be an integer"):
        check_shape("x", F32, [extent])  # type: ignore[list-item]  # what JSON may bring


def test_largest_countable_tensor_is_a_shape_still() -> None:
    """The limit is int64 bytes exactly; the shape check itself allocates nothing."""
    assert check_shape("x", U8, (2**63 - 1,)) == 2**63 - 1
    with pytest.raises(BadRequest, match="larger than"):
        check_shape("x", U8, (2**62, 2))


@pytest.mark.parametrize("data", [b"", b"1234567", b"123456789"])
def test_wrong_byte_lengths_name_the_input_and_both_counts(data: bytes) -> None:
    """A byte length that does not fit the shape is refused with both numbers."""
    with pytest.raises(TensorMismatch) as caught:
        array_from_bytes("image", F32, (1, 2), data)

    assert (8, len(data)) == (caught.value.expected, caught.value.got)
    assert (
        f"input 'image': byte length of a FP32 tensor of shape [1,2] is {len(data)}, expected 8"
        == str(caught.value)
    )


def test_role_is_part_of_the_message() -> None:
    """The client checks outputs with the same rules and says so."""
    with pytest.raises(TensorMismatch, match="output 'y'"):
        array_from_bytes("y", F32, (1,), b"", role="output")


def test_bool_bytes_other_than_0_and_1_are_refused() -> None:
    """A bool byte of 2 is refused with its place: compiled code may read any bit of it."""
    with pytest.raises(BadRequest, match=r"input 'm': BOOL element 3 is the byte 2"):
        array_from_bytes("m", BOOL, (2, 2), b"\0\1\0\2")


def test_empty_bools_are_fine() -> None:
    """An empty bool tensor has no byte to check."""
    assert array_from_bytes("m", BOOL, (0,), b"").size == 0


def test_large_contiguous_arrays_are_not_copied_out() -> None:
    """A large C-contiguous array is handed out as a view of its own memory."""
    array = np.zeros((256, 256), np.float32)

    data = bytes_of(array)

    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert array.nbytes == len(data)


def test_large_bf16_arrays_are_not_copied_out() -> None:
    """Types without a buffer format of their own are viewed as bytes."""
    array = np.ones((256, 256), by_token("bf16").numpy)

    data = bytes_of(array)

    assert isinstance(data, memoryview)
    assert array.tobytes() == bytes(data)


@pytest.mark.parametrize("extent", [3, 300])
def test_transposed_and_strided_arrays_are_written_row_major(extent: int) -> None:
    """What is sent is the array's row-major content, whatever its memory layout."""
    array = np.arange(extent * extent, dtype=np.int32).reshape(extent, extent)

    assert np.ascontiguousarray(array.T).tobytes() == bytes(bytes_of(array.T))
    assert np.ascontiguousarray(array[::2, 1:]).tobytes() == bytes(bytes_of(array[::2, 1:]))


@pytest.mark.parametrize("count", [3, 30_000])
def test_big_endian_arrays_are_swapped(count: int) -> None:
    """The wire is little-endian, whatever the array's byte order."""
    array = np.arange(count, dtype=">i4")

    assert np.arange(count, dtype="<i4").tobytes() == bytes(bytes_of(array))


def test_scalars_and_empty_arrays_are_written() -> None:
    """Rank 0 is one element, zero rows are zero bytes."""
    assert np.float64(2.5).tobytes() == bytes(bytes_of(np.array(2.5)))
    assert bytes(bytes_of(np.zeros((0, 4), np.float32))) == b""


@pytest.mark.parametrize(
    ("datatype", "says"),
    [
        ("FP31", "output 'y': datatype 'FP31' is not supported; the datatypes are FP16, FP32"),
        ("A" * 999, "output 'y': datatype 'A{64}[.]{3}' is not supported"),
    ],
)
def test_unknown_datatypes_are_refused_with_those_that_are_known(datatype: str, says: str) -> None:
    """The message names the tensor and what it could be."""
    with pytest.raises(BadRequest, match=says):
        known_dtype("y", datatype, "output")
