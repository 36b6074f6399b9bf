"""Each disagreement of a program with its bundle is one finding that says what to change."""

from dataclasses import dataclass

import pytest

from hloserve.core.dtypes import F32, I64, U8, DType
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.programs.program_check import argument_types, check_signature, size_of_program
from hloserve.engine.programs.signature import Signature, parse_tensor_type

N = Axis("n", AxisKind.BATCH)


@dataclass(frozen=True)
class Weight:
    """A weight of the file, as far as it is compared."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


def _fixed(letter: str, extent: int) -> Axis:
    return Axis(letter, AxisKind.FIXED, extent)


IMAGE = TensorSpec("image", U8, (N, _fixed("c", 3), Axis("h", AxisKind.VARIABLE)))
SCORES = TensorSpec("scores", F32, (N, _fixed("k", 10)))
BOXES = TensorSpec("boxes", F32, (N, Axis("q", AxisKind.VARIABLE), _fixed("d", 4)))
KERNEL = Weight("kernel", F32, (3, 10))


def _signature(inputs: list[str], outputs: list[str]) -> Signature:
    return Signature(
        tuple(parse_tensor_type(f"tensor<{kind}>") for kind in inputs),
        tuple(parse_tensor_type(f"tensor<{kind}>") for kind in outputs),
    )


def _check(inputs: list[str], outputs: list[str], *, size: int = 8) -> list[str]:
    return check_signature(
        "model.v0.b8.mlir",
        _signature(inputs, outputs),
        [IMAGE],
        [SCORES, BOXES],
        [KERNEL],
        size,
        {"h": 32},
    )


GOOD_INPUTS = ["8x3x32xui8", "3x10xf32"]
GOOD_OUTPUTS = ["8x10xf32", "8x300x4xf32"]


def test_matching_program_has_no_findings() -> None:
    """Batch letter, variable letter and weights all fit."""
    assert _check(GOOD_INPUTS, GOOD_OUTPUTS) == []


def test_open_extents_fit_anything() -> None:
    """They are fixed later, when the program is specialised."""
    assert _check(["?x?x?xui8", "?x10xf32"], ["?x10xf32", "?x?x4xf32"]) == []


def test_more_results_than_declared_are_legal() -> None:
    """They are served as output_k."""
    assert _check(GOOD_INPUTS, [*GOOD_OUTPUTS, "7xi64"]) == []


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            [*GOOD_INPUTS, "10xf32"],
            "model.v0.b8.mlir: the program takes 3 arguments, the bundle declares 1 input and"
            " 1 weight (image, kernel); add what is missing to argument_order",
        ),
        (["8x3x32xui8"], "takes 1 argument, the bundle declares 1 input and 1 weight"),
        (["8x3x32xui8"], "keep_unused=True"),
        (
            ["8x3x32xf32", "3x10xf32"],
            "input 'image' (argument 0): dtype is f32 in the program (tensor<8x3x32xf32>),"
            " expected u8 (tensor<8x3x32xui8>)",
        ),
        (
            ["8x3x64xui8", "3x10xf32"],
            "input 'image' (argument 0): shape is (8, 3, 64) in the program (tensor<8x3x64xui8>),"
            " expected (8, 3, 32) (tensor<8x3x32xui8>)",
        ),
        (["8x3xui8", "3x10xf32"], "shape is (8, 3) in the program"),
        (["32x3x8xui8", "3x10xf32"], "the axes are reversed: the letters of a manifest's shape"),
        (["8x3x32xui8", "10x3xf32"], "weight 'kernel' (argument 1): shape is (10, 3)"),
        (["8x3x32xui8", "3x10xf64"], "weight 'kernel' (argument 1): dtype is f64"),
        (["4x3x32xui8", "3x10xf32"], "shape is (4, 3, 32) in the program"),
    ],
)
def test_wrong_arguments_are_named(inputs: list[str], says: str) -> None:
    """Role, position, expected and got, in program types and as a shape."""
    assert any(says in finding for finding in _check(inputs, GOOD_OUTPUTS))


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (
            ["8x10xf32"],
            "the program returns 1 result, the manifest declares 2 outputs: nothing is left for"
            " boxes",
        ),
        (["8x10xi64", "8x300x4xf32"], "output 'scores' (result 0): dtype is i64"),
        (["8x10xf32", "8x4x300xf32"], "output 'boxes' (result 1): shape is (8, 4, 300)"),
        (["1x10xf32", "8x300x4xf32"], "output 'scores' (result 0): shape is (1, 10)"),
    ],
)
def test_wrong_results_are_named(outputs: list[str], says: str) -> None:
    """Results are checked like arguments; a variable axis takes what the program gives."""
    (finding,) = _check(GOOD_INPUTS, outputs)
    assert says in finding


def test_every_disagreement_is_found_at_once() -> None:
    """An author does not learn of the second fault by fixing the first."""
    assert len(_check(["8x3x32xf32", "10x3xf64"], ["8x10xi64"])) == 5


def test_scalar_shape_reads_like_numpy() -> None:
    """Rank 0 is (), rank 1 is (n,)."""
    scalar = TensorSpec("t", F32, ())
    (finding,) = check_signature("m", _signature(["4xf32"], []), [scalar], [], [], 0, {})
    assert "shape is (4,) in the program (tensor<4xf32>), expected () (tensor<f32>)" in finding


def test_batch_axis_of_an_output_alone_is_whatever_it_is() -> None:
    """Without a batch axis among the inputs there is no size to hold the output to."""
    fixed = TensorSpec("x", F32, (_fixed("a", 2),))
    assert (
        check_signature("m", _signature(["2xf32"], ["5x10xf32"]), [fixed], [SCORES], [], 0, {})
        == []
    )


def test_baked_size_is_read_from_the_program() -> None:
    """A single model.mlir says its batch size in its types."""
    assert size_of_program(_signature(GOOD_INPUTS, []), [IMAGE]) == 8
    assert size_of_program(_signature(["?x3x32xui8"], []), [IMAGE]) is None
    assert size_of_program(_signature(["3x2xf32"], []), [TensorSpec("x", F32, ())]) == 0
    assert size_of_program(_signature([], []), [IMAGE]) == 0


def test_size_is_read_from_the_batch_axis_wherever_it_is() -> None:
    """The batch axis need not be the outermost one."""
    inner = TensorSpec("x", F32, (_fixed("a", 5), N))
    assert size_of_program(_signature(["5x7xf32"], []), [inner]) == 7


def test_expected_arguments_are_inputs_then_weights() -> None:
    """The order of section 6 of the format."""
    ids = TensorSpec("ids", I64, (N, Axis("s", AxisKind.VARIABLE)))
    types = argument_types([ids], [KERNEL], 4, {"s": 128})
    assert [str(kind) for kind in types] == ["tensor<4x128xi64>", "tensor<3x10xf32>"]
