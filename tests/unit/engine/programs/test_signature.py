"""The types of programs and their notation."""

import pytest

from hloserve.core.dtypes import DTYPES, F32, I64, DType
from hloserve.engine.programs.signature import Signature, TensorType, parse_tensor_type


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_survives_the_notation(dtype: DType) -> None:
    """A tensor type of any element type reads back as what was written."""
    written = TensorType(dtype, (None, 3))

    assert written == parse_tensor_type(str(written))


def test_scalar_has_no_extents() -> None:
    """A rank-0 tensor is written without extents."""
    assert str(TensorType(I64, ())) == "tensor<i64>"
    assert TensorType(I64, ()) == parse_tensor_type("tensor<i64>")


@pytest.mark.parametrize(
    "text",
    ["tensor<*xf32>", "tensor<2xq8>", "tensor<2x>", "f32", "tensor<-1xf32>", "tensor<2xf32> "],
)
def test_rubbish_is_refused_with_its_text(text: str) -> None:
    """What is not a tensor type of a bundle is named in the error."""
    with pytest.raises(ValueError, match=r"tensor|f32") as caught:
        parse_tensor_type(text)

    assert repr(text) in str(caught.value)


def test_signature_reads_like_a_function() -> None:
    """A signature shows its arguments and results."""
    row = TensorType(F32, (None, 3))

    assert (
        str(Signature((row, TensorType(F32, ())), (row,)))
        == "(tensor<?x3xf32>, tensor<f32>) -> (tensor<?x3xf32>)"
    )
