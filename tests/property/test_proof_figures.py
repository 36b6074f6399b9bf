"""The arithmetic of the proof, over all dtypes and arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.dtypes import DTYPES, F32, DType
from hloserve.core.tensors import Array
from hloserve.engine.programs.differences import (
    compare,
    epsilon,
    is_float,
    row_signal,
    signal_between,
)
from hloserve.export.proof.figures import default_tolerance, judge

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two arrays of one dtype and shape, floats with NaN and infinities among them."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(SHAPES)
    generator = np.random.default_rng(draw(SEEDS))
    return _array(dtype, shape, generator), _array(dtype, shape, generator)


def _array(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if not is_float(dtype.numpy):
        return generator.integers(0, 2, shape).astype(dtype.numpy)
    values = generator.standard_normal(shape)
    special = generator.choice([np.nan, np.inf, -np.inf], shape)
    with np.errstate(all="ignore"):  # f8_e4m3 has no infinity
        return np.where(generator.uniform(size=shape) < 0.1, special, values).astype(dtype.numpy)


@given(pairs())
def test_an_array_is_equal_to_itself(pair: tuple[Array, Array]) -> None:
    """No error, nothing misplaced, whatever the values; and it passes against any signal."""
    array, other = pair
    comparison = compare(array, array.copy())

    assert comparison.error == 0
    assert comparison.misplaced == 0
    proof, passes = judge("y", array, [comparison], signal_between(array, other), 0.0)
    assert passes
    assert proof.relative == 0


@given(pairs())
def test_errors_are_symmetric_but_for_the_scale(pair: tuple[Array, Array]) -> None:
    """Program and source can be exchanged."""
    ours, theirs = compare(*pair), compare(*pair[::-1])

    assert ours.error == theirs.error
    assert ours.misplaced == theirs.misplaced


@given(pairs())
def test_misplaced_specials_never_pass(pair: tuple[Array, Array]) -> None:
    """NaN against a number is wrong at any tolerance."""
    comparison = compare(*pair)
    _, passes = judge("y", pair[0], [comparison], 1e30, 1e30)

    assert passes == (comparison.misplaced == 0)


@given(SEEDS, st.floats(1e-6, 0.9), st.floats(1e-3, 1e3))
def test_the_limit_is_a_share_of_the_signal(seed: int, tolerance: float, size: float) -> None:
    """An error just below passes, one just above does not; a constant part changes nothing."""
    generator = np.random.default_rng(seed)
    first, second = generator.standard_normal((2, 20)) * size
    signal = signal_between(first, second)
    for share, expected in ((0.98, True), (1.02, False)):
        wrong = first.copy()
        wrong[3] += share * tolerance * signal
        for shift in (0.0, 100 * size):
            comparison = compare(first + shift, wrong + shift)
            proof, passes = judge("y", first, [comparison], signal, tolerance)

            assert passes is expected
            assert proof.is_proved is expected


@given(SEEDS, st.integers(2, 9))
def test_the_signal_of_rows_does_not_grow_with_their_number(seed: int, rows: int) -> None:
    """It lies among the signals of neighbouring rows, so that batch sizes compare."""
    output = np.random.default_rng(seed).standard_normal((5, rows)).astype(np.float32)
    between = [signal_between(output[:, i], output[:, i + 1]) for i in range(rows - 1)]

    assert min(between) <= row_signal(output, 1) <= max(between)


@given(SEEDS, st.integers(1, 200), st.integers(0, 200))
def test_integers_are_counted(seed: int, size: int, wrong: int) -> None:
    """The error is the share of elements that differ, however much they do."""
    want = np.random.default_rng(seed).integers(-100, 100, size)
    got = want.copy()
    got[:wrong] += 1000

    assert compare(want, got).error == pytest.approx(min(wrong, size) / size)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if is_float(d.numpy)], ids=str)
def test_the_last_bit_of_a_constant_may_differ(dtype: DType) -> None:
    """Without a signal, agreement to the last bits passes, and is not called proved."""
    want = np.ones(3, dtype.numpy)
    got = (want.astype(np.float64) * (1 + min(epsilon(dtype.numpy), 0.04))).astype(dtype.numpy)
    proof, passes = judge("y", want, [compare(want, got)], 0.0, 1e-3)

    assert passes
    assert not proof.is_proved


def test_tolerance_is_that_of_the_coarsest_type() -> None:
    """Types that are only stored, and integers, do not widen it."""
    out = np.zeros(1, np.float32)
    numpy = {d.token: d.numpy for d in DTYPES}

    assert default_tolerance(out, [F32.numpy, numpy["i64"]]) == 1e-3
    assert default_tolerance(out, [F32.numpy, numpy["f64"]]) == 1e-3
    assert default_tolerance(out, [F32.numpy, numpy["f16"]]) == 3e-2
    assert default_tolerance(out, [numpy["f8_e4m3"]]) == 2e-1
    assert default_tolerance(np.zeros(1), [numpy["f64"]]) == 1e-9
    assert default_tolerance(np.zeros(1, np.int64), [numpy["i64"]]) == 0
    assert default_tolerance(np.zeros(1, np.int64), [F32.numpy]) == 1e-3
