"""What a hook returns is checked before anybody else sees it."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typing_extensions import override

from hloserve.core.dtypes import BYTES, F32, I64, by_token
from hloserve.core.errors import Code, HookFailed, InvalidInput
from hloserve.core.tensors import Axis, AxisKind, NamedTensor, TensorSpec
from hloserve.hooks.tensor_list import TensorList
from hloserve.models.hook_results import call_hook, check_rows, check_tensors, hook_tensors

N = Axis("n", AxisKind.BATCH)
IMAGE = TensorSpec("image", F32, (N, Axis("c", AxisKind.FIXED, 3), Axis("w", AxisKind.VARIABLE)))
SIZE = TensorSpec("size", I64, (N,))
SPECS = [IMAGE, SIZE]
GOOD: dict[str, Any] = {"image": np.zeros((2, 3, 5), "f4"), "size": np.zeros(2, "i8")}


def _check(result: object, specs: list[TensorSpec] = SPECS) -> list[Any]:
    return check_tensors("m", "preprocess", specs, result)


@pytest.mark.parametrize(
    "result",
    [
        GOOD,
        dict(reversed(GOOD.items())),
        [NamedTensor(*item) for item in GOOD.items()],
        TensorList(NamedTensor(*item) for item in GOOD.items()),
        tuple(GOOD.items()),
    ],
    ids=["dict", "other order", "list", "its own argument", "pairs"],
)
def test_every_form_of_result_is_taken(result: object) -> None:
    """A dict, a list of NamedTensor or of pairs; the order is that of the specs."""
    image, size = _check(result)
    assert image is GOOD["image"]
    assert size is GOOD["size"]


def test_result_is_made_contiguous_and_native() -> None:
    """Transposed and byte-swapped arrays become what a device takes."""
    image, size = _check(
        {"image": np.zeros((5, 3, 2), "f4").T, "size": np.array([1, 2], dtype=">i8")}
    )
    assert image.flags.c_contiguous
    assert image.shape == (2, 3, 5)
    assert size.tolist() == [1, 2]
    assert size.dtype == np.dtype("i8")


def test_rank_zero_stays_rank_zero() -> None:
    """NumPy scalars and 0-d arrays are tensors of rank 0."""
    scalar = TensorSpec("t", F32, ())
    for value in (np.float32(2), np.array(2, "f4")):
        (array,) = _check({"t": value}, [scalar])
        assert array.shape == ()


def test_arrays_of_other_libraries_are_taken() -> None:
    """What knows how to become an array may be returned as it is."""

    class Foreign:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            return np.zeros((1, 3, 2), "f4")

    image, _ = _check({"image": Foreign(), "size": np.zeros(1, "i8")})
    assert image.shape == (1, 3, 2)


def test_bfloat16_is_checked_like_any_other() -> None:
    """Extension dtypes are named in the hint by where they come from."""
    spec = TensorSpec("h", by_token("bf16"), (N,))
    (array,) = _check({"h": np.zeros(2, ml_dtypes.bfloat16)}, [spec])
    assert array.dtype == ml_dtypes.bfloat16
    with pytest.raises(HookFailed, match=r"use \.astype\(ml_dtypes\.bfloat16\)"):
        _check({"h": np.zeros(2, "f4")}, [spec])


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "it returned None, expected a dict of arrays or a list of NamedTensor"),
        (np.zeros(3), "it returned a value of type ndarray"),
        ([np.zeros(3)], "it returned a list of ndarray"),
        ({"image": GOOD["image"]}, "it must return 'image', 'size', it returned 'image'; missing"),
        ({**GOOD, "mask": np.zeros(1)}, "not declared: 'mask'"),
        ({}, "it returned nothing; missing: 'image', 'size'"),
        ({1: np.zeros(1)}, "a tensor named 1, not a string"),
        ([("size", GOOD["size"]), ("size", GOOD["size"])], "tensor 'size' twice"),
        ({**GOOD, "size": [1, 2]}, "tensor 'size' is a list of int, expected a NumPy array"),
        ({**GOOD, "size": None}, "tensor 'size' is None, expected a NumPy array"),
        (
            {**GOOD, "image": np.zeros((2, 3, 5))},
            "tensor 'image': dtype is float64, expected float32; use .astype(np.float32)",
        ),
        ({**GOOD, "size": np.array(["a"])}, "tensor 'size': dtype is <U1, expected int64"),
        (
            {**GOOD, "image": np.zeros((3, 5), "f4")},
            "tensor 'image': rank is 2 (3, 5), expected 3 (image: f32[n,3,?])",
        ),
        (
            {**GOOD, "image": np.zeros((2, 5, 3), "f4")},
            "tensor 'image': extent of axis 1 (c) is 5, shape (2, 5, 3), expected 3",
        ),
    ],
)
def test_wrong_result_is_named(result: object, says: str) -> None:
    """The message says which tensor, what was expected and what came."""
    with pytest.raises(HookFailed) as raised:
        _check(result)
    assert says in str(raised.value)
    assert str(raised.value).startswith("preprocess hook of model 'm' failed: ")


def test_rows_must_agree() -> None:
    """A hook whose outputs disagree fails its own request, never a batch."""
    check_rows("m", "preprocess", SPECS, [np.zeros((2, 3, 1)), np.zeros(2)])
    with pytest.raises(
        HookFailed, match=r"tensor 'size': number of rows .* is 3, expected 2 as in"
    ):
        check_rows("m", "preprocess", SPECS, [np.zeros((2, 3, 1)), np.zeros(3)])
    check_rows("m", "preprocess", SPECS, [np.zeros((0, 3, 1)), np.zeros(0)])  # none is a number


def test_hook_gets_writable_copies() -> None:
    """Writing into an input changes neither the message nor device memory."""
    original = np.ones((2, 3), "f4", order="F")
    original.flags.writeable = False
    (tensor,) = hook_tensors(["x"], [original])
    tensor.array[...] = 5
    assert tensor.array.flags.c_contiguous
    assert (original == 1).all()


def _call(hook: Any, bundle: Path = Path("/nowhere")) -> object:
    return call_hook("m", "postprocess", bundle, hook, TensorList())


def test_hook_may_refuse_its_input() -> None:
    """InvalidInput goes to the caller as it is."""

    def hook(tensors: TensorList) -> object:
        raise InvalidInput("the image is upside down")

    with pytest.raises(InvalidInput, match=r"^the image is upside down$"):
        _call(hook)


class _Odd(InvalidInput):
    """What an author may make of it."""

    @override
    def __str__(self) -> str:
        raise RuntimeError


class _Coded(InvalidInput):
    code = None  # type: ignore[assignment]  # an author may do so, and nobody checks it


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (InvalidInput(""), "preprocess refuses the input and does not say why"),
        (_Odd("upside down"), "(its text cannot be made: RuntimeError)"),
        (_Coded("upside down"), "upside down"),
    ],
)
def test_refusal_has_a_text_and_a_status_whatever_its_author_made_of_it(
    refusal: InvalidInput, text: str
) -> None:
    """An error that could not be told was never answered, and its caller waited."""

    def hook(inputs: TensorList) -> None:
        raise refusal

    with pytest.raises(InvalidInput) as caught:
        call_hook("m", "preprocess", Path("m"), hook, TensorList())

    assert (InvalidInput, text) == (type(caught.value), str(caught.value))
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(1), KeyError("x")], ids=repr)
def test_any_other_exception_fails_the_request(error: BaseException) -> None:
    """The type and the text are told, the cause is kept, and nothing ends the process."""

    def hook(tensors: TensorList) -> object:
        raise error

    with pytest.raises(HookFailed) as raised:
        _call(hook)
    assert f"{type(error).__name__}: {error}" in str(raised.value)
    assert raised.value.__cause__ is error


def test_author_reads_his_own_line(tmp_path: Path) -> None:
    """The innermost line of the bundle's files, not of the library that it called."""
    path = tmp_path / "model.py"
    code = "import json\n\ndef hook(tensors):\n    return json.loads('{')\n"
    space: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), space)
    with pytest.raises(HookFailed, match=r"failed: model\.py:4: JSONDecodeError: Expecting"):
        _call(space["hook"], tmp_path)


TEXT = TensorSpec("text", BYTES, (N,))


@pytest.mark.parametrize(
    "array",
    [
        np.array(["Bär", "x"]),
        np.array(["Bär", "x"], object),
        np.array(["Bär".encode(), b"x"]),
        np.array(["Bär".encode(), b"x"], object),
    ],
)
def test_strings_are_taken_in_every_form_and_become_bytes(array: Any) -> None:
    """A hook may return text or bytes; the wire gets bytes."""
    (text,) = _check({"text": array}, [TEXT])

    assert ["Bär".encode(), b"x"] == text.tolist()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1, 2]), "dtype is int64, expected bytes or text"),
        (np.array([b"a", 2], object), "element 1 is of type int"),
        (np.array([[b"a"]], object), "rank"),
    ],
)
def test_what_is_no_string_is_the_hooks_fault(array: Any, expected: str) -> None:
    """The message names the tensor and what came."""
    with pytest.raises(HookFailed, match=f"'text'.*{expected}"):
        _check({"text": array}, [TEXT])


def test_objects_are_no_numbers() -> None:
    """A tensor of numbers does not take objects."""
    with pytest.raises(HookFailed, match=r"'size'.*object"):
        _check({"size": np.array([1], object)}, [SIZE])
