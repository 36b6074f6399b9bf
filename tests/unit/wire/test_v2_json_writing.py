"""Values of arrays as JSON text: the fewest digits, every layout, and what is no number."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloserve.core.dtypes import DTYPES
from hloserve.core.tensors import Array
from hloserve.wire.v2_json_writing import NonFinite, encode_message, json_from_array

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def text_of(array: Array, non_finite: NonFinite = "null") -> str:
    """The data member as text."""
    return encode_message({"data": json_from_array("y", array, non_finite)}).decode()[8:-1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_read_back_as_they_were(dtype: Any) -> None:
    """The text of a float names exactly that float."""
    rng = np.random.default_rng(7)
    array = (rng.standard_normal(1000) * 10.0 ** rng.integers(-4, 4, 1000)).astype(dtype)

    again = np.array(json.loads(text_of(array))).astype(dtype)

    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_each_16_bit_float_reads_back(dtype: Any) -> None:
    """All of them, the subnormal and the largest too."""
    array = np.arange(1 << 16).astype(np.uint16).view(dtype)
    array = array[np.isfinite(array.astype(np.float32))]

    again = np.array(json.loads(text_of(array))).astype(dtype)

    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (np.float16, 0.1, "0.099975586"),
        (np.float16, 65504, "65504.0"),
        (ml_dtypes.bfloat16, 0.1, "0.100097656"),
        (ml_dtypes.bfloat16, 3.140625, "3.140625"),
        (np.float32, 0.1, "0.1"),
        (np.float32, 0.9998142123222351, "0.9998142"),
        (np.float32, -0.0, "-0.0"),
        (np.float64, 0.1, "0.1"),
        (np.float64, 0.9998142123222351, "0.9998142123222351"),
    ],
)
def test_floats_have_no_more_digits_than_their_type_holds(
    dtype: Any, value: float, text: str
) -> None:
    """Digits that only a wider type could tell apart are left out."""
    assert text_of(np.array([value], dtype)) == f"[{text}]"
    assert text_of(np.array([value, np.nan], dtype), "string") == f'[{text},"NaN"]'


@pytest.mark.parametrize("dtype", [d.numpy for d in DTYPES if d.kserve])
def test_arrays_of_any_layout_are_written_row_major(dtype: Any) -> None:
    """Views and foreign byte orders come out in the order of their indices."""
    array = np.array([[0, 1, 0], [1, 0, 1]]).astype(dtype)

    assert json.loads(text_of(array.T)) == [0, 1, 1, 0, 0, 1]
    assert json.loads(text_of(array[0, ::2])) == [0, 0]
    assert json.loads(text_of(array[1, 1].reshape(()))) == [0]
    assert text_of(array[:0]) == "[]"


def test_foreign_byte_order_is_swapped() -> None:
    """The values count, not their bytes."""
    array = np.arange(6, dtype=">i4").reshape(2, 3)

    assert text_of(array[:, ::-1]) == "[2,1,0,5,4,3]"
    assert text_of(np.array([0.1], ">f4")) == "[0.1]"


def test_integers_and_bools_are_exact() -> None:
    """No integer passes through a double, and bools are JSON's own."""
    assert text_of(np.array([2**64 - 1], np.uint64)) == "[18446744073709551615]"
    assert text_of(np.array([-(2**63)], np.int64)) == "[-9223372036854775808]"
    assert text_of(np.array([True, False]), "string") == "[true,false]"


@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_values_are_null_or_strings(dtype: Any) -> None:
    """Null leaves no invalid JSON; strings keep which of the three it was."""
    array = np.array([1.0, np.nan, np.inf, -np.inf], dtype)

    assert text_of(array) == "[1.0,null,null,null]"
    assert text_of(array, "string") == '[1.0,"NaN","Infinity","-Infinity"]'
    assert text_of(array[:1], "string") == "[1.0]"
