"""BYTES tensors of a hooked model, over every way that a client may take."""

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from support.conformance_worker import Asker, rpc_tensor, tensor
from tritonclient.grpc import service_pb2

from hloserve import Client
from hloserve.core.errors import BadRequest

ROWS = [["Bär".encode(), b""], [b"a\0", b"plain"]]
FLAT = [text for row in ROWS for text in row]
RAW = b"".join(len(text).to_bytes(4, "little") + text for text in FLAT)
LENGTH = "Inference-Header-Content-Length"


def echo(answer: Any) -> Any:
    """The data of a good JSON answer."""
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert ("echo", "BYTES", [2, 2]) == (output["name"], output["datatype"], output["shape"])
    return output["data"]


def test_metadata_says_bytes(asker: Asker) -> None:
    """Over both transports, with the shape that clients see."""
    metadata = asker.send("GET", "/v2/models/text").json
    rpc = asker.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="text"))

    for entry in (metadata["inputs"][0], metadata["outputs"][0]):
        assert ("BYTES", [-1, 2]) == (entry["datatype"], entry["shape"])
    assert ("BYTES", [-1, 2]) == (rpc.inputs[0].datatype, list(rpc.inputs[0].shape))


@pytest.mark.parametrize("data", [["Bär", "", "a\0", "plain"], [["Bär", ""], ["a\0", "plain"]]])
def test_json_strings_come_back(asker: Asker, data: Any) -> None:
    """Flat or nested; text is UTF-8."""
    assert ["Bär", "", "a\0", "plain"] == echo(
        asker.infer("text", tensor("BYTES", [2, 2], data, "text"))
    )


@pytest.mark.parametrize("typed", [False, True])
def test_rpc_strings_come_back(asker: Asker, typed: bool) -> None:
    """As raw contents and as bytes_contents; the answer is raw."""
    request = rpc_tensor("text", "BYTES", [2, 2], None if typed else RAW, "text")
    if typed:
        request.inputs[0].contents.bytes_contents.extend(FLAT)

    code, response = asker.rpc(request)

    assert code is grpc.StatusCode.OK, response
    assert RAW == response.raw_output_contents[0]


def test_binary_strings_come_back(asker: Asker) -> None:
    """Also those that are no text, both ways."""
    strings = b"\2\0\0\0\xff\xfe" * 4
    text = (
        b'{"inputs":[{"name":"text","shape":[2,2],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":24}}],"parameters":{"binary_data_output":true}}'
    )
    answer = asker.infer("text", text + strings, {LENGTH: str(len(text))})

    assert answer.status == 200, answer.body
    assert strings == answer.body[int(answer.headers[LENGTH.lower()]) :]


def test_strings_that_are_no_text_are_not_put_into_json(asker: Asker) -> None:
    """The caller learns which output, which element and the way out; not a 500, not bad JSON."""
    text = (
        b'{"inputs":[{"name":"text","shape":[1,2],"datatype":"BYTES","parameters":'
        b'{"binary_data_size":10}}]}'
    )
    body = text + b"\1\0\0\0a\1\0\0\0\xff"
    answer = asker.infer("text", body, {LENGTH: str(len(text))})

    assert answer.status == 400
    for part in ("output 'echo'", "element 1", "binary_data"):
        assert part in answer.json["error"]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "texts"),
    [
        ("BYTES", [1, 2], ["a", 5], ("'text'", "value 1", "string")),
        ("BYTES", [1, 2], ["a", None], ("'text'", "value 1")),
        ("BYTES", [1, 2], ["a"], ("'text'", "2", "1")),
        ("BYTES", [1, 3], ["a", "b", "c"], ("'text'", "extent of axis 1", "3", "2")),
        ("FP32", [1, 2], [1, 2], ("'text'", "FP32", "BYTES")),
        ("BYTES", [1, 2**40], ["a"], ("'text'",)),
    ],
)
def test_wrong_strings_are_refused(
    asker: Asker, datatype: str, shape: Any, data: Any, texts: tuple[str, ...]
) -> None:
    """As any other tensor is."""
    answer = asker.infer("text", tensor(datatype, shape, data, "text"))

    assert answer.status == 400
    assert all(text in answer.json["error"] for text in texts), answer.json


@pytest.mark.parametrize(
    "raw", [RAW[:-1], RAW + b"\0", b"\xff" * 16, b"", b"\0\0\0\0", RAW + b"\0\0\0\0"]
)
def test_lengths_that_lie_are_refused(asker: Asker, raw: bytes) -> None:
    """Before anything is allocated; the tensor is named."""
    code, text = asker.rpc(rpc_tensor("text", "BYTES", [2, 2], raw, "text"))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "input 'text'" in text


def test_too_many_strings_are_refused(asker: Asker) -> None:
    """However short they are."""
    code, text = asker.rpc(rpc_tensor("text", "BYTES", [200_000, 2], bytes(1_600_000), "text"))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "400000 strings" in text


def test_no_rows_are_no_strings(asker: Asker) -> None:
    """A shape with a zero is answered without the device."""
    answer = asker.infer("text", tensor("BYTES", [0, 2], [], "text"))

    assert answer.status == 200, answer.body
    assert [0, 2] == answer.json["outputs"][0]["shape"]


@pytest.mark.parametrize(
    ("module", "is_binary"),
    [(tritonclient.grpc, True), (tritonclient.http, True), (tritonclient.http, False)],
)
def test_tritonclient_gets_its_strings_back(
    asker: Asker, module: ModuleType, is_binary: bool
) -> None:
    """Object arrays of bytes, over both transports."""
    is_http = module is tritonclient.http
    array = np.array([["Bär".encode(), b""], [b"a b", b"plain"]], object)
    address = asker.http_address if is_http else asker.grpc_address
    with module.InferenceServerClient(address) as client:
        given = module.InferInput("text", [2, 2], "BYTES")
        wanted = module.InferRequestedOutput(
            "echo", **({"binary_data": is_binary} if is_http else {})
        )
        given.set_data_from_numpy(array, **({"binary_data": is_binary} if is_http else {}))
        got = client.infer("text", [given], outputs=[wanted]).as_numpy("echo")

    assert array.tolist() == [
        [text.encode() if isinstance(text, str) else text for text in row] for row in got.tolist()
    ]


@pytest.mark.parametrize("module", [tritonclient.grpc.aio, tritonclient.http.aio])
def test_asynchronous_tritonclient_gets_its_strings_back(asker: Asker, module: ModuleType) -> None:
    """The same of its asyncio clients."""
    is_http = module is tritonclient.http.aio
    array = np.array(ROWS, object)
    make: Callable[..., Any] = module.InferInput
    given = make("text", [2, 2], "BYTES")
    given.set_data_from_numpy(array)

    async def ask() -> Any:
        address = asker.http_address if is_http else asker.grpc_address
        async with module.InferenceServerClient(address) as client:
            return (await client.infer("text", [given])).as_numpy("echo")

    assert ROWS == asyncio.run(ask()).tolist()


def test_kserve_gets_its_strings_back(asker: Asker) -> None:
    """Its client, over both transports."""
    done = subprocess.run(
        [sys.executable, "-m", "support.kserve_strings", asker.http_address, asker.grpc_address],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )

    expected = [text.hex() for text in FLAT]
    assert [expected, expected] == ast.literal_eval(done.stdout.decode())


@pytest.mark.parametrize(
    "given",
    [
        [["Bär", ""], ["a\0", "plain"]],
        ROWS,
        np.array(ROWS, object),
        np.array([["Bär", ""], ["a\0", "plain"]], object),
    ],
    ids=["text", "bytes", "object array of bytes", "object array of text"],
)
def test_our_client_takes_text_and_bytes(asker: Asker, given: Any) -> None:
    """And gives object arrays of bytes."""
    with Client(asker.grpc_address) as client:
        outputs = client.infer("text", {"text": given})

    assert ROWS == outputs["echo"].tolist()


def test_our_client_takes_arrays_of_text(asker: Asker) -> None:
    """NumPy's fixed-width text, which drops zeros at the end of a string."""
    with Client(asker.grpc_address) as client:
        outputs = client.infer("text", {"text": np.array([["Bär", "x"]])})
        with pytest.raises(BadRequest, match="element 1 is of type int"):
            client.infer("text", {"text": np.array([["a", 1]], object)})

    assert [["Bär".encode(), b"x"]] == outputs["echo"].tolist()
