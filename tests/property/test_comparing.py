"""Comparing arrays, against NumPy's own functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.tensors import Array
from hloserve.export.comparison.comparing import Tolerances, compare_arrays

VALUES = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1.0, 1.001, np.nan, np.inf, -np.inf, 1e38, -1e38])
)
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=6)
LIMITS = st.sampled_from([0.0, 1e-6, 1e-3, 0.5])


def _sides(rows: list[tuple[float, float]]) -> tuple[Array, Array]:
    table = np.array(rows, np.float32).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(ROWS, LIMITS, LIMITS)
def test_element_wise_is_allclose(
    rows: list[tuple[float, float]], rtol: float, atol: float
) -> None:
    """It passes exactly when `numpy.allclose` does, in float64, with NaN equal to NaN."""
    got, want = _sides(rows)
    wide = got.astype(np.float64), want.astype(np.float64)
    expected = np.allclose(*wide, rtol=rtol, atol=atol, equal_nan=True)
    result = compare_arrays("y", got, want, Tolerances(rtol, atol))

    assert result.passed == expected
    assert (result.beyond == 0) == expected


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=6), LIMITS)
def test_norm_wise_is_the_norm_of_the_whole(rows: list[tuple[float, float]], rtol: float) -> None:
    """The figure is the norm of the difference over the larger norm."""
    table = np.array(rows, np.float64).reshape(-1, 2)
    got, want = table[:, 0], table[:, 1]
    delta = float(np.linalg.norm(got - want))
    scale = max(float(np.linalg.norm(got)), float(np.linalg.norm(want)))
    result = compare_arrays("y", got, want, Tolerances(rtol, 1e-4, norm_wise=True))

    assert result.passed == (delta <= max(1e-4, rtol * scale))
    if scale:
        assert result.norm_error == pytest.approx(delta / scale)


@given(ROWS)
def test_an_array_passes_against_itself(rows: list[tuple[float, float]]) -> None:
    """Without any tolerance, by either rule."""
    got, _ = _sides(rows)
    for norm_wise in (False, True):
        result = compare_arrays("y", got, got.copy(), Tolerances(0, 0, norm_wise))

        assert result.passed
        assert result.error == 0
