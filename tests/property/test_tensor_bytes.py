"""Raw tensor bytes: the round trip, and no shape gets past the checks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.dtypes import BOOL, DTYPES, DType
from hloserve.core.errors import BadRequest
from hloserve.wire.tensor_bytes import array_from_bytes, bytes_of

dtypes = st.sampled_from(DTYPES)
small_shapes = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@given(dtypes, small_shapes, st.data())
def test_round_trip_is_the_identity(
    dtype: DType, shape: tuple[int, ...], data: st.DataObject
) -> None:
    """Any bytes of the right length come back unchanged, for every dtype and shape."""
    size = math.prod(shape) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype is BOOL:
        raw = bytes(byte & 1 for byte in raw)

    array = array_from_bytes("x", dtype, shape, raw)

    assert shape == array.shape
    assert raw == bytes(bytes_of(array))


@given(dtypes, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70), st.binary(max_size=64))
def test_any_shape_is_refused_or_fits_its_bytes(
    dtype: DType, shape: list[int], data: bytes
) -> None:
    """Whatever shape a peer announces, the result is an array of exactly the bytes, or an error."""
    fits = all(extent >= 0 for extent in shape) and len(shape) <= 64
    if fits and math.prod(shape) * dtype.itemsize == len(data) > 0 and dtype is not BOOL:
        assert tuple(shape) == array_from_bytes("x", dtype, shape, data).shape
    elif len(data) > 0 and dtype is not BOOL:
        with pytest.raises(BadRequest, match="input 'x'"):
            array_from_bytes("x", dtype, shape, data)


@given(small_shapes, st.permutations(range(5)))
def test_memory_layout_does_not_show(shape: tuple[int, ...], order: list[int]) -> None:
    """A transposed array is written like its contiguous copy."""
    array = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    turned = array.transpose([axis for axis in order if axis < len(shape)])

    assert np.ascontiguousarray(turned).tobytes() == bytes(bytes_of(turned))


@pytest.mark.parametrize("extra", [-1, 1])
@given(dtypes, small_shapes)
def test_a_length_off_by_one_is_refused(extra: int, dtype: DType, shape: tuple[int, ...]) -> None:
    """One byte more or less than the shape needs is never accepted."""
    size = math.prod(shape) * dtype.itemsize + extra
    if size >= 0:
        with pytest.raises(BadRequest):
            array_from_bytes("x", dtype, shape, bytes(size))
