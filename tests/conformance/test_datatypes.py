"""Every datatype over every form of a tensor, and what becomes of numbers that JSON lacks."""

import json
import math
import struct
from typing import Any

import grpc
import numpy as np
import pytest
from support.conformance_worker import MODELS, Asker, rpc_tensor, tensor

from hloserve.core.dtypes import DType

ROWS: dict[str, list[Any]] = {
    "bool": [True, False, True],
    "i64": [2**63 - 1, -(2**63), 2**53 + 1],
    "u64": [2**64 - 1, 2**63, 0],
    "f16": [65504, -0.5, 6e-8],
    "bf16": [3.3895313892515355e38, -0.5, 1e-38],
    "f32": [3.4028234663852886e38, -0.1, 1e-45],
    "f64": [1.7976931348623157e308, -0.1, 5e-324],
}
LENGTH = "Inference-Header-Content-Length"


def _array(dtype: DType) -> Any:
    if dtype.token in ROWS:
        return np.array([ROWS[dtype.token]], dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return np.array([[limits.max, limits.min, 1]], dtype.numpy)


@pytest.mark.parametrize("dtype", MODELS.values(), ids=str)
def test_every_form_carries_the_extremes_exactly(asker: Asker, dtype: DType) -> None:
    """JSON, binary tensors both ways, and raw contents: the same bits come back."""
    array = _array(dtype)
    raw = array.tobytes()
    values = [value.item() for value in array.reshape(-1).astype(_wide(dtype))]
    by_json = asker.infer(dtype.token, tensor(dtype.kserve or "", [1, 3], values))
    head = {"name": "x", "shape": [1, 3], "datatype": dtype.kserve}
    text = json.dumps(
        {
            "inputs": [{**head, "parameters": {"binary_data_size": len(raw)}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    by_binary = asker.infer(dtype.token, text + raw, {LENGTH: str(len(text))})
    code, by_rpc = asker.rpc(rpc_tensor(dtype.token, dtype.kserve or "", [1, 3], raw))

    assert by_json.status == 200, by_json.body
    assert raw == np.array(by_json.json["outputs"][0]["data"], dtype.numpy).tobytes()
    assert raw == by_binary.body[int(by_binary.headers[LENGTH.lower()]) :]
    assert code is grpc.StatusCode.OK
    assert raw == by_rpc.raw_output_contents[0]


def _wide(dtype: DType) -> Any:
    return np.float64 if dtype.token in ("f16", "bf16") else dtype.numpy


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in MODELS.values() if dtype.contents_field], ids=str
)
def test_typed_contents_are_read(asker: Asker, dtype: DType) -> None:
    """In the field that belongs to the datatype."""
    array = _array(dtype)
    request = rpc_tensor(dtype.token, dtype.kserve or "", [1, 3], None)
    getattr(request.inputs[0].contents, dtype.contents_field or "").extend(array[0].tolist())

    code, response = asker.rpc(request)

    assert code is grpc.StatusCode.OK, response
    assert array.tobytes() == response.raw_output_contents[0]


@pytest.mark.parametrize("dtype", MODELS.values(), ids=str)
def test_no_rows_are_answered_in_every_datatype(asker: Asker, dtype: DType) -> None:
    """A zero extent is a tensor like others."""
    answer = asker.infer(dtype.token, tensor(dtype.kserve or "", [0, 3], []))
    code, response = asker.rpc(rpc_tensor(dtype.token, dtype.kserve or "", [0, 3], b""))

    assert (200, []) == (answer.status, answer.json["outputs"][0]["data"])
    assert code is grpc.StatusCode.OK
    assert (dtype.kserve, [0, 3]) == (
        response.outputs[0].datatype,
        list(response.outputs[0].shape),
    )


@pytest.mark.parametrize("token", ["f16", "bf16", "f32", "f64"])
def test_what_json_lacks_is_null_or_a_string_and_exact_in_binary(asker: Asker, token: str) -> None:
    """NaN and infinities never make invalid JSON; the caller chooses the form."""
    request = tensor(MODELS[token].kserve or "", [1, 3], ["NaN", "-Infinity", "Infinity"])

    plain = asker.infer(token, request)
    named = asker.infer(token, {**request, "parameters": {"non_finite": "string"}})
    binary = asker.infer(token, {**request, "parameters": {"binary_data_output": True}})

    assert [None] * 3 == plain.json["outputs"][0]["data"]
    assert ["NaN", "-Infinity", "Infinity"] == named.json["outputs"][0]["data"]
    raw = binary.body[int(binary.headers[LENGTH.lower()]) :]
    values = np.frombuffer(raw, MODELS[token].numpy).astype(np.float64).tolist()
    assert math.isnan(values[0])
    assert [-math.inf, math.inf] == values[1:]


def test_strings_named_by_the_answer_are_read_again(asker: Asker) -> None:
    """What `non_finite: string` writes is what a request may say."""
    body = {
        **tensor("FP32", [1, 3], ["NaN", 1, "-Infinity"]),
        "parameters": {"non_finite": "string"},
    }
    data = asker.infer("f32", body).json["outputs"][0]["data"]

    again = asker.infer("f32", {**tensor("FP32", [1, 3], data), "parameters": body["parameters"]})

    assert ["NaN", 1.0, "-Infinity"] == again.json["outputs"][0]["data"]


def test_scalars_take_every_form(asker: Asker) -> None:
    """Rank 0: a bare value or a list of one in JSON, four bytes in raw contents."""
    for data in (2.5, [2.5]):
        answer = asker.infer("scalar", tensor("FP32", [], data))
        assert ([], [2.5]) == (
            answer.json["outputs"][0]["shape"],
            answer.json["outputs"][0]["data"],
        )
    request = rpc_tensor("scalar", "FP32", [], None)
    request.inputs[0].contents.fp32_contents.append(2.5)

    code, response = asker.rpc(request)

    assert code is grpc.StatusCode.OK
    assert struct.pack("<f", 2.5) == response.raw_output_contents[0]
