"""JSON values become arrays: nesting, types, ranges."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from support.rest_json import body_of, decode, decode_one, tensor

from hloserve.core.dtypes import DTYPES
from hloserve.core.errors import BadRequest, TensorMismatch

INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]
BY_KSERVE = {dtype.kserve: dtype for dtype in DTYPES}


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_their_limits(datatype: str) -> None:
    """Both ends of every integer type survive; one step beyond is refused with index and value."""
    limits = np.iinfo(BY_KSERVE[datatype].numpy)
    low, high = int(limits.min), int(limits.max)

    got = decode_one([low, high, 0], [3], datatype)

    assert got.tolist() == [low, high, 0]
    assert got.dtype == BY_KSERVE[datatype].numpy
    for beyond in (low - 1, high + 1):
        with pytest.raises(BadRequest, match=f"'x': value 1 is {beyond}, out of.* {datatype}$"):
            decode_one([0, beyond], [2], datatype)


def test_integers_beyond_double_precision_are_exact() -> None:
    """64-bit integers never pass through a float."""
    assert decode_one([2**53 + 1, -(2**62) - 1], [2], "INT64").tolist() == [
        2**53 + 1,
        -(2**62) - 1,
    ]
    assert decode_one([2**64 - 1], [1], "UINT64").tolist() == [2**64 - 1]


@pytest.mark.parametrize("datatype", INTEGERS)
def test_whole_numbers_with_a_fraction_part_are_integers(datatype: str) -> None:
    """1.0 and 1e1 are whole; 1.5 is not."""
    assert decode_one([1.0, 2, 10.0], [3], datatype).tolist() == [1, 2, 10]
    with pytest.raises(BadRequest, match=r"value 1 is 1\.5, which is not a whole number"):
        decode_one([1, 1.5], [2], datatype)


def test_integers_whose_digits_a_float_may_have_lost_are_refused() -> None:
    """A fraction or an exponent beyond 2**53 could hide a different integer."""
    body = body_of(tensor([1], [1], "INT64")).replace(b"[1]}", b"[9007199254740993.0]}")

    with pytest.raises(BadRequest, match="write it without fraction and exponent"):
        decode(body)


@pytest.mark.parametrize(
    ("datatype", "largest", "beyond"),
    [
        ("FP16", 65504.0, 65520.0),
        ("BF16", 3.3895313892515355e38, 3.4e38),
        ("FP32", 3.4028234663852886e38, 1e39),
        ("FP64", 1.7976931348623157e308, 10**309),
    ],
)
def test_floats_take_the_nearest_value_and_never_become_infinite(
    datatype: str, largest: float, beyond: float
) -> None:
    """The largest finite value passes; what would round to infinity is refused."""
    got = decode_one([largest, -largest, 0.1, 3], [4], datatype)
    dtype = BY_KSERVE[datatype].numpy

    assert got.dtype == dtype
    assert got.astype(np.float64).tolist() == [
        largest,
        -largest,
        float(np.asarray(0.1).astype(dtype)),
        3.0,
    ]
    with pytest.raises(BadRequest, match=f"'x': value 2 is .*, out of the range of {datatype}"):
        decode_one([0, 1, beyond], [3], datatype)


def test_number_that_even_a_double_cannot_hold_is_refused() -> None:
    """1e400 is out of every range."""
    body = body_of(tensor([1], [1], "FP64")).replace(b"[1]}", b"[1e400]}")

    with pytest.raises(BadRequest, match="out of range"):
        decode(body)


@pytest.mark.parametrize("datatype", FLOATS)
def test_non_finite_numbers_are_accepted_bare_and_as_strings(datatype: str) -> None:
    """NaN and the infinities come in as JSON's extensions write them, or quoted."""
    bare = decode_one([math.nan, math.inf, -math.inf, 1.5], [4], datatype)
    quoted = decode_one(["NaN", "Infinity", "-Infinity", 1.5], [2, 2], datatype)

    for got in (bare, quoted.reshape(-1)):
        values = got.astype(np.float64)
        assert np.isnan(values[0])
        assert values[1:].tolist() == [math.inf, -math.inf, 1.5]


def test_bare_tokens_inside_strings_stay() -> None:
    """Only tokens are replaced: a name or an id may contain one."""
    inputs = tensor([math.nan], [1])
    inputs["name"] = 'say \\"NaN\\", Infinity'

    request, _ = decode(body_of(inputs, id="-Infinity NaN \\\\"))

    assert list(request.inputs) == ['say \\"NaN\\", Infinity']
    assert request.id == "-Infinity NaN \\\\"


@pytest.mark.parametrize("token", ["nan", "NAN", "inf", "+Infinity", "--Infinity", "NaNa", "-NaN0"])
def test_other_spellings_are_not_json(token: str) -> None:
    """There are three tokens and no more."""
    body = body_of(tensor([1], [1])).replace(b"[1]}", f"[{token}]}}".encode())

    with pytest.raises(BadRequest):
        decode(body)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_non_finite_numbers_are_no_integers(datatype: str) -> None:
    """NaN for an integer is refused."""
    with pytest.raises(BadRequest, match="it must be a whole number"):
        decode_one([math.nan], [1], datatype)


@pytest.mark.parametrize("datatype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1", "the string '1'"),
        (None, "JSON null"),
        (True, "the bool true"),
        (False, "the bool false"),
        ([1], "JSON array"),
        ({"a": 1}, "JSON object"),
        ("é" * 100, "the string 'é"),
    ],
)
def test_only_numbers_are_numbers(datatype: str, value: Any, shown: str) -> None:
    """Strings, null, bools and containers are refused, and named with their place."""
    with pytest.raises(BadRequest) as caught:
        decode_one([1, 0, value], [3], datatype)

    assert f"input 'x': {datatype} value 2 is {shown}" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_bools_are_true_and_false() -> None:
    """BOOL takes JSON's own words and nothing that resembles them."""
    got = decode_one([[True, False]], [1, 2], "BOOL")

    assert got.tolist() == [[True, False]]
    assert got.dtype == np.bool_
    for value in (1, 0, 1.0, "true", None):
        with pytest.raises(BadRequest, match=r"BOOL value 1 is .*; only true and false"):
            decode_one([True, value], [2], "BOOL")


@pytest.mark.parametrize(
    ("data", "shape", "expected"),
    [
        ([1, 2, 3, 4], [2, 2], [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], [2, 2], [[1, 2], [3, 4]]),
        ([[[1], [2]]], [1, 2, 1], [[[1], [2]]]),
        ([1, 2], [1, 2, 1], [[[1], [2]]]),
        ([5], [], 5),
        (5, [], 5),
        ([5], [1], [5]),
        ([], [0], []),
        ([], [2, 0], [[], []]),
        ([[], []], [2, 0], [[], []]),
        ([[], []], [2, 0, 3], np.zeros((2, 0, 3)).tolist()),
        ([], [0, 3], []),
        ([], [0, 2**40], []),
    ],
)
def test_data_is_flat_or_nested_like_the_shape(data: Any, shape: list[int], expected: Any) -> None:
    """Flat and nested data give the same row-major array."""
    got = decode_one(data, shape)

    assert got.tolist() == expected
    assert list(got.shape) == shape
    assert not got.flags.writeable


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        ([1, 2, 3], [2, 2], "number of values in data of shape [2,2] is 3, expected 4"),
        ([1, 2, 3, 4, 5], [2, 2], "number of values in data of shape [2,2] is 5, expected 4"),
        ([], [1], "number of values in data of shape [1] is 0, expected 1"),
        ([1], [0], "number of values in data of shape [0] is 1, expected 0"),
        ([[1, 2, 3], [4]], [2, 2], "length of data[0] is 3, expected 2"),
        ([[1, 2], [4]], [2, 2], "length of data[1] is 1, expected 2"),
        ([[1, 2, 3, 4]], [2, 2], "length of data is 1, expected 2"),
        ([[1, 2], 3], [2, 2], "length of data[1] is the number 3, expected 2"),
        ([[[1, 2]], [[3], [4]]], [2, 1, 2], "length of data[1] is 2, expected 1"),
        ([[[1, 2]], [[3]]], [2, 1, 2], "length of data[1][0] is 1, expected 2"),
        ([[1], [2]], [2], "FP32 value 0 is JSON array; it must be a number"),
        ([[[1]]], [1, 1], "FP32 value 0 is JSON array"),
        ([1, [2]], [2], "FP32 value 1 is JSON array"),
        ([[1]], [], "FP32 value 0 is JSON array"),
        (5, [1], "data is the number 5; it must be an array of values"),
        ({"b64": "AAAA"}, [1], "data is JSON object"),
        ({"b64": "AAAA"}, [], "data is JSON object"),
        (None, [1], "data is JSON null"),
        ("abc", [3], "data is the string 'abc'"),
        ([[], []], [3, 0], "length of data is 2, expected 3"),
    ],
)
def test_data_that_does_not_fit_the_shape_is_refused(data: Any, shape: Any, message: str) -> None:
    """Counts and nesting are told with their place."""
    with pytest.raises(BadRequest) as caught:
        decode_one(data, shape)

    assert message in str(caught.value)
    assert "input 'x'" in str(caught.value)


@pytest.mark.parametrize("count", [4095, 4096, 4097, 50_000])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BF16", "BOOL"])
def test_long_data_is_whole(count: int, datatype: str) -> None:
    """Data longer than what is packed at once arrives whole, errors with their index too."""
    values = [n % 2 == 0 if datatype == "BOOL" else n % 251 for n in range(count)]

    got = decode_one(values, [count], datatype)

    assert got.astype(np.float64).tolist() == [float(v) for v in values]
    values[-1] = "x"  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match=f"value {count - 1} is"):
        decode_one(values, [count], datatype)


def test_rounding_is_that_of_the_format() -> None:
    """A double between two FP32 values goes to the nearer one."""
    value = 1.0 + 2**-24 + 2**-40
    expected = struct.unpack("<f", struct.pack("<f", value))[0]

    assert decode_one([value], [1]).tolist() == [expected]
    with pytest.raises(TensorMismatch):
        decode_one([value], [2])


@pytest.mark.parametrize("shape", [[0], [3, 0], [0, 2**40], [2**31, 0, 2**20]])
def test_no_values_are_a_tensor_of_no_elements(shape: list[int]) -> None:
    """An extent of zero leaves nothing to send, however large its neighbours are."""
    assert list(decode_one([], shape).shape) == shape


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0, 2**62], [-1, -3], [-3], [2**70]])
def test_impossible_shapes_of_small_data_are_refused(shape: list[int]) -> None:
    """A shape that no tensor has is refused, whatever its product."""
    with pytest.raises(BadRequest, match="input 'x'"):
        decode_one([1.0, 2.0, 3.0], shape)
