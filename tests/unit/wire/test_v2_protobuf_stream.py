"""Answers on a stream, both ways, and against protobuf's own reader."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from hloserve.core.errors import BadRequest, Code
from hloserve.core.requests import InferRequest, InferResponse, Parameter
from hloserve.wire import v2_protobuf as codec
from hloserve.wire.v2_protobuf_stream import (
    RequestNames,
    check_stream_parameters,
    decode_stream_answer,
    encode_stream_answer,
    encode_stream_error,
    names_of_request,
)


def _response() -> InferResponse:
    return InferResponse("m", {"y": np.arange(6, dtype=np.float32).reshape(2, 3)}, "an id", "1")


def test_answer_is_that_of_a_call_and_says_that_it_is_the_last() -> None:
    """Triton's reader finds the same response in it, and `triton_final_response`."""
    theirs = service_pb2.ModelStreamInferResponse.FromString(encode_stream_answer(_response()))

    unary = service_pb2.ModelInferResponse.FromString(codec.encode_infer_response(_response()))
    assert theirs.error_message == ""
    assert theirs.infer_response.parameters["triton_final_response"].bool_param
    del theirs.infer_response.parameters["triton_final_response"]
    assert unary == theirs.infer_response


def test_answer_comes_back() -> None:
    """What is written is read."""
    answer = decode_stream_answer(encode_stream_answer(_response()))

    assert answer.response is not None
    assert ("an id", "", None) == (answer.id, answer.text, answer.code)
    np.testing.assert_array_equal(_response().outputs["y"], answer.response.outputs["y"])


@pytest.mark.parametrize(("text", "expected"), [("it broke", "it broke"), ("", "NOT_FOUND")])
def test_error_names_its_request(text: str, expected: str) -> None:
    """The text is never empty: clients tell an error by it."""
    message = encode_stream_error(RequestNames("m", "1", "7"), Code.NOT_FOUND, text)

    theirs = service_pb2.ModelStreamInferResponse.FromString(message)
    ours = decode_stream_answer(message)
    inner = theirs.infer_response
    assert expected == theirs.error_message
    assert ("m", "1", "7") == (inner.model_name, inner.model_version, inner.id)
    assert ("7", None, expected, Code.NOT_FOUND) == tuple(ours)


def test_error_of_another_server_has_no_status() -> None:
    """Triton sends the text and perhaps the id."""
    theirs = service_pb2.ModelStreamInferResponse(error_message="no")
    theirs.infer_response.id = "3"

    assert ("3", None, "no", None) == tuple(decode_stream_answer(theirs.SerializeToString()))


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x01e\x12\x01\xff", b"\x12\x01\xff"])
def test_answer_that_cannot_be_read_is_refused(message: bytes) -> None:
    """Whether it is the message or what is in it."""
    with pytest.raises(BadRequest):
        decode_stream_answer(message)


def test_names_are_found_in_any_request() -> None:
    """The last of equal fields counts; what is no text is shown as well as it can be."""
    good = codec.encode_infer_request(InferRequest("m", {}, id="a", version="1"))

    assert RequestNames("m", "1", "a") == names_of_request(good)
    assert RequestNames("m", "1", "b") == names_of_request(good + b"\x1a\x01b")
    assert names_of_request(b"\x1a\x01\xff").id == "�"
    assert RequestNames("", "", "") == names_of_request(good + b"\xff")


@pytest.mark.parametrize("wanted", [True, False])
def test_wish_for_an_empty_last_answer_is_taken_out(wanted: bool) -> None:
    """It concerns the stream, and other parameters stay."""
    parameters: dict[str, Parameter] = {"triton_enable_empty_final_response": wanted, "other": 1}

    check_stream_parameters(parameters)

    assert {"other": 1} == parameters


@pytest.mark.parametrize("wanted", [1, "true", 0.5])
def test_wish_that_is_no_boolean_is_refused(wanted: int | str | float) -> None:
    """The message has the value."""
    with pytest.raises(BadRequest, match="boolean"):
        check_stream_parameters({"triton_enable_empty_final_response": wanted})
