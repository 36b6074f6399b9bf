"""Large JSON bodies, which are read and written piece by piece."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from hloserve.core.errors import MalformedBody
from hloserve.core.requests import NEVER_NS, InferResponse
from hloserve.core.tensors import Array
from hloserve.wire import v2_json as codec
from hloserve.wire.v2_json_parsing import Request, parse_request

_PAD = b",".join([b"1"] * 200_000)
"""More than one piece."""


def _body(data: bytes, count: int = 1) -> bytes:
    head = b'{"id":"a","inputs":[{"name":"x","shape":[%d],"datatype":"FP64","data":' % count
    return head + data + b"}]}"


def test_large_data_is_read_exactly() -> None:
    """Every value, in order, integers as integers."""
    values: list[Any] = [number / 8 if number % 3 else number * 10**6 for number in range(200_000)]
    body = _body(json.dumps(values).encode(), len(values))

    message = parse_request(body)

    assert values == message.inputs[0].data
    assert [type(v) for v in values] == [type(v) for v in message.inputs[0].data]
    assert message.id == "a"


def test_large_message_becomes_the_same_array() -> None:
    """From the body to the tensor."""
    values = np.random.default_rng(3).standard_normal(100_000)
    body = _body(json.dumps(values.tolist()).encode(), len(values))

    request, _ = codec.decode_infer_request("m", "", body, None, 0, NEVER_NS)

    np.testing.assert_array_equal(values, request.inputs["x"])


@pytest.mark.parametrize("place", ["front", "middle", "back"])
@pytest.mark.parametrize(
    "bad", [b"1,,2", b"1 2", b"[2]", b'"a"', b"null", b"true", b"01", b"-", b"NaN", b"{}"]
)
def test_piece_that_is_no_list_of_numbers_is_read_as_a_whole_would_be(
    bad: bytes, place: str
) -> None:
    """What is not flat numbers is accepted or refused just as in a small body."""
    parts = {"front": [bad, _PAD], "middle": [_PAD, bad, _PAD], "back": [_PAD, bad]}[place]
    large, small = _body(b"[%b]" % b",".join(parts)), _body(b"[1,%b]" % bad)

    assert _outcome(small) == _outcome(large)


def _outcome(body: bytes) -> str:
    """The last odd value, or what kind of refusal it is."""
    try:
        message: Request = parse_request(body)
    except MalformedBody as error:
        return str(error).split(" (byte")[0]
    return repr([value for value in message.inputs[0].data if value != 1])


def test_blanks_do_not_matter() -> None:
    """Around commas, brackets and between pieces."""
    body = _body(b"[ \n" + _PAD.replace(b",", b" ,\t") + b" ]", 200_000)

    assert parse_request(body).inputs[0].data == [1] * 200_000


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_large_output_is_written_exactly(dtype: type) -> None:
    """The text is the one of a small output, joined."""
    values: Array = np.random.default_rng(4).integers(0, 2, 100_001).astype(dtype)

    body, content_type, _ = codec.encode_infer_response(
        InferResponse("m", {"y": values}), codec.OutputForms()
    )

    message = msgspec.json.decode(body)
    assert content_type == "application/json"
    assert values.tolist() == message["outputs"][0]["data"]


def test_values_that_json_has_not_are_null_in_every_piece() -> None:
    """NaN and infinities of a large output are null."""
    values: Array = np.zeros(70_000, np.float32)
    values[[0, 32_767, 32_768, 69_999]] = np.nan

    body, _, _ = codec.encode_infer_response(InferResponse("m", {"y": values}), codec.OutputForms())

    data = json.loads(body)["outputs"][0]["data"]
    assert [0, 32_767, 32_768, 69_999] == [i for i, value in enumerate(data) if value is None]


def test_only_values_that_are_written_as_json_are_counted() -> None:
    """Binary outputs take no time to write."""
    response = InferResponse("m", {"a": np.zeros(10), "b": np.zeros((2, 3))})

    assert codec.json_values(response, codec.OutputForms()) == 16
    assert codec.json_values(response, codec.OutputForms(is_binary={"a": True})) == 6
    assert codec.json_values(response, codec.OutputForms(default_is_binary=True)) == 0


@pytest.mark.parametrize("item", [b"[]", b"{}"])
def test_millions_of_lists_are_refused_before_they_are_made(item: bytes) -> None:
    """The parser would hold everybody up for seconds."""
    with pytest.raises(MalformedBody, match=r"1048577 lists and objects, at most 1048576"):
        parse_request(_body(b"[" + b",".join([item] * (2**20 - 4)) + b"]"))

    accepted = parse_request(_body(b"[" + b",".join([item] * (2**20 - 5)) + b"]"))
    assert len(accepted.inputs[0].data) == 2**20 - 5


def test_long_text_that_is_no_json_is_refused_at_once() -> None:
    """Nothing is made of its numbers."""
    with pytest.raises(MalformedBody, match="not JSON: Input data was truncated"):
        parse_request(b'{"inputs":[{"data":[' + _PAD)
