"""The classification extension, over both transports and Triton's client."""

from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.conformance_worker import Asker, rpc_tensor, tensor

from hloserve import Client

ROWS = np.array([[1, 3, 2], [7, 5, 6]], np.float32)
BEST_TWO = [b"3.000000:1:B\xc3\xa4r", b"2.000000:2", b"7.000000:0:Katze", b"6.000000:2"]


def asked(count: object, model: str = "labelled") -> Any:
    """A JSON request for the classes of `y`."""
    outputs = [{"name": "y", "parameters": {"classification": count}}]
    return {**tensor("FP32", [2, 3], ROWS.reshape(-1).tolist()), "outputs": outputs}


@pytest.mark.parametrize("module", [tritonclient.grpc, tritonclient.http])
def test_tritonclient_gets_classes_with_labels(asker: Asker, module: ModuleType) -> None:
    """As many as it asked for, in rows."""
    is_http = module is tritonclient.http
    address = asker.http_address if is_http else asker.grpc_address
    with module.InferenceServerClient(address) as client:
        given = module.InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(ROWS)
        wanted = module.InferRequestedOutput("y", class_count=2)
        answer = client.infer("labelled", [given], outputs=[wanted]).as_numpy("y")

    assert (2, 2) == answer.shape
    assert BEST_TWO == answer.reshape(-1).tolist()


def test_our_client_gets_classes_with_labels(asker: Asker) -> None:
    """As `bytes`, in rows; over a stream as over a call."""
    with Client(asker.grpc_address) as client:
        alone = client.infer("labelled", {"x": ROWS}, classes={"y": 2})
        with client.stream() as stream:
            stream.send("labelled", {"x": ROWS}, classes={"y": 2})
            (result,) = stream

    assert BEST_TWO == alone["y"].reshape(-1).tolist()
    assert (2, 2) == alone["y"].shape
    assert BEST_TWO == result.outputs["y"].reshape(-1).tolist()


def test_json_has_classes_as_strings(asker: Asker) -> None:
    """The datatype is BYTES, whatever the output's own is."""
    (output,) = asker.infer("labelled", asked(2)).json["outputs"]

    assert ("BYTES", [2, 2]) == (output["datatype"], output["shape"])
    assert [text.decode() for text in BEST_TWO] == output["data"]


def test_no_more_classes_than_there_are_and_none_for_0(asker: Asker) -> None:
    """0 asks for the output itself."""
    (all_of_them,) = asker.infer("labelled", asked(99)).json["outputs"]
    (itself,) = asker.infer("labelled", asked(0)).json["outputs"]

    assert [2, 3] == all_of_them["shape"]
    assert ("FP32", ROWS.reshape(-1).tolist()) == (itself["datatype"], itself["data"])


@pytest.mark.parametrize("count", [-1, 1.5, "2", True])
def test_counts_that_are_none_are_refused(asker: Asker, count: object) -> None:
    """The output is named."""
    answer = asker.infer("labelled", asked(count))

    assert answer.status == 400
    assert "output 'y': classification" in answer.json["error"]


def test_strings_have_no_classes(asker: Asker) -> None:
    """It is said before anything runs, over gRPC as well."""
    request = rpc_tensor("text", "BYTES", [1, 2], bytes(8), "text")
    request.outputs.add(name="echo").parameters["classification"].int64_param = 1

    code, text = asker.rpc(request)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "output 'echo' is BYTES" in text


def test_integers_have_classes_without_labels(asker: Asker) -> None:
    """Written as integers."""
    request = rpc_tensor("i32", "INT32", [1, 3], np.array([5, -1, 5], np.int32).tobytes())
    request.outputs.add(name="y").parameters["classification"].int64_param = 3

    code, response = asker.rpc(request)

    assert code is grpc.StatusCode.OK
    assert "BYTES" == response.outputs[0].datatype
    strings = [b"5:0", b"5:2", b"-1:1"]
    assert response.raw_output_contents[0] == b"".join(
        len(text).to_bytes(4, "little") + text for text in strings
    )
