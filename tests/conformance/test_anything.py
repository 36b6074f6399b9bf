"""Whatever a client sends, the fault is said to be the client's: no 500, no traceback, no hang."""

import json
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.conformance_worker import MODELS, Answer, Asker, tensor
from tritonclient.grpc import service_pb2

from hloserve.core.dtypes import BYTES

SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LENGTH = "Inference-Header-Content-Length"
NAMES = st.sampled_from(["x", "text", "y", "a", "b", "", "é"])
MODEL_NAMES = st.sampled_from([*MODELS, "two", "scalar", "text", "labelled"])
DATATYPES = st.sampled_from([dtype.kserve for dtype in (*MODELS.values(), BYTES)])
EXTENTS = st.integers(0, 4) | st.sampled_from([-1, 2**31, 2**62, 2**63])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([0, 1, 300, "NaN", "-Infinity", 1e39]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            *("binary_data_size", "binary_data", "classification", "priority", "timeout"),
            *("shared_memory_region", "shared_memory_byte_size", "non_finite"),
            *("binary_data_output", "sequence_id", "reactant_timeout_ns"),
        ]
    ),
    st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.sampled_from([1, 12, "string", "r", 0.5]),
    max_size=3,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "datatype": DATATYPES | st.text(max_size=5),
        "shape": st.lists(EXTENTS, max_size=4),
    },
    optional={"data": st.lists(VALUES, max_size=6) | VALUES, "parameters": PARAMETERS},
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3)},
    optional={
        "id": st.text(max_size=5),
        "parameters": PARAMETERS,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": NAMES}, optional={"parameters": PARAMETERS}), max_size=3
        ),
    },
)


def is_fair(answer: Answer) -> None:
    """A result, or a refusal in the one shape of errors."""
    assert answer.status < 500 or answer.status == 504, answer.body
    if answer.status != 200:
        assert list(answer.json) == ["error"]
        assert answer.json["error"]
        assert "Traceback" not in answer.json["error"]
    elif answer.headers["content-type"] == "application/json":
        assert answer.json is not None, "an answer that is no JSON"


@SETTINGS
@given(MODEL_NAMES, BODIES, st.binary(max_size=20), st.booleans())
def test_any_infer_request_over_rest(
    asker: Asker, model: str, body: Any, rest: bytes, is_binary: bool
) -> None:
    """Well-formed and wrong in every other way, with and without binary tensors behind."""
    text = json.dumps(body).encode()
    headers = {LENGTH: str(len(text))} if is_binary else {}

    is_fair(asker.infer(model, text + (rest if is_binary else b""), headers))


@SETTINGS
@given(MODEL_NAMES, st.binary(max_size=60), st.none() | st.text("0123456789abc", max_size=3))
def test_any_bytes_over_rest(asker: Asker, model: str, body: bytes, length: str | None) -> None:
    """Also as raw body, whose bytes are a tensor."""
    is_fair(asker.infer(model, body, {} if length is None else {LENGTH: length}))


HEADERS = st.dictionaries(
    st.sampled_from(
        [LENGTH, "Content-Encoding", "Accept-Encoding", "Content-Type", "Accept", "Expect", "Host"]
    ),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=12)
    | st.sampled_from(["gzip", "deflate", "identity", "gzip;q=x", "100-continue", "9" * 5000])
    | st.integers(-1, 200).map(str),
)


@SETTINGS
@given(HEADERS)
def test_any_header_over_rest(asker: Asker, headers: dict[str, str]) -> None:
    """Values of all bytes, and numbers of any length, of each header that is read."""
    is_fair(asker.infer("f32", tensor("FP32", [1, 3], [1, 2, 3]), headers))


@st.composite
def rpcs(draw: st.DrawFn) -> service_pb2.ModelInferRequest:
    """A ModelInferRequest with anything in it."""
    request = service_pb2.ModelInferRequest(
        model_name=draw(MODEL_NAMES), id=draw(st.text(max_size=5))
    )
    for _ in range(draw(st.integers(0, 3))):
        tensor = request.inputs.add(name=draw(NAMES), datatype=draw(DATATYPES))
        tensor.shape.extend(draw(st.lists(st.integers(-1, 4) | st.just(2**62), max_size=4)))
        field = draw(st.sampled_from(["", "fp32", "int", "bytes", "bool", "uint64"]))
        if field == "bytes":
            tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=5), max_size=4)))
        elif field:
            getattr(tensor.contents, f"{field}_contents").extend(
                draw(st.lists(st.integers(0, 1), max_size=4))
            )
        _set(tensor.parameters, draw(PARAMETERS))
    if draw(st.booleans()):
        request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=24), max_size=3)))
    for name in draw(st.lists(NAMES, max_size=2)):
        _set(request.outputs.add(name=name).parameters, draw(PARAMETERS))
    _set(request.parameters, draw(PARAMETERS))
    return request


def _set(parameters: Any, values: dict[str, Any]) -> None:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for key, value in values.items():
        setattr(parameters[key], kinds[type(value)], value)


@SETTINGS
@given(rpcs())
def test_any_infer_request_over_grpc(asker: Asker, request: service_pb2.ModelInferRequest) -> None:
    """Typed, raw or both, with any parameters."""
    code, text = asker.rpc(request)

    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), text
    if code is not grpc.StatusCode.OK:
        assert text
        assert "Traceback" not in text


@SETTINGS
@given(st.binary(max_size=80))
def test_any_bytes_over_grpc(asker: Asker, body: bytes) -> None:
    """What no protobuf library would send."""
    channel = grpc.insecure_channel(asker.grpc_address)
    with channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(body, timeout=20)

    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
