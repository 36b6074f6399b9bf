"""The highest classes of an output, as Triton writes them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.engine_models import spec

from hloserve.core.dtypes import BYTES, F32
from hloserve.core.errors import BadRequest
from hloserve.core.tensors import TensorSpec
from hloserve.server.classification import check_classes, classify_outputs, is_large

_LOGITS = spec("y", "nk", F32, k=3)
_SCORES = np.array([[1, 3, 2], [5, 5, 4]], np.float32)


def classify(array: Any, count: int, of: TensorSpec = _LOGITS, *labels: bytes) -> Any:
    """The classes of one output."""
    answer = classify_outputs([of], {"y": array}, {"y": count}, {"y": labels} if labels else {})
    return answer["y"].tolist()


def test_the_highest_come_first_and_equals_by_index() -> None:
    """Six decimals for floats; rows stay rows."""
    assert [[b"3.000000:1", b"2.000000:2"], [b"5.000000:0", b"5.000000:1"]] == classify(_SCORES, 2)


def test_labels_are_appended_where_there_are_some() -> None:
    """An empty label and a missing one add nothing."""
    got = classify(_SCORES[:1], 3, _LOGITS, b"cat", b"")

    assert [[b"3.000000:1", b"2.000000:2", b"1.000000:0:cat"]] == got


def test_no_more_classes_than_there_are() -> None:
    """And none where there are none."""
    assert [3, 3] == [len(row) for row in classify(_SCORES, 1000)]
    assert [[], []] == classify(np.zeros((2, 0), np.float32), 2)
    assert [] == classify(np.zeros((0, 3), np.float32), 2)


def test_outputs_without_a_batch_axis_have_no_rows() -> None:
    """All values are classes, whatever the rank."""
    flat, scalar = spec("y", "ab", F32, a=2, b=2), spec("y", "", F32)

    assert [b"4:3", b"3:2"] == classify(np.array([[1, 2], [3, 4]]), 2, flat)
    assert [b"7.000000:0"] == classify(np.float32(7).reshape(()), 2, scalar)


def test_the_batch_axis_may_be_anywhere() -> None:
    """Other axes are taken together, row-major."""
    of = spec("y", "anc", F32, a=2, c=2)
    array = np.arange(12).reshape(2, 3, 2)

    assert [[b"7:3"], [b"9:3"], [b"11:3"]] == classify(array, 1, of)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_nan_is_last_in_every_float(dtype: Any) -> None:
    """It is no class that anybody looks for."""
    array = np.array([[1, np.nan, -2.5]], dtype)

    assert [[b"1.000000:0", b"-2.500000:2", b"nan:1"]] == classify(array, 3)


def test_large_integers_are_exact() -> None:
    """No value takes the way over a float."""
    array = np.array([[2**64 - 1, 2**64 - 2, 1]], np.uint64)

    assert [[b"18446744073709551615:0", b"18446744073709551614:1"]] == classify(array, 2)


@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 3), st.integers(1, 40))), st.integers(1, 8))
def test_order_is_that_of_a_stable_sort(array: Any, count: int) -> None:
    """Whether or not the values are partitioned first."""
    expected = [
        [b"%d:%d" % (row[i], i) for i in sorted(range(len(row)), key=lambda i: -int(row[i]))][
            :count
        ]
        for row in array.tolist()
    ]

    assert expected == classify(array, count)


def test_other_outputs_stay_what_they_are() -> None:
    """In their order."""
    outputs = {"a": _SCORES, "y": _SCORES}

    answer = classify_outputs([_LOGITS], outputs, {"y": 1}, {})

    assert ["a", "y"] == list(answer)
    assert answer["a"] is _SCORES


def test_strings_have_no_classes() -> None:
    """It is said before anything runs."""
    check_classes([_LOGITS], {"y": 1})
    with pytest.raises(BadRequest, match="output 'y' is BYTES"):
        check_classes([spec("y", "n", BYTES)], {"y": 1})


def test_large_outputs_are_known() -> None:
    """They are classified apart from the loop."""
    assert not is_large({"y": _SCORES}, {"y": 1})
    assert is_large({"y": np.zeros(20_000)}, {"y": 1})
