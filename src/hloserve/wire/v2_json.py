"""V2 inference messages in JSON, with the binary tensor extension, on the server's side.

What lives here: the infer request and response. What does not: what follows the JSON
(`hloserve.wire.v2_json_binary`), numbers (`v2_json_numbers` reads, `v2_json_writing` writes), the
other answers (`hloserve.wire.v2_json_calls`), HTTP, and checks against a model's specs
(`hloserve.server`). Stateless; any thread.

Rules.
1. Unknown members are ignored; known ones have the type of the specification, or are null, which
   means absent.
2. The header's length decides where JSON ends. Binary tensors follow in the order in which their
   tensors appear, without gaps, and nothing follows on them.
3. What leaves is always JSON by RFC 8259. NaN and infinities become null unless asked otherwise.
4. `binary_data_output` is the default of every output, listed or not; `binary_data` overrides it.

Source: V2 protocol, "Inference Request/Response"; binary tensor data extension.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from hloserve.core.dtypes import DTYPES, by_numpy
from hloserve.core.errors import BadRequest, DuplicateTensor, MalformedBody
from hloserve.core.requests import (
    InferRequest,
    InferResponse,
    Parameter,
    SharedTensor,
    SharedTensors,
)
from hloserve.core.tensors import Array, Tensors
from hloserve.wire.tensor_bytes import (
    ByteString,
    array_from_bytes,
    bytes_of,
    check_shape,
    known_dtype,
)
from hloserve.wire.v2_json_binary import (
    LENGTH_HEADER,
    decode_raw_input,
    parse_length,
    take_binary,
)
from hloserve.wire.v2_json_calls import (
    encode_error,
    encode_index,
    encode_live,
    encode_model_metadata,
    encode_model_ready,
    encode_ready,
    encode_server_metadata,
)
from hloserve.wire.v2_json_numbers import array_from_json
from hloserve.wire.v2_json_writing import NonFinite, encode_message, json_from_array
from hloserve.wire.v2_parameters import refuse_output_parameters, take_deadline
from hloserve.wire.v2_shared_memory import parameters_of, placement_of, shared_tensor

__all__ = [
    "LENGTH_HEADER",
    "OutputForms",
    "decode_infer_request",
    "decode_raw_input",
    "encode_error",
    "encode_index",
    "encode_infer_response",
    "encode_live",
    "encode_model_metadata",
    "encode_model_ready",
    "encode_ready",
    "encode_server_metadata",
]

Parameters: TypeAlias = dict[str, bool | int | float | str]


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters | None = None
    data: Any = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: Parameters | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[_Output] | None = None


class _FlatInput(_Input):
    data: list[int | float] | msgspec.UnsetType = msgspec.UNSET


class _FlatRequest(_Request):
    inputs: list[_FlatInput]  # type: ignore[assignment]  # read only


_decoder = msgspec.json.Decoder(_Request)
_flat_decoder = msgspec.json.Decoder(_FlatRequest)
"""The common case: its success proves that no bool is among the numbers, at no cost."""

_DATATYPES = {dtype.numpy: dtype.kserve for dtype in DTYPES if dtype.kserve is not None}


@dataclass(slots=True)
class OutputForms:
    """How the answer shall be encoded, and what of the request only the model can explain.

    Attributes:
        default_is_binary: the form of outputs that `is_binary` does not name.
        is_binary: the form of single outputs.
        raw: the body of a raw request, whose `InferRequest.inputs` is empty until
            `decode_raw_input` has interpreted it by the model's specs; None for all others.
    """

    default_is_binary: bool = False
    is_binary: dict[str, bool] = field(default_factory=dict)
    raw: ByteString | None = None


def decode_infer_request(
    model: str,
    version: str,
    body: ByteString,
    header_length: str | None,
    now_ns: int,
    deadline_ns: int,
) -> tuple[InferRequest, OutputForms]:
    """Read an infer request.

    Args:
        model: from the path.
        version: from the path; empty when it names none.
        body: the whole body, decompressed.
        header_length: the value of `LENGTH_HEADER`; None when it is absent.
        now_ns: this process's monotonic clock at arrival; budgets in the parameters count from it.
        deadline_ns: what the transport knows of the caller's deadline.

    Returns:
        The request, whose arrays are read-only and may be views of `body`; and how to answer.

    Raises:
        BadRequest: the request can never succeed; the message names the tensor.
        NotImplementedYet: an output shall be classified.
    """
    json_bytes = len(body) if header_length is None else parse_length(header_length, len(body))
    if not json_bytes and header_length is not None:
        raw_request = InferRequest(model, {}, "", version, deadline_ns=deadline_ns)
        return raw_request, OutputForms(default_is_binary=True, raw=body)
    text = body if json_bytes == len(body) else body[:json_bytes]
    message = _parse(text)
    request = InferRequest(model, {}, message.id or "", version, deadline_ns=deadline_ns)
    forms = OutputForms()
    shared = SharedTensors()
    position = json_bytes
    for tensor in message.inputs:
        if tensor.name in request.inputs or tensor.name in shared.inputs:
            raise DuplicateTensor(f"input {tensor.name!r}")
        if not tensor.parameters:
            _read_json(tensor, request.inputs)
        elif not _read_shared(tensor, shared):
            position += _read_with_parameters(tensor, request.inputs, body, position, header_length)
    if position != len(body):
        raise MalformedBody(
            f"{len(body) - position} bytes are left after the last binary tensor; the"
            " binary_data_size parameters must add up to what follows the JSON",
            position,
        )
    if message.parameters:
        parameters: dict[str, Parameter] = message.parameters
        forms.default_is_binary = _take_flag(parameters, "binary_data_output", "request") or False
        request.deadline_ns = take_deadline(parameters, now_ns, deadline_ns)
        request.parameters = parameters
    if message.outputs:
        request.outputs = _read_outputs(message.outputs, forms.is_binary, shared)
    if shared.inputs or shared.outputs:
        request.shared = shared
    return request, forms


# One token or one whole string, so that a token inside a string stays what it is.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?(?:NaN|Infinity)', re.DOTALL)


def _quote_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return token if token[:1] == b'"' else b'"%b"' % token


def _parse(text: ByteString) -> _Request:
    """Parse JSON; bare NaN and Infinity, which many clients write, are taken as strings."""
    try:
        return _flat_decoder.decode(text)
    except msgspec.ValidationError:
        return _parse_general(text, text)
    except msgspec.DecodeError as error:
        quoted = _quote_tokens(text)
        if quoted is None:
            raise _not_json(error, len(text)) from error
        return _parse_general(quoted, text)
    except (RecursionError, UnicodeError) as error:
        raise _not_json(error, len(text)) from error


def _parse_general(text: ByteString, original: ByteString) -> _Request:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        if text is original and (quoted := _quote_tokens(text)) is not None:
            return _parse_general(quoted, original)
        raise _not_json(error, len(original)) from error


def _quote_tokens(text: ByteString) -> bytes | None:
    whole = bytes(text)
    if b"NaN" not in whole and b"Infinity" not in whole:
        return None
    return _TOKENS.sub(_quote_token, whole)


def _not_json(error: Exception, text_bytes: int) -> MalformedBody:
    if not text_bytes:
        return MalformedBody("the body is empty; an infer request is a JSON object with inputs")
    if isinstance(error, msgspec.ValidationError):
        return MalformedBody(f"the JSON is not an infer request: {error}")
    if isinstance(error, RecursionError):
        return MalformedBody("the JSON is nested too deeply")
    return MalformedBody(f"the body is not JSON: {error}")


def _read_json(tensor: _Input, arrays: Tensors) -> None:
    name = tensor.name
    dtype = known_dtype(name, tensor.datatype)
    elements = check_shape(name, dtype, tensor.shape)
    if tensor.data is msgspec.UNSET:
        raise BadRequest(
            f"input {name!r} has no data; send data, or binary_data_size and the bytes after the"
            " JSON"
        )
    is_numbers = type(tensor) is _FlatInput
    arrays[name] = array_from_json(name, dtype, tensor.shape, elements, tensor.data, is_numbers)


def _read_shared(tensor: _Input, shared: SharedTensors) -> bool:
    """Read an input whose parameters place it in shared memory; False when they do not."""
    name, role = tensor.name, f"input {tensor.name!r}"
    parameters = tensor.parameters or {}
    placement = placement_of(role, parameters)
    if placement is None:
        return False
    if tensor.data is not msgspec.UNSET or "binary_data_size" in parameters:
        raise BadRequest(f"{role} has data and is in shared memory; send one of them")
    dtype = known_dtype(name, tensor.datatype)
    nbytes = check_shape(name, dtype, tensor.shape) * dtype.itemsize
    shared.inputs[name] = shared_tensor(role, dtype, tuple(tensor.shape), nbytes, placement)
    return True


def _read_with_parameters(
    tensor: _Input, arrays: Tensors, body: ByteString, position: int, header_length: str | None
) -> int:
    """Read an input that has parameters; returns how many bytes of the binary part it took."""
    name = tensor.name
    parameters = tensor.parameters or {}
    if "binary_data_size" not in parameters:
        _read_json(tensor, arrays)
        return 0
    if tensor.data is not msgspec.UNSET:
        raise BadRequest(f"input {name!r} has data and binary_data_size; send one of them")
    if header_length is None:
        raise MalformedBody(
            f"input {name!r} has binary_data_size, but the header {LENGTH_HEADER} is missing"
        )
    data = take_binary(name, parameters["binary_data_size"], body, position)
    dtype = known_dtype(name, tensor.datatype)
    arrays[name] = array_from_bytes(name, dtype, tensor.shape, data)
    return len(data)


def _take_flag(parameters: dict[str, Parameter], key: str, where: str) -> bool | None:
    flag = parameters.pop(key, None)
    if flag is not None and type(flag) is not bool:
        raise BadRequest(f"{where}: parameter {key} is {flag!r}; it must be true or false")
    return flag


def _read_outputs(
    outputs: Sequence[_Output], is_binary: dict[str, bool], shared: SharedTensors
) -> tuple[str, ...]:
    names: list[str] = []
    for output in outputs:
        if output.name in names:
            raise DuplicateTensor(f"output {output.name!r}")
        names.append(output.name)
        if output.parameters:
            where = f"output {output.name!r}"
            refuse_output_parameters(where, output.parameters)
            placement = placement_of(where, output.parameters)
            if placement is not None:
                shared.outputs[output.name] = placement
            flag = _take_flag(output.parameters, "binary_data", where)
            if flag is not None:
                is_binary[output.name] = flag
    return tuple(names)


def encode_infer_response(
    response: InferResponse, forms: OutputForms, non_finite: NonFinite = "null"
) -> tuple[bytes, str, int | None]:
    """Write an infer response.

    Args:
        response: what to send; its arrays are not referenced after the call.
        forms: from the request.
        non_finite: how NaN and infinities are written in JSON: null, or as the strings "NaN",
            "Infinity" and "-Infinity".

    Returns:
        The body, its content type, and the value of `LENGTH_HEADER` when a tensor is binary.
    """
    message: dict[str, Any] = {"model_name": response.model}
    if response.version:
        message["model_version"] = response.version
    if response.id:
        message["id"] = response.id
    binary: list[bytes | memoryview] = []
    shared = response.shared or {}
    message["outputs"] = [
        _describe_shared(name, shared[name])
        if name in shared
        else _describe_output(name, array, forms, binary, non_finite)
        for name, array in response.outputs.items()
    ]
    text = encode_message(message)
    if not binary:
        return text, "application/json", None
    return b"".join((text, *binary)), "application/octet-stream", len(text)


def _describe_output(
    name: str,
    array: Array,
    forms: OutputForms,
    binary: list[bytes | memoryview],
    non_finite: NonFinite,
) -> Mapping[str, Any]:
    datatype = _DATATYPES.get(array.dtype)
    described: dict[str, Any] = {
        "name": name,
        "datatype": by_numpy(array.dtype).kserve if datatype is None else datatype,
        "shape": array.shape,
    }
    if forms.is_binary.get(name, forms.default_is_binary):
        data = bytes_of(array)
        described["parameters"] = {"binary_data_size": len(data)}
        binary.append(data)
    else:
        described["data"] = json_from_array(array, non_finite)
    return described


def _describe_shared(name: str, tensor: SharedTensor) -> Mapping[str, Any]:
    """An output whose bytes are in shared memory: it has no data."""
    return {
        "name": name,
        "datatype": tensor.dtype.kserve,
        "shape": tensor.shape,
        "parameters": parameters_of(tensor.placement),
    }
