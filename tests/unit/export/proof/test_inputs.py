"""Drawing inputs that fit the domain of a model."""

import ml_dtypes
import numpy as np
import pytest

from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.tensors import Array
from hloserve.engine.programs.differences import is_float
from hloserve.export.proof.inputs import draw_like, is_fixed, nudge


def draw(example: Array, shape: tuple[int, ...] = (500,)) -> Array:
    """Draw with a generator of a fixed seed."""
    return draw_like(example, shape, np.random.default_rng(3))


def test_floats_stay_in_the_range_of_the_example_and_differ() -> None:
    """Pixels of 0 to 1 give pixels of 0 to 1, and every one another value."""
    drawn = draw(np.linspace(0, 1, 50, dtype=np.float32))

    assert drawn.dtype == np.float32
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert len(np.unique(drawn)) == 500


def test_floats_follow_the_distribution_of_the_example() -> None:
    """Most values of a skewed example are small, and so are most that are drawn."""
    drawn = draw(np.geomspace(1e-3, 1e3, 1001))

    assert 0.3 < np.median(drawn) < 3


@pytest.mark.parametrize(("constant", "low", "high"), [(4.0, 2, 6), (-4.0, -6, -2)])
def test_a_constant_float_keeps_its_sign(constant: float, low: float, high: float) -> None:
    """A placeholder of ones is taken for an order of magnitude."""
    drawn = draw(np.full(8, constant, np.float32))

    assert low <= drawn.min() < drawn.max() <= high


def test_zeros_give_standard_normal_values() -> None:
    """A placeholder of zeros says nothing."""
    drawn = draw(np.zeros((1, 3), np.float32), (2000,))

    assert abs(drawn.mean()) < 0.1
    assert 0.9 < drawn.std() < 1.1


def test_a_mask_of_few_values_gives_those_values() -> None:
    """A value between 0 and -inf would be outside of the domain."""
    mask = np.array([0, -np.inf] * 8, np.float32)

    assert set(draw(mask).tolist()) == {0.0, -np.inf}


def test_integers_and_bools_include_both_ends() -> None:
    """The largest token id of the example may occur, and none beyond it."""
    assert set(draw(np.array([2, 4], np.int8)).tolist()) == {2, 3, 4}
    assert set(draw(np.array([False, True])).tolist()) == {False, True}
    assert draw(np.array([0, 2**64 - 1], np.uint64)).dtype == np.uint64


def test_what_is_the_same_everywhere_stays_when_it_is_not_a_float() -> None:
    """A mask of ones, or a step of 7, may be the only value that the model takes."""
    assert draw(np.array(7)).tolist() == [7] * 500
    assert is_fixed(np.ones(3, np.int64))
    assert is_fixed(np.ones(3, np.bool_))
    assert not is_fixed(np.array([1, 2]))
    assert not is_fixed(np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_and_shape_can_be_drawn(dtype: DType, shape: tuple[int, ...]) -> None:
    """What comes out has the dtype of the example and the shape that was asked for."""
    drawn = draw(np.array([0, 1], np.float32).astype(dtype.numpy), shape)

    assert drawn.shape == shape
    assert drawn.dtype == dtype.numpy
    assert drawn.flags.c_contiguous
    assert draw(np.zeros((0,), dtype.numpy), shape).shape == shape


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_nudge_is_one_step_of_the_type(dtype: type[np.generic]) -> None:
    """Zeros and other kinds stay."""
    array = np.array([0, 1, -2], dtype)

    assert (nudge(array) != array).tolist() == [False, True, True]
    assert np.allclose(nudge(array).astype(float), array.astype(float), rtol=0.01)
    assert is_float(array.dtype)
    assert nudge(np.array([1])).tolist() == [1]
