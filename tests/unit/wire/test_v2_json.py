"""V2 infer requests and responses in JSON and with binary tensors."""

import json
from typing import Any

import numpy as np
import pytest
from support.rest_json import binary_body, binary_tensor, body_of, decode, tensor

from hloserve.core.dtypes import F32 as F32_TYPE
from hloserve.core.errors import (
    BadRequest,
    MalformedBody,
)
from hloserve.core.requests import NEVER_NS, InferResponse, Placement, SharedTensor
from hloserve.core.tensors import Tensors
from hloserve.wire.v2_json import (
    OutputForms,
    decode_infer_request,
    encode_infer_response,
)

X = tensor([1, 2], [1, 2])
F32 = np.arange(4, dtype="<f4").tobytes()


def test_request_is_read_whole() -> None:
    """Every member that the protocol has arrives; others are ignored."""
    body = body_of(
        {**X, "extra": [{}]},
        tensor([True], [1], "BOOL", "y"),
        id="a1",
        parameters={"priority": 2, "note": "n", "sequence_id": 7, "scale": 0.5, "on": True},
        outputs=[{"name": "q", "more": 1}, {"name": "p", "parameters": {"binary_data": True}}],
        model_name="another",
        unknown={"deep": [1, [2]]},
    )

    request, forms = decode_infer_request("m", "3", body, None, 5, 100)

    assert (request.model, request.version, request.id) == ("m", "3", "a1")
    assert list(request.inputs) == ["x", "y"]
    assert request.inputs["x"].tolist() == [[1.0, 2.0]]
    assert request.outputs == ("q", "p")
    assert request.deadline_ns == 100
    assert request.priority == 2
    assert request.parameters == {"note": "n", "sequence_id": 7, "scale": 0.5, "on": True}
    assert forms == OutputForms(False, {"p": True})


def test_null_means_absent() -> None:
    """Clients that write every optional member as null are understood."""
    body = body_of({**X, "parameters": None}, id=None, parameters=None, outputs=None)

    request, forms = decode(body)

    assert (request.id, request.outputs, request.parameters) == ("", (), {})
    assert forms == OutputForms()


@pytest.mark.parametrize(
    ("parameters", "deadline_ns"),
    [
        ({}, 50_000),
        ({"timeout": 10}, 1000 + 10_000),
        ({"timeout": 60}, 50_000),
        ({"timeout": 0}, 50_000),
        ({"timeout": -5}, 50_000),
        ({"reactant_timeout_ns": 7}, 1007),
        ({"reactant_timeout_ns": 7, "timeout": 1}, 1007),
        ({"timeout": 10**30}, 50_000),
    ],
)
def test_budget_in_the_parameters_shortens_the_deadline(
    parameters: dict[str, int], deadline_ns: int
) -> None:
    """`timeout` counts microseconds from now; the earliest deadline counts."""
    request, _ = decode(body_of(X, parameters=parameters), now_ns=1000, deadline_ns=50_000)

    assert request.deadline_ns == deadline_ns
    assert request.parameters == {}


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "the body is empty"),
        (b"  ", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"hello", r"the body is not JSON: .*byte 0"),
        (b"[]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "missing required field `inputs`"),
        (b'{"inputs":{}}', r"Expected `array`, got `object` - at `\$.inputs`"),
        (b'{"inputs":[1]}', r"Expected `object`, got `int` - at `\$.inputs\[0\]`"),
        (body_of(X) + b"x", "trailing characters"),
        (body_of(X, id=5), r"Expected `str \| null`, got `int` - at `\$.id`"),
        (body_of(X)[:-1] + b',"id":"\xff"}', "(?i)utf-8"),
        (body_of(X)[:-1] + b',"id":"\\ud800"}', "not JSON"),
        (body_of(X)[:-1] + b',"id":"\\udc00\\udc00"}', "not JSON"),
        (b'{"inputs":' + b"[" * 200_000, "Expected `object`, got `array`"),
        (b'{"u":' * 200_000, "nested too deeply"),
        (b'{"inputs":[],"u":' + b"[" * 200_000, "nested too deeply"),
        (body_of(X, outputs={"name": "y"}), r"\$.outputs"),
        (body_of(X, outputs=["y"]), r"\$.outputs\[0\]"),
        (body_of(X, outputs=[{}]), "missing required field `name`"),
        (body_of(X, parameters=[]), r"\$.parameters"),
        (body_of(X, parameters={"a": [1]}), r"\$.parameters"),
        (body_of(X, parameters={"a": None}), r"\$.parameters"),
        (body_of(X, parameters={"timeout": "5"}), "parameter 'timeout' is '5'"),
        (body_of(X, parameters={"timeout": True}), "parameter 'timeout' is True"),
        (body_of(X, parameters={"binary_data_output": 1}), "must be true or false"),
        (body_of(X, outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]), "output 'y'"),
        (body_of({**X, "name": 5}), r"got `int` - at `\$.inputs\[0\].name`"),
        (body_of({"shape": [1], "datatype": "FP32", "data": [1]}), "field `name`"),
        (body_of({"name": "x", "datatype": "FP32", "data": [1]}), "field `shape`"),
        (body_of({"name": "x", "shape": [1], "data": [1]}), "field `datatype`"),
        (body_of({"name": "x", "shape": [1], "datatype": "FP32"}), "input 'x' has no data"),
        (body_of(X, X), "input 'x' appears more than once"),
        (body_of(X, outputs=[{"name": "y"}, {"name": "y"}]), "output 'y' appears more than once"),
        (body_of(tensor([1], [-1])), r"extent -1"),
        (body_of(tensor([1], [1.5])), r"got `float` - at `\$.inputs\[0\].shape\[0\]`"),
        (body_of(tensor([1], [1.0])), r"got `float`"),
        (body_of(tensor([1], [True])), r"got `bool`"),
        (body_of(tensor([1], "-1")), r"got `str` - at `\$.inputs\[0\].shape`"),
        (body_of(tensor([1], 1)), r"got `int` - at `\$.inputs\[0\].shape`"),
        (body_of(tensor([1], None)), r"got `null`"),
        (body_of(tensor([1], [1, 2**62])), r"larger than 2\*\*63 bytes"),
        (body_of(tensor([1], [2**40, 2**40])), r"larger than 2\*\*63 bytes"),
        (body_of(tensor([1], [0, 2**63])), r"larger than 2\*\*63 bytes"),
        (body_of(tensor([1], [1, 2**50])), "is 1, expected 1125899906842624"),
        (body_of(tensor([1], [1] * 65)), "rank is 65"),
        (body_of(tensor([1], [1], "FP33")), "datatype 'FP33' is not supported"),
        (body_of(tensor([1], [1], "fp32")), "datatype 'fp32' is not supported"),
        (body_of(tensor([5], [1], "BYTES")), "BYTES value 0 is the number 5; it must be a string"),
        (body_of(tensor(["a", None], [2], "BYTES")), "BYTES value 1 is JSON null"),
        (body_of(tensor(["a"], [2], "BYTES")), "is 1, expected 2"),
        (body_of(X, parameters={"non_finite": "zero"}), "parameter non_finite is 'zero'"),
        (body_of(X, parameters={"priority": -1}), "parameter 'priority' is -1"),
        (b'"%NaN"', "the JSON is not an infer request"),
        (b'"\xdd\0NaN"', "the body is not JSON"),
    ],
)
def test_malformed_requests_are_refused_with_their_place(body: bytes, match: str) -> None:
    """What is wrong, and where, is in the message; nothing else ever comes out."""
    with pytest.raises(BadRequest, match=match):
        decode(body)


def test_tensors_in_shared_memory_are_read_apart_from_the_others() -> None:
    """Inputs keep dtype and shape, outputs their place; neither has data in the message."""
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}
    declared = {"name": "s", "shape": [2], "datatype": "FP32", "parameters": place}
    output = {
        "name": "y",
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 1},
    }

    request, _ = decode(body_of(X, declared, outputs=[output, {"name": "z"}]))

    assert request.shared is not None
    assert ["x"] == list(request.inputs)
    assert {"s": SharedTensor(F32_TYPE, (2,), Placement("r", 4, 8))} == request.shared.inputs
    assert {"y": Placement("r", 0, 1)} == request.shared.outputs
    assert ("y", "z") == request.outputs


@pytest.mark.parametrize(
    "more", [{"data": [1, 2]}, {"parameters": {"binary_data_size": 8}}, {"name": "x"}]
)
def test_tensor_in_shared_memory_that_is_sent_too_is_refused(more: dict[str, Any]) -> None:
    """One source per tensor, and one tensor per name."""
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    declared = {"name": "s", "shape": [2], "datatype": "FP32", "parameters": place, **more}
    declared["parameters"] = {**place, **more.get("parameters", {})}

    with pytest.raises(BadRequest, match=r"input '[sx]'.*(send one of them|more than once)"):
        decode(body_of(X, declared))


def test_shared_output_is_described_without_data_and_parameters() -> None:
    """Triton's C++ client takes an output with parameters for one that is binary."""
    array = np.zeros((1, 2), np.float32)
    shared = {"y": SharedTensor(F32_TYPE, (1, 2), Placement("r", 16, 8))}
    response = InferResponse("m", {"y": array, "z": array}, shared=shared)

    body, _, length = encode_infer_response(response, OutputForms(default_is_binary=True))
    first, second = json.loads(body[:length])["outputs"]

    assert {"name": "y", "datatype": "FP32", "shape": [1, 2]} == first
    assert {"binary_data_size": 8} == second["parameters"]


def test_outputs_may_be_asked_for_as_classes() -> None:
    """The counts arrive by output; one that is no count is refused with the output's name."""
    asked = [{"name": "y", "parameters": {"classification": 3}}, {"name": "z"}]
    request, _ = decode(body_of(X, outputs=asked))

    assert ({"y": 3}, ("y", "z")) == (request.classes, request.outputs)
    with pytest.raises(BadRequest, match=r"output 'y': classification is -3"):
        decode(body_of(X, outputs=[{"name": "y", "parameters": {"classification": -3}}]))


def test_binary_tensors_follow_the_json_in_order() -> None:
    """Binary and JSON inputs mix; binary ones are views of the body, in their order."""
    body, length = binary_body(
        binary_tensor(F32, [2, 2], name="a"),
        (tensor([5], [1], "INT8", "b"), b""),
        binary_tensor(b"\x01\x00", [2], "BOOL", "c"),
        binary_tensor(b"", [0, 3], "INT64", "d"),
        binary_tensor(b"\x80\x3f", [], "BF16", "e"),
    )

    for whole in (body, memoryview(body), memoryview(bytearray(body))):
        request, _ = decode(whole, length)
        got = request.inputs
        assert list(got) == ["a", "b", "c", "d", "e"]
        assert got["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
        assert got["b"].tolist() == [5]
        assert got["c"].tolist() == [True, False]
        assert got["d"].shape == (0, 3)
        assert float(got["e"]) == 1.0
        assert not any(array.flags.writeable for array in got.values())


def test_length_header_without_binary_tensors_is_fine() -> None:
    """The header may also announce a body that is JSON alone."""
    body = body_of(X)

    assert decode(body, str(len(body)))[0].inputs["x"].tolist() == [[1.0, 2.0]]


def test_empty_parameters_leave_json_data() -> None:
    """An input with parameters, but none about binary data, has its data in JSON."""
    request, _ = decode(body_of({**X, "parameters": {"note": 1}}))

    assert request.inputs["x"].tolist() == [[1.0, 2.0]]
    with pytest.raises(BadRequest, match="the bool true"):
        decode(body_of({**tensor([True], [1]), "parameters": {"note": 1}}))


@pytest.mark.parametrize(
    "text", ["abc", "", "-1", "+5", "1.0", "0x10", "1e3", " 5", "9" * 30, "²", "\uff15"]
)
def test_length_header_must_be_a_plain_number(text: str) -> None:
    """A header that is no length is refused, never read as zero."""
    with pytest.raises(MalformedBody, match="Inference-Header-Content-Length is"):
        decode(body_of(X), text)


def test_length_header_beyond_the_body_is_refused() -> None:
    """The JSON part cannot be longer than the body."""
    body = body_of(X)

    with pytest.raises(MalformedBody, match=f"is {len(body) + 1}, the body has {len(body)} bytes"):
        decode(body, str(len(body) + 1))


@pytest.mark.parametrize(
    ("size", "data", "match"),
    [
        (-1, F32, "binary_data_size is -1"),
        ("16", F32, "binary_data_size is '16'"),
        (16.0, F32, r"binary_data_size is 16\.0"),
        (True, F32, "binary_data_size is True"),
        (17, F32, "binary_data_size is 17, only 16 bytes are left"),
        (2**70, F32, "only 16 bytes are left"),
        (12, F32[:12], "byte length of a FP32 tensor of shape \\[2,2\\] is 12, expected 16"),
        (12, F32, "is 12, expected 16"),
        (16, F32 + b"x", "1 bytes are left after the last binary tensor"),
    ],
)
def test_wrong_binary_sizes_are_refused(size: Any, data: bytes, match: str) -> None:
    """Sizes must be numbers, within the body, right for the shape, and leave nothing."""
    body, length = binary_body(binary_tensor(data, [2, 2], size=size))

    with pytest.raises(BadRequest, match=match):
        decode(body, length)


def test_binary_needs_the_length_header() -> None:
    """Without the header the end of the JSON is unknown."""
    declared, _ = binary_tensor(F32, [2, 2])

    with pytest.raises(MalformedBody, match="Inference-Header-Content-Length is missing"):
        decode(body_of(declared))
    body, _ = binary_body(binary_tensor(F32, [2, 2]))
    with pytest.raises(MalformedBody, match="not JSON"):
        decode(body)


def test_binary_and_json_data_exclude_each_other() -> None:
    """One input has one source."""
    declared, data = binary_tensor(F32, [2, 2])
    body, length = binary_body(({**declared, "data": [1, 2, 3, 4]}, data))

    with pytest.raises(BadRequest, match="'x' has data and binary_data_size; send one of them"):
        decode(body, length)


def test_binary_bool_bytes_are_checked() -> None:
    """A bool byte other than 0 and 1 is refused."""
    body, length = binary_body(binary_tensor(b"\x00\x02", [2], "BOOL"))

    with pytest.raises(BadRequest, match="BOOL element 1 is the byte 2"):
        decode(body, length)


def response(**outputs: Any) -> InferResponse:
    """A response of model m."""
    return InferResponse("m", {k: np.asarray(v) for k, v in outputs.items()}, "7", "2")


def test_response_is_json_by_default() -> None:
    """Outputs are flat data; id and version are echoed."""
    answer = response(y=np.array([[1.5, 2.0]], np.float32), n=np.array(5, np.int64))

    body, content_type, length = encode_infer_response(answer, OutputForms())

    assert (content_type, length) == ("application/json", None)
    assert json.loads(body) == {
        "model_name": "m",
        "model_version": "2",
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]},
            {"name": "n", "datatype": "INT64", "shape": [], "data": [5]},
        ],
    }


def test_absent_id_and_version_are_left_out() -> None:
    """A server without versions sends none; an id comes back only when given."""
    body, _, _ = encode_infer_response(InferResponse("m", {}), OutputForms())

    assert json.loads(body) == {"model_name": "m", "outputs": []}


def test_non_finite_numbers_leave_as_null_or_strings() -> None:
    """What leaves is JSON by the RFC, whatever the numbers are."""
    answer = response(y=np.array([np.nan, np.inf, -np.inf, 1], np.float32))

    default, _, _ = encode_infer_response(answer, OutputForms())
    _, forms = decode(body_of(X, parameters={"non_finite": "string"}))
    strings, _, _ = encode_infer_response(answer, forms)

    assert json.loads(default)["outputs"][0]["data"] == [None, None, None, 1.0]
    assert json.loads(strings)["outputs"][0]["data"] == ["NaN", "Infinity", "-Infinity", 1.0]


@pytest.mark.parametrize(
    ("default", "single", "binary"),
    [
        (False, {}, []),
        (True, {}, ["a", "b"]),
        (False, {"b": True}, ["b"]),
        (True, {"a": False}, ["b"]),
        (True, {"a": False, "b": True}, ["b"]),
    ],
)
def test_output_form_is_the_default_unless_overridden(
    default: bool, single: dict[str, bool], binary: list[str]
) -> None:
    """`binary_data` of an output overrides `binary_data_output` of the request."""
    arrays: Tensors = {"a": np.arange(3, dtype=np.int16), "b": np.arange(2, dtype=np.float32)}
    outputs = [{"name": k, "parameters": {"binary_data": v}} for k, v in single.items()]
    _, forms = decode(body_of(X, parameters={"binary_data_output": default}, outputs=outputs))

    body, content_type, length = encode_infer_response(InferResponse("m", arrays), forms)

    cut = len(body) if length is None else length
    described = {output["name"]: output for output in json.loads(body[:cut])["outputs"]}
    rest = body[cut:]
    assert content_type == ("application/octet-stream" if binary else "application/json")
    for name, array in arrays.items():
        if name in binary:
            assert described[name]["parameters"] == {"binary_data_size": array.nbytes}
            assert "data" not in described[name]
            assert rest[: array.nbytes] == array.tobytes()
            rest = rest[array.nbytes :]
        else:
            assert described[name]["data"] == array.tolist()
    assert rest == b""


def test_listed_outputs_keep_the_request_wide_default() -> None:
    """`binary_data_output` holds for outputs that are listed without a form of their own."""
    body = body_of(X, parameters={"binary_data_output": True}, outputs=[{"name": "y"}])

    request, forms = decode(body)

    assert forms.default_is_binary
    assert request.parameters == {}
    assert encode_infer_response(response(y=[1.0]), forms)[2] is not None


def test_large_binary_output_is_whole() -> None:
    """Outputs over the size where views are cheaper than copies are the same bytes."""
    array = np.arange(100_000, dtype=np.float64).reshape(100, 1000)

    body, _, length = encode_infer_response(InferResponse("m", {"y": array.T}), OutputForms(True))

    assert length is not None
    assert body[length:] == array.T.tobytes()
    assert decode(body_of(X))[0].deadline_ns == NEVER_NS
