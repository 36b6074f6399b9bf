"""Every datatype, and the errors that a request can meet, by every client over both transports."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.conformance_worker import MODELS, Asker, rpc_tensor, tensor
from tritonclient.utils import InferenceServerException

from hloserve.core.dtypes import DType

LENGTH = "Inference-Header-Content-Length"
NOT_IN_KSERVE = ("bf16",)


def _rows(dtype: DType) -> Any:
    return np.array([[1, 0, 1]]).astype(dtype.numpy)


@pytest.fixture(name="kserve", scope="module")
def ask_by_kserve(asker: Asker) -> dict[str, Any]:
    """What kserve's clients got."""
    tokens = [token for token in MODELS if token not in NOT_IN_KSERVE]
    addresses = (asker.http_address, asker.grpc_address)
    done = subprocess.run(
        [sys.executable, "-m", "support.kserve_calls", *addresses, *tokens],
        stdout=subprocess.PIPE,
        check=True,
        timeout=90,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(name="triton", params=["http", "grpc"])
def connect_triton(asker: Asker, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Triton's client over one of the transports, and its module."""
    module: Any = tritonclient.http if request.param == "http" else tritonclient.grpc
    address = asker.http_address if request.param == "http" else asker.grpc_address
    client = module.InferenceServerClient(address)
    yield client, module
    client.close()


@pytest.mark.parametrize("dtype", MODELS.values(), ids=str)
def test_tritonclient_sends_every_datatype(triton: tuple[Any, Any], dtype: DType) -> None:
    """Over both transports, as binary tensors."""
    client, module = triton
    rows = _rows(dtype)
    sent = module.InferInput("x", [1, 3], dtype.kserve)
    sent.set_data_from_numpy(rows)

    got = client.infer(dtype.token, [sent]).as_numpy("y")

    assert rows.dtype == got.dtype
    np.testing.assert_array_equal(rows, got)


@pytest.mark.parametrize("dtype", MODELS.values(), ids=str)
def test_httpx_sends_every_datatype(asker: Asker, dtype: DType) -> None:
    """As JSON, and as a binary tensor."""
    url, rows = f"{asker.url}/v2/models/{dtype.token}/infer", _rows(dtype)
    values = rows.astype(bool if dtype.token == "bool" else np.int64).tolist()
    text = json.dumps(
        tensor(dtype.kserve or "", [1, 3], None, parameters={"binary_data_size": rows.nbytes})
        | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    ).replace('"data": null, ', "")
    body = text.encode() + rows.tobytes()

    by_json = httpx.post(url, json=tensor(dtype.kserve or "", [1, 3], values)).json()
    by_binary = httpx.post(url, content=body, headers={LENGTH: str(len(text))})

    assert np.array(values).reshape(-1).tolist() == by_json["outputs"][0]["data"]
    assert rows.tobytes() == by_binary.content[int(by_binary.headers[LENGTH]) :]


def test_kserve_sends_every_datatype(kserve: dict[str, Any]) -> None:
    """Over both transports; it has no BF16."""
    expected = {
        token: [_rows(dtype).tobytes().hex()] * 2
        for token, dtype in MODELS.items()
        if token not in NOT_IN_KSERVE
    }

    assert expected == kserve["datatypes"]


def test_kserve_asks_who_is_ready(kserve: dict[str, Any]) -> None:
    """The server, a model, and a model that is not there; over REST and gRPC."""
    assert [True, True, True, False] * 2 == kserve["ready"]


def test_kserve_is_told_what_is_wrong(kserve: dict[str, Any]) -> None:
    """In our words: a shape that does not fit, and a model that is not there."""
    shape_rest, shape_rpc, model_rest, model_rpc = kserve["errors"]

    assert "input 'x'" in shape_rest
    assert shape_rpc.startswith("INVALID_ARGUMENT: input 'x'")
    assert "404" in model_rest
    assert model_rpc.startswith("NOT_FOUND")


_X = tensor("FP32", [1, 3], [1, 2, 3])

ERRORS: dict[str, tuple[str, dict[str, Any], int, str, str]] = {
    "unknown model": ("nothing", _X, 404, "NOT_FOUND", "nothing"),
    "wrong datatype": ("f32", tensor("INT32", [1, 3], [1, 2, 3]), 400, "INVALID_ARGUMENT", "'x'"),
    "unknown datatype": ("f32", tensor("FP8", [1, 3], [1, 2, 3]), 400, "INVALID_ARGUMENT", "FP8"),
    "wrong rank": ("f32", tensor("FP32", [3], [1, 2, 3]), 400, "INVALID_ARGUMENT", "rank"),
    "wrong extent": ("f32", tensor("FP32", [1, 2], [1, 2]), 400, "INVALID_ARGUMENT", "'x'"),
    "negative extent": ("f32", tensor("FP32", [-1, 3], []), 400, "INVALID_ARGUMENT", "-1"),
    "too few values": ("f32", tensor("FP32", [2, 3], [1, 2, 3]), 400, "INVALID_ARGUMENT", "'x'"),
    "unknown input": ("f32", tensor("FP32", [1, 3], [1] * 3, "z"), 400, "INVALID_ARGUMENT", "'z'"),
    "missing input": ("two", tensor("FP32", [1, 3], [1] * 3, "a"), 400, "INVALID_ARGUMENT", "'b'"),
    "no inputs": ("f32", {"inputs": []}, 400, "INVALID_ARGUMENT", "'x'"),
    "input twice": ("f32", {"inputs": _X["inputs"] * 2}, 400, "INVALID_ARGUMENT", "'x'"),
    "unknown output": ("f32", _X | {"outputs": [{"name": "z"}]}, 400, "INVALID_ARGUMENT", "'z'"),
    "output twice": ("f32", _X | {"outputs": [{"name": "y"}] * 2}, 400, "INVALID_ARGUMENT", "'y'"),
}  # fmt: skip
"""Model, request as JSON, HTTP status, gRPC status, and what the text names."""


def _as_rpc(model: str, body: dict[str, Any]) -> Any:
    """The same request over gRPC."""
    request = rpc_tensor(model, "FP32", [], None)
    del request.inputs[:]
    for each in body["inputs"]:
        request.inputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
        request.raw_input_contents.append(np.array(each["data"], np.float32).tobytes())
    for each in body.get("outputs", ()):
        request.outputs.add(name=each["name"])
    return request


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_its_status_and_names_its_cause(asker: Asker, name: str) -> None:
    """Over REST by httpx, over gRPC by grpcio: as one call, and within a stream."""
    model, body, status, code, word = ERRORS[name]
    request = _as_rpc(model, body)

    rest = httpx.post(f"{asker.url}/v2/models/{model}/infer", json=body)
    unary, text = asker.rpc(request)
    (streamed,) = asker.stub.ModelStreamInfer(iter([request]), timeout=20)

    assert (status, "application/json") == (rest.status_code, rest.headers["content-type"])
    assert word in rest.json()["error"]
    assert (code, True) == (unary.name, word in text)
    assert streamed.error_message == text
    assert streamed.infer_response.parameters["grpc_status"].int64_param == unary.value[0]


@pytest.mark.parametrize(
    ("model", "version", "word"), [("nothing", "", "nothing"), ("f32", "7", "7")]
)
def test_tritonclient_is_told_what_is_not_found(
    triton: tuple[Any, Any], model: str, version: str, word: str
) -> None:
    """By every call about a model."""
    client, module = triton
    sent = module.InferInput("x", [1, 3], "FP32")
    sent.set_data_from_numpy(np.ones((1, 3), np.float32))
    calls: list[Callable[[], Any]] = [
        lambda: client.infer(model, [sent], model_version=version),
        lambda: client.get_model_metadata(model, version),
        lambda: client.get_model_config(model, version),
        lambda: client.get_inference_statistics(model, version),
    ]
    for call in calls:
        with pytest.raises(InferenceServerException, match=word):
            call()


def test_grpcio_is_told_of_methods_that_are_not_there(asker: Asker) -> None:
    """They are named."""
    with grpc.insecure_channel(asker.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=20)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Nothing" in (caught.value.details() or "")
