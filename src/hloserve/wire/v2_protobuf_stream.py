"""V2 messages of `ModelStreamInfer` in protobuf, both ways.

What lives here: answers on a stream, and whose an unreadable request is. What does not: requests,
which are those of ModelInfer (`hloserve.wire.v2_protobuf`), and streams themselves (`server`,
`client`). Stateless; any thread.

Rules.
1. Every answer is the last one of its request, and says so: `triton_final_response` is true.
2. An error has a text that is not empty, because clients tell it from an answer by that, and the
   request's id where there is one.

Source: Triton's protocol, ModelStreamInferResponse, and its parameters extension.
"""

from typing import NamedTuple

from google.protobuf.message import DecodeError

from hloserve.core.errors import BadRequest, Code, MalformedBody
from hloserve.core.requests import InferResponse, Parameter
from hloserve.wire.protobuf_fields import length_delimited, split_fields, varint
from hloserve.wire.protos import inference_pb2
from hloserve.wire.status import code_of, grpc_code
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf import decode_infer_response, encode_infer_response

__all__ = [
    "RequestNames",
    "StreamAnswer",
    "check_stream_parameters",
    "decode_stream_answer",
    "encode_stream_answer",
    "encode_stream_error",
    "names_of_request",
]

_ERROR, _RESPONSE = 1, 2
_MODEL, _VERSION, _ID = 1, 2, 3

_FINAL = "triton_final_response"
_STATUS = "grpc_status"
"""Of an error, beyond the protocol, whose errors have a text only."""

_EMPTY_FINAL = "triton_enable_empty_final_response"


def _final_field() -> bytes:
    message = inference_pb2.ModelInferResponse()
    message.parameters[_FINAL].bool_param = True
    return message.SerializeToString()


_FINAL_FIELD = _final_field()
_RESPONSE_TAG = varint(_RESPONSE << 3 | 2)


class RequestNames(NamedTuple):
    """What a client needs to know its request again."""

    model: str
    version: str
    id: str


class StreamAnswer(NamedTuple):
    """One answer on a stream, as a client reads it.

    Attributes:
        id: of the request; empty when the server could not read it.
        response: None when there is an error.
        text: what went wrong.
        code: its status; None from servers that tell none.
    """

    id: str
    response: InferResponse | None
    text: str = ""
    code: Code | None = None


def encode_stream_answer(response: InferResponse) -> bytes:
    """Write the one answer of a request.

    Raises:
        BadRequest: it is larger than a protobuf message can be.
    """
    inner = encode_infer_response(response)
    return b"".join((_RESPONSE_TAG, varint(len(inner) + len(_FINAL_FIELD)), inner, _FINAL_FIELD))


def encode_stream_error(names: RequestNames, code: Code, text: str) -> bytes:
    """Write that a request has failed."""
    inner = inference_pb2.ModelInferResponse(
        model_name=names.model, model_version=names.version, id=names.id
    )
    inner.parameters[_FINAL].bool_param = True
    inner.parameters[_STATUS].int64_param = grpc_code(code)
    error = length_delimited(_ERROR, (text or code.value).encode("utf-8", "replace"))
    return error + length_delimited(_RESPONSE, inner.SerializeToString())


def names_of_request(body: ByteString) -> RequestNames:
    """As much as can be read of a ModelInferRequest that has failed, perhaps to be read."""
    try:
        fields = split_fields(body, _ID)
    except MalformedBody:
        return RequestNames("", "", "")
    texts = [
        b"" if (records := fields[number]) is None else bytes(records[-1])
        for number in (_MODEL, _VERSION, _ID)
    ]
    return RequestNames(*(text.decode("utf-8", "replace") for text in texts))


def check_stream_parameters(parameters: dict[str, Parameter]) -> None:
    """Take what concerns the stream out of a request's parameters.

    Whether an empty last answer is wanted makes no difference: an answer that has outputs is the
    last one already, as Triton has it for models that are not decoupled.

    Raises:
        BadRequest: it is no boolean.
    """
    wanted = parameters.pop(_EMPTY_FINAL, False)
    if type(wanted) is not bool:
        raise BadRequest(f"parameter {_EMPTY_FINAL!r} is {wanted!r}; it must be a boolean")


def decode_stream_answer(body: ByteString) -> StreamAnswer:
    """Read a ModelStreamInferResponse.

    Raises:
        BadRequest: it is not one, or an output does not fit what is announced about it.
    """
    fields = split_fields(body, _RESPONSE)
    errors, responses = fields[_ERROR], fields[_RESPONSE]
    inner: ByteString = b"" if responses is None else responses[-1]
    text = "" if errors is None else bytes(errors[-1]).decode("utf-8", "replace")
    if not text:
        response = decode_infer_response(inner)
        return StreamAnswer(response.id, response)
    try:
        about = inference_pb2.ModelInferResponse.FromString(bytes(inner))
    except DecodeError as error:
        raise MalformedBody(f"the response is not a valid protobuf message: {error}") from None
    code = code_of(about.parameters[_STATUS].int64_param) if _STATUS in about.parameters else None
    return StreamAnswer(about.id, None, text, code)
