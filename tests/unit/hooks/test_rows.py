"""Cutting buffers of fixed size down to the rows that exist."""

import numpy as np
import pytest

from hloserve.core.tensors import Array, NamedTensor
from hloserve.hooks import trim_rows
from hloserve.hooks.tensor_list import TensorList

MOST = 5


def _outputs(**arrays: Array) -> TensorList:
    return TensorList(NamedTensor(name, array) for name, array in arrays.items())


def _buffer(count: int) -> Array:
    """Rows 1 to `count`, then zeros, as a program fills it."""
    buffer = np.zeros((MOST, 3), np.float32)
    buffer[:count] = np.arange(1, count + 1)[:, None]
    return buffer


@pytest.mark.parametrize("count", range(MOST + 1))
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_exactly_the_rows_that_exist_are_left(
    count: int, shape: tuple[int, ...], dtype: type
) -> None:
    """At every count from 0 to the maximum, whatever integer it is."""
    hook = trim_rows("n", {"boxes": "found"})

    results = hook(_outputs(boxes=_buffer(count), n=np.full(shape, count, dtype)))

    assert ["found"] == list(results)
    assert (count, 3) == results["found"].shape
    assert np.float32 == results["found"].dtype
    np.testing.assert_array_equal(_buffer(count)[:count], results["found"])


def test_all_buffers_are_cut_alike_under_their_own_names() -> None:
    """Unless names are given; the count may be passed on."""
    hook = trim_rows("n", counts_as="rows")

    results = hook(_outputs(boxes=_buffer(2), n=np.array([2]), labels=np.arange(MOST)))

    assert {"boxes": (2, 3), "labels": (2,), "rows": (1,)} == {
        name: array.shape for name, array in results.items()
    }
    assert np.int64 == results["rows"].dtype


@pytest.mark.parametrize("counts", [[0], [5], [0, 0], [2, 0, 5], [5, 5, 1, 0], []])
@pytest.mark.parametrize("is_column", [False, True])
def test_rows_of_a_batch_follow_each_other(counts: list[int], is_column: bool) -> None:
    """The counts tell where those of each begin; a batch of nothing has no rows."""
    hook = trim_rows("n", {"boxes": "found"}, counts_as="counts", is_batched=True)
    boxes = np.zeros((len(counts), MOST, 3), np.float32)
    for place, count in enumerate(counts):
        boxes[place] = _buffer(count) * (place + 1)
    given = np.array(counts, np.int32)

    results = hook(_outputs(boxes=boxes, n=given[:, None] if is_column else given))

    assert counts == results["counts"].tolist()
    assert (sum(counts), 3) == results["found"].shape
    ends = np.cumsum(counts)
    for place, (end, count) in enumerate(zip(ends, counts, strict=True)):
        np.testing.assert_array_equal(
            boxes[place, :count], results["found"][end - count : end], str(place)
        )


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"n": np.array([6])}, "a count is 6, but buffer 'boxes' has room for 0 to 5 rows"),
        ({"n": np.array([-1])}, "a count is -1"),
        ({"n": np.array([2.0])}, "count 'n' is of float64, expected whole numbers"),
        ({"n": np.array([1, 2])}, r"count 'n' is of shape \(2,\), expected \(\) or \(1,\)"),
        ({"m": np.array([1])}, "there is no output 'n'; the program has 'boxes', 'm'"),
        ({"n": np.array([1]), "boxes": np.zeros(())}, r"buffer 'boxes' is of shape \(\)"),
    ],
)
def test_fault_of_the_program_is_named(outputs: dict[str, Array], text: str) -> None:
    """It fails the request, with the output, what was expected and what came."""
    hook = trim_rows("n", {"boxes": "found"})

    with pytest.raises(ValueError, match=f"trim_rows: .*{text}"):
        hook(_outputs(**{"boxes": _buffer(1), **outputs}))


def test_counts_of_a_batch_must_be_passed_on() -> None:
    """Without them nobody could tell whose rows they are."""
    with pytest.raises(ValueError, match="name the counts"):
        trim_rows("n", is_batched=True)


def test_batch_needs_a_count_for_each_of_its_rows() -> None:
    """Buffers of three and counts of two do not belong together."""
    hook = trim_rows("n", counts_as="counts", is_batched=True)

    with pytest.raises(ValueError, match="no rows for 2 counts"):
        hook(_outputs(boxes=np.zeros((3, MOST, 3)), n=np.array([1, 2])))
