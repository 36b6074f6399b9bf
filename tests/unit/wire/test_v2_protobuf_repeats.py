"""Messages like the last one are read and written as the full codec would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.errors import BadRequest, MalformedBody
from hloserve.core.requests import NEVER_NS, InferRequest, InferResponse
from hloserve.core.tensors import Array, Tensors
from hloserve.wire.v2_protobuf import (
    decode_infer_request,
    decode_infer_response,
    encode_infer_request,
    encode_infer_response,
)
from hloserve.wire.v2_protobuf_repeats import repeat_of


def message(value: float, request_id: str = "", model: str = "m", rows: int = 2) -> bytes:
    """A request of two inputs."""
    x = np.full((rows, 3), value, np.float32)
    inputs: Tensors = {"x": x, "k": np.arange(rows)}
    return bytes(encode_infer_request(InferRequest(model, inputs, request_id, outputs=("y",))))


def learn(model: str) -> None:
    """Have the codec see the same kind of message until it knows it."""
    for _ in range(3):
        decode_infer_request(message(0, "a", model), 0)


def test_messages_are_recognised_from_the_third_on() -> None:
    """A pattern is kept once it was seen twice in a row."""
    seen = [repeat_of(message(n, model="thrice"), NEVER_NS) is not None for n in range(2)]
    for n in range(2):
        decode_infer_request(message(n, model="thrice"), 0)

    assert seen == [False, False]
    assert repeat_of(message(2, model="thrice"), NEVER_NS) is not None


@pytest.mark.parametrize("request_id", ["", "1", "another id", "é" * 40, "x" * 127, "x" * 128])
def test_repeat_says_what_the_full_codec_says(request_id: str) -> None:
    """Id, outputs, deadline and every element come out as if read in full."""
    learn("same")
    request = decode_infer_request(message(7.5, request_id, "same"), 0, 123)

    assert request.model == "same"
    assert request.id == request_id
    assert request.outputs == ("y",)
    assert request.deadline_ns == 123
    assert list(request.inputs) == ["x", "k"]
    np.testing.assert_array_equal(np.full((2, 3), 7.5, np.float32), request.inputs["x"])
    np.testing.assert_array_equal([0, 1], request.inputs["k"])
    assert request.inputs["k"].dtype == np.int64


def test_other_shapes_and_names_are_read_in_full() -> None:
    """What is not of the pattern is not squeezed into it."""
    learn("other")

    assert decode_infer_request(message(1, model="other", rows=5), 0).inputs["x"].shape == (5, 3)
    assert repeat_of(message(1, model="other2"), NEVER_NS) is None


@given(st.data())
def test_damaged_repeats_are_never_taken_for_good_ones(data: st.DataObject) -> None:
    """A message with any one byte changed is read, or refused, just as without the patterns."""
    learn("bytes")
    body = bytearray(message(1, "id", "bytes"))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    repeat = repeat_of(bytes(body), NEVER_NS)
    if repeat is None:
        return

    # It may differ in the id and the elements only.
    assert (repeat.model, repeat.outputs, list(repeat.inputs)) == ("bytes", ("y",), ["x", "k"])
    assert len(encode_infer_request(repeat)) == len(body)
    assert bytes(encode_infer_request(repeat)) == bytes(body)


@given(st.integers(0, 400))
def test_cut_repeats_are_refused(length: int) -> None:
    """A message that ends early does not become a shorter tensor."""
    learn("cut")
    body = message(1, "id", "cut")
    cut = body[: min(length, len(body) - 1)]

    assert repeat_of(cut, NEVER_NS) is None
    try:
        request = decode_infer_request(cut, 0)
    except (BadRequest, MalformedBody):
        return
    assert not request.inputs  # cut between two fields, before the first tensor


def test_bad_utf8_in_the_id_is_refused_in_a_repeat_too() -> None:
    """The quick way does not let through what the full one refuses."""
    learn("utf8")
    body = message(1, "id", "utf8").replace(b"\x1a\x02id", b"\x1a\x02\xff\xfe")

    with pytest.raises(MalformedBody, match="UTF-8"):
        decode_infer_request(body, 0)


def test_bool_bytes_are_checked_in_every_message() -> None:
    """Bytes other than 0 and 1 are refused however often the message was seen."""
    good = bytes(encode_infer_request(InferRequest("flags", {"b": np.array([True, False])})))
    for _ in range(4):
        decode_infer_request(good, 0)

    with pytest.raises(BadRequest):
        decode_infer_request(good[:-1] + b"\x02", 0)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.float32(3),
        np.zeros((0, 3), np.float32),
    ],
)
def test_answers_like_the_last_one_are_written_the_same(array: Array) -> None:
    """Layout, byte order and ids do not change what is sent."""
    array = np.asarray(array)
    for request_id in ("", "1", "é", "x" * 200, ""):
        for offset in (0, 1):
            response = InferResponse("w", {"y": array + array.dtype.type(offset)}, request_id)
            back = decode_infer_response(encode_infer_response(response))
            assert back.id == request_id
            np.testing.assert_array_equal(array + offset, back.outputs["y"])
            assert back.outputs["y"].dtype == np.float32
