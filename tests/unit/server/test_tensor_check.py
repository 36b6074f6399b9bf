"""Requests against the specs of a model."""

import numpy as np
import pytest
from support.engine_models import spec

from hloserve.core.dtypes import BYTES, by_token
from hloserve.core.errors import (
    DuplicateTensor,
    MissingTensor,
    TensorMismatch,
    TensorProblems,
    UnknownTensor,
)
from hloserve.core.tensors import Tensors
from hloserve.server.tensor_check import (
    all_problems,
    check_inputs,
    check_output_names,
    select_outputs,
)

_X = spec("x", "nc", c=3)
_MASK = spec("mask", "nw", by_token("i32"), w=-1)
_ROWS = np.zeros((2, 3), np.float32)
_WORDS = np.zeros((2, 9), np.int32)


def test_batch_and_variable_axes_take_any_extent() -> None:
    """The order of the inputs in a request does not matter either."""
    check_inputs([_X, _MASK], {"mask": _WORDS, "x": _ROWS[:0]})


@pytest.mark.parametrize(
    ("array", "what", "expected", "got"),
    [
        (_ROWS.astype(np.float64), "datatype", "FP32", "FP64"),
        (_ROWS.astype("U1"), "datatype", "FP32", "<U1"),
        (_ROWS[0], "rank", "2 (shape [-1, 3])", 1),
        (_ROWS[:, :2], "extent of axis 1 (c)", 3, 2),
    ],
)
def test_difference_is_named(
    array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
    what: str,
    expected: object,
    got: object,
) -> None:
    """The first one: of the datatype, the rank or a fixed extent."""
    with pytest.raises(TensorMismatch, match="input 'x'") as caught:
        check_inputs([_X], {"x": array})

    error = caught.value
    assert (what, str(expected), str(got)) == (error.what, str(error.expected), str(error.got))


def test_missing_input_is_named() -> None:
    """What is there does not hide what is not."""
    with pytest.raises(MissingTensor, match="'mask'"):
        check_inputs([_X, _MASK], {"x": _ROWS})


def test_input_that_the_model_does_not_have_is_named() -> None:
    """The message lists those that it has."""
    with pytest.raises(UnknownTensor, match=r"'y'.*x"):
        check_inputs([_X], {"x": _ROWS, "y": _ROWS})


def test_outputs_are_asked_for_by_name_and_once() -> None:
    """Both mistakes are found before anything runs."""
    check_output_names([_X, _MASK], ["mask", "x"])

    with pytest.raises(UnknownTensor, match="'y'"):
        check_output_names([_X], ["y"])
    with pytest.raises(DuplicateTensor, match="'x'"):
        check_output_names([_X], ["x", "x"])


def test_wanted_outputs_come_in_the_wanted_order() -> None:
    """Asking for none means all."""
    outputs = {"x": _ROWS, "mask": _WORDS}

    assert ["mask", "x"] == list(select_outputs(outputs, ["mask", "x"]))
    assert outputs == select_outputs(outputs, [])


def test_everything_that_is_wrong_is_said_at_once() -> None:
    """Every problem names its tensor."""
    inputs: Tensors = {"x": _ROWS[:, :2].astype(np.float64), "z": _ROWS}

    problem = all_problems([_X, _MASK], inputs, [_X], ["q", "x", "x"])

    assert isinstance(problem, TensorProblems)
    kinds = [TensorMismatch, TensorMismatch, MissingTensor, UnknownTensor]
    assert [*kinds, UnknownTensor, DuplicateTensor] == [type(each) for each in problem.problems]
    for name in ("input 'x'", "input 'mask'", "input 'z'", "output 'q'", "output 'x'"):
        assert name in str(problem)


def test_one_problem_is_itself() -> None:
    """It keeps its type and its attributes."""
    assert isinstance(all_problems([_X], {}), MissingTensor)


def test_thousands_of_problems_are_counted() -> None:
    """The message of a request that means harm stays short."""
    problem = all_problems([_X], {str(number): _ROWS for number in range(5000)})

    assert len(str(problem)) < 2000
    assert "and 4981 more problems" in str(problem)


def test_strings_are_a_datatype_of_their_own() -> None:
    """They fit BYTES, and nothing else."""
    text = spec("t", "n", BYTES)
    strings = np.array([b"a"], object)

    check_inputs([text], {"t": strings})
    with pytest.raises(TensorMismatch, match="datatype is FP32, expected BYTES"):
        check_inputs([text], {"t": _ROWS})
    with pytest.raises(TensorMismatch, match="datatype is BYTES, expected FP32"):
        check_inputs([_X], {"x": strings})
