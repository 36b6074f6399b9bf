"""V2 inference messages in JSON, with the binary tensor extension, on the server's side.

What lives here: the infer request and response. What does not: the text of a request
(`hloserve.wire.v2_json_parsing`), what follows it (`hloserve.wire.v2_json_binary`), values
(`v2_json_numbers` reads, `v2_json_writing` writes), the other answers
(`hloserve.wire.v2_json_calls`), HTTP, and checks against a model's specs (`hloserve.server`).
Stateless; any thread.

Rules.
1. The header's length decides where JSON ends. Binary tensors follow in the order in which their
   tensors appear, without gaps, and nothing follows on them.
2. What leaves is always JSON by RFC 8259. NaN and infinities become null unless asked otherwise,
   and strings that are not UTF-8 are refused.
3. `binary_data_output` is the default of every output, listed or not; `binary_data` overrides it.

Source: V2 protocol, "Inference Request/Response"; binary tensor data extension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hloserve.core.dtypes import BYTES, DTYPES, of_wire
from hloserve.core.errors import BadRequest, DuplicateTensor, MalformedBody
from hloserve.core.requests import (
    InferRequest,
    InferResponse,
    Parameter,
    SharedTensor,
    SharedTensors,
)
from hloserve.core.tensors import Array, Tensors
from hloserve.wire.strings import check_count
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
    stated_length,
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
from hloserve.wire.v2_json_numbers import array_from_json, quick_array
from hloserve.wire.v2_json_parsing import FlatInput, Input, Output, parse_request
from hloserve.wire.v2_json_writing import NonFinite, encode_message, json_from_array
from hloserve.wire.v2_parameters import classes_of, take_deadline, take_priority
from hloserve.wire.v2_shared_memory import placement_of, shared_tensor

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
    "json_values",
    "stated_length",
]

_DATATYPES = {dtype.numpy: dtype.kserve for dtype in (*DTYPES, BYTES) if dtype.kserve is not None}

_MAX_TENSORS = 16384
"""More than any real request has, as in protobuf."""


@dataclass(slots=True)
class OutputForms:
    """How the answer shall be encoded, and what of the request only the model can explain.

    Attributes:
        default_is_binary: the form of outputs that `is_binary` does not name.
        is_binary: the form of single outputs.
        non_finite: how NaN and infinities are written in JSON.
        raw: the body of a raw request, whose `InferRequest.inputs` is empty until
            `decode_raw_input` has interpreted it by the model's specs; None for all others.
    """

    default_is_binary: bool = False
    is_binary: dict[str, bool] = field(default_factory=dict)
    non_finite: NonFinite = "null"
    raw: ByteString | None = None


_ALL_JSON = OutputForms()
"""Of requests that do not say how they want to be answered. Never changed."""


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
    """
    json_bytes = len(body) if header_length is None else parse_length(header_length, len(body))
    if not json_bytes and header_length is not None:
        raw_request = InferRequest(model, {}, "", version, deadline_ns=deadline_ns)
        return raw_request, OutputForms(default_is_binary=True, raw=body)
    text = body if json_bytes == len(body) else body[:json_bytes]
    message = parse_request(text)
    request = InferRequest(model, {}, message.id or "", version, deadline_ns=deadline_ns)
    position = _read_inputs(message.inputs, request, body, json_bytes, header_length)
    if position != len(body):
        raise MalformedBody(
            f"{len(body) - position} bytes are left after the last binary tensor; the"
            " binary_data_size parameters must add up to what follows the JSON",
            position,
        )
    if not message.parameters and not message.outputs:
        return request, _ALL_JSON
    forms = OutputForms()
    if message.parameters:
        parameters: dict[str, Parameter] = message.parameters
        forms.default_is_binary = _take_flag(parameters, "binary_data_output", "request") or False
        forms.non_finite = _take_non_finite(parameters)
        request.deadline_ns = take_deadline(parameters, now_ns, deadline_ns)
        request.priority = take_priority(parameters)
        request.parameters = parameters
    if message.outputs:
        _read_outputs(message.outputs, request, forms.is_binary)
    return request, forms


def _read_inputs(
    inputs: Sequence[Input],
    request: InferRequest,
    body: ByteString,
    position: int,
    header_length: str | None,
) -> int:
    """Read all inputs; returns where the binary part behind `position` ends."""
    arrays = request.inputs
    if len(inputs) > _MAX_TENSORS:
        raise BadRequest(f"the request has {len(inputs)} inputs; at most {_MAX_TENSORS} are read")
    strings = 0
    for tensor in inputs:
        name = tensor.name
        if name in arrays or (request.shared is not None and name in request.shared.inputs):
            raise DuplicateTensor(f"input {name!r}")
        if not tensor.parameters:
            _read_json(tensor, arrays)
        elif not _read_shared(tensor, request):
            position += _read_with_parameters(tensor, arrays, body, position, header_length)
        if tensor.datatype == "BYTES" and name in arrays:
            strings += arrays[name].size
            check_count(f"input {name!r}", strings)
    return position


def _read_json(tensor: Input, arrays: Tensors) -> None:
    name, data = tensor.name, tensor.data
    is_numbers = type(tensor) is FlatInput
    if (
        is_numbers
        and (array := quick_array(tensor.datatype, tuple(tensor.shape), data)) is not None
    ):
        arrays[name] = array
        return
    dtype = known_dtype(name, tensor.datatype)
    elements = check_shape(name, dtype, tensor.shape)
    if data is msgspec.UNSET:
        raise BadRequest(
            f"input {name!r} has no data; send data, or binary_data_size and the bytes after the"
            " JSON"
        )
    arrays[name] = array_from_json(name, dtype, tensor.shape, elements, data, is_numbers)


def _read_shared(tensor: Input, request: InferRequest) -> bool:
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
    inputs = _shared_of(request).inputs
    inputs[name] = shared_tensor(role, dtype, tuple(tensor.shape), nbytes, placement)
    return True


def _shared_of(request: InferRequest) -> SharedTensors:
    """What of a request lies in shared memory, to be added to."""
    if request.shared is None:
        request.shared = SharedTensors()
    return request.shared


def _read_with_parameters(
    tensor: Input, arrays: Tensors, body: ByteString, position: int, header_length: str | None
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


def _take_non_finite(parameters: dict[str, Parameter]) -> NonFinite:
    form = parameters.pop("non_finite", "null")
    if form == "null":
        return "null"
    if form == "string":
        return "string"
    raise BadRequest(f"request: parameter non_finite is {form!r}; it must be 'null' or 'string'")


def _read_outputs(
    outputs: Sequence[Output], request: InferRequest, is_binary: dict[str, bool]
) -> None:
    if len(outputs) > _MAX_TENSORS:
        raise BadRequest(f"the request has {len(outputs)} outputs; at most {_MAX_TENSORS} are read")
    names: dict[str, None] = {}
    for output in outputs:
        name, parameters = output.name, output.parameters
        if name in names:
            raise DuplicateTensor(f"output {name!r}")
        names[name] = None
        if not parameters:
            continue
        where = f"output {name!r}"
        if count := classes_of(where, parameters):
            request.classes = {**(request.classes or {}), name: count}
        placement = placement_of(where, parameters)
        if placement is not None:
            _shared_of(request).outputs[name] = placement
        flag = _take_flag(parameters, "binary_data", where)
        if flag is not None:
            is_binary[name] = flag
    request.outputs = tuple(names)


def json_values(response: InferResponse, forms: OutputForms) -> int:
    """How many values of the outputs are written as JSON."""
    shared = response.shared or {}
    return sum(
        array.size
        for name, array in response.outputs.items()
        if name not in shared and not forms.is_binary.get(name, forms.default_is_binary)
    )


def encode_infer_response(
    response: InferResponse, forms: OutputForms
) -> tuple[bytes, str, int | None]:
    """Write an infer response.

    Args:
        response: what to send; its arrays are not referenced after the call.
        forms: from the request.

    Returns:
        The body, its content type, and the value of `LENGTH_HEADER` when a tensor is binary.

    Raises:
        BadRequest: JSON cannot carry an output: a string of it is not UTF-8.
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
        else _describe_output(name, array, forms, binary)
        for name, array in response.outputs.items()
    ]
    text = encode_message(message)
    if not binary:
        return text, "application/json", None
    return b"".join((text, *binary)), "application/octet-stream", len(text)


def _describe_output(
    name: str, array: Array, forms: OutputForms, binary: list[bytes | memoryview]
) -> Mapping[str, Any]:
    datatype = _DATATYPES.get(array.dtype) or of_wire(array.dtype).kserve
    if not forms.is_binary.get(name, forms.default_is_binary):
        data = json_from_array(name, array, forms.non_finite)
        return {"name": name, "datatype": datatype, "shape": array.shape, "data": data}
    binary.append(bytes_of(array))
    parameters = {"binary_data_size": len(binary[-1])}
    return {"name": name, "datatype": datatype, "shape": array.shape, "parameters": parameters}


def _describe_shared(name: str, tensor: SharedTensor) -> Mapping[str, Any]:
    """An output whose bytes are in shared memory: it has no data.

    Nor parameters, as in Triton's answers: its C++ client, and so perf_analyzer, fails at an output
    whose parameters lack binary_data_size.
    """
    return {"name": name, "datatype": tensor.dtype.kserve, "shape": tensor.shape}
