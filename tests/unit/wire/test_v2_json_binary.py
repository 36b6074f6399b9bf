"""Bodies that are nothing but a tensor: what they mean by a model's specs."""

from typing import Any

import numpy as np
import pytest
from support.rest_json import decode

from hloserve.core.dtypes import BYTES, F32
from hloserve.core.errors import BadRequest, HloserveError, TensorMismatch
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.wire.v2_json import decode_raw_input

FOUR = np.arange(4, dtype="<f4").tobytes()
N = Axis("n", AxisKind.BATCH)
C = Axis("c", AxisKind.FIXED, 2)
T = Axis("t", AxisKind.VARIABLE)


def spec(*axes: Axis) -> TensorSpec:
    """An input named x."""
    return TensorSpec("x", F32, axes)


@pytest.mark.parametrize(
    ("axes", "data", "shape"),
    [
        ((N, C), FOUR[:8], (1, 2)),
        ((C, N), FOUR[:8], (2, 1)),
        ((N, T), FOUR, (1, 4)),
        ((N, C, T), FOUR, (1, 2, 2)),
        ((T,), b"", (0,)),
        ((), FOUR[:4], ()),
        ((Axis("z", AxisKind.FIXED, 0), T), b"", (0, 0)),
    ],
)
def test_raw_body_is_the_one_input(axes: Any, data: bytes, shape: Any) -> None:
    """A raw body becomes the model's one input, a batch of one, one open axis inferred."""
    request, forms = decode(data, "0")
    assert forms.raw == data
    assert forms.default_is_binary
    assert request.inputs == {}

    got = decode_raw_input(data, [spec(*axes)])

    assert list(got) == ["x"]
    assert got["x"].shape == shape


@pytest.mark.parametrize(
    ("specs", "data", "error"),
    [
        ([], b"", BadRequest),
        ([spec(C), spec(N)], FOUR, BadRequest),
        ([spec(T, Axis("u", AxisKind.VARIABLE))], FOUR, BadRequest),
        ([spec(N, C)], FOUR, TensorMismatch),
        ([spec(N, C, T)], FOUR[:12], TensorMismatch),
        ([spec(T)], FOUR[:3], TensorMismatch),
    ],
)
def test_raw_body_that_cannot_be_explained_is_refused(
    specs: list[TensorSpec], data: bytes, error: type[HloserveError]
) -> None:
    """Several inputs, several open axes or a wrong length are the caller's to mend."""
    with pytest.raises(error):
        decode_raw_input(data, specs)


@pytest.mark.parametrize("axes", [(), (N,), (N, T), (N, Axis("k", AxisKind.FIXED, 1))])
@pytest.mark.parametrize("body", [b"", b"\xff\xd8 a picture", b"\4\0\0\0text"])
def test_raw_body_is_one_string(axes: Any, body: bytes) -> None:
    """Without a length in front, as Triton takes it: a file can be sent as it is."""
    got = decode_raw_input(body, [TensorSpec("x", BYTES, axes)])["x"]

    assert got.shape == (1,) * len(axes)
    assert got.reshape(-1).tolist() == [body]


def test_raw_body_is_no_more_than_one_string() -> None:
    """Nothing says where another one would begin."""
    with pytest.raises(BadRequest, match=r"input 'x'.*one string.*\[1,2\] needs 2"):
        decode_raw_input(b"ab", [TensorSpec("x", BYTES, (N, C))])
