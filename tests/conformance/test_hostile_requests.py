"""What other servers get wrong: each request that made one crash, wrap or lie, answered right.

Every row is a request that was measured against published servers; here it must end as the V2
protocol and common sense say, over REST and, where the question exists, over gRPC.
"""

import json
import struct
from typing import Any

import grpc
import numpy as np
import pytest
from support.conformance_worker import Answer, Asker, rpc_tensor, tensor
from tritonclient.grpc import service_pb2

GOOD = tensor("FP32", [1, 3], [1, 2, 3])
JSON_OUTPUT = {"name": "y", "parameters": {"binary_data": False}}
THREE = np.array([1, 2, 3], "<f4").tobytes()
LENGTH = "Inference-Header-Content-Length"


def refused(answer: Answer, status: int, *texts: str) -> None:
    """Assert an error answer in the one error shape, naming what it should."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"]
    for text in texts:
        assert text in answer.json["error"]
    assert "Traceback" not in answer.json["error"]


def output(answer: Answer) -> Any:
    """The first output's data of a good answer."""
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("model", "body", "texts"),
    [
        ("f32", tensor("FP32", [1, 3], [1, 2]), ("'x'", "3", "2")),
        ("f32", tensor("FP32", [1, 3], [1, 2, 3, 4]), ("'x'", "3", "4")),
        ("f32", tensor("FP32", [2, 3], [[1, 2, 3], [4]]), ("'x'",)),
        ("u8", tensor("UINT8", [1, 3], [1, 300, 3]), ("'x'", "300", "1")),
        ("i8", tensor("INT8", [1, 3], [1, -129, 3]), ("'x'", "-129")),
        ("i32", tensor("INT32", [1, 3], [1, 2147483648, 3]), ("'x'", "2147483648")),
        ("i64", tensor("INT64", [1, 3], [1, 2**63, 3]), ("'x'", str(2**63))),
        ("u64", tensor("UINT64", [1, 3], [1, -1, 3]), ("'x'", "-1")),
        ("i32", tensor("INT32", [1, 3], [1, 1.5, 3]), ("'x'", "1.5")),
        ("f32", tensor("FP32", [1, 3], [1, 1e39, 3]), ("'x'", "1e+39")),
        ("f16", tensor("FP16", [1, 3], [1, 1e5, 3]), ("'x'",)),
        ("bf16", tensor("BF16", [1, 3], [1, 1e39, 3]), ("'x'",)),
        ("f32", tensor("FP32", [1, 3], [1, None, 3]), ("'x'",)),
        ("f32", tensor("FP32", [1, 3], ["1", "2", "3"]), ("'x'",)),
        ("f32", tensor("FP32", [1, 3], [True, 2, 3]), ("'x'",)),
        ("bool", tensor("BOOL", [1, 3], [0, 1, 1]), ("'x'",)),
        ("f32", tensor("INT64", [1, 3], [1, 2, 3]), ("'x'", "INT64", "FP32")),
        ("f32", tensor("BYTES", [1, 3], [5, 6, 7]), ("BYTES",)),
        ("f32", tensor("FP33", [1, 3], [5, 6, 7]), ("FP33",)),
        ("f32", tensor("FP32", [-1, 3], [1, 2, 3]), ("'x'", "-1")),
        ("f32", tensor("FP32", [1.5, 3], [1, 2, 3]), ("'x'", "float")),
        ("f32", tensor("FP32", ["1", 3], [1, 2, 3]), ("'x'", "str")),
        ("f32", tensor("FP32", [1, 2**62], [1]), ("'x'",)),
        ("f32", tensor("FP32", [2**62, 2**62], [1]), ("'x'",)),
        ("f32", tensor("FP32", [10**30], [1]), ("'x'",)),
        ("f32", tensor("FP32", [1, 0], []), ("'x'", "extent of axis 1", "3")),
        ("f32", tensor("FP32", [1, 4], [1, 2, 3, 4]), ("'x'", "extent of axis 1", "4", "3")),
        ("f32", tensor("FP32", [3], [1, 2, 3]), ("'x'", "rank")),
        ("f32", {"id": "1"}, ("inputs",)),
        ("f32", {"inputs": {}}, ()),
        ("f32", [], ()),
        ("f32", b"not json", ()),
        ("f32", b"[1, 2]", ()),
        ("f32", json.dumps(GOOD).encode() + b"}", ()),
        ("f32", b"", ()),
        ("f32", b"\xff\xfe", ()),
        ("f32", {"inputs": [*GOOD["inputs"], *GOOD["inputs"]]}, ("'x'", "more than once")),
        ("f32", tensor("FP32", [1, 3], [1, 2, 3], name="z"), ("'x'", "missing")),
        ("f32", {"inputs": [*GOOD["inputs"], *tensor("FP32", [1], [1], "z")["inputs"]]}, ("'z'",)),
        ("f32", {**GOOD, "outputs": [{"name": "q"}]}, ("'q'", "y")),
        ("f32", {**GOOD, "outputs": [{"name": "y"}, {"name": "y"}]}, ("'y'", "more than once")),
        ("f32", {**GOOD, "id": 5}, ("id",)),
        ("f32", {**GOOD, "parameters": {"a": 1, "b": [1]}}, ("parameter 'b'",)),
        ("f32", {**GOOD, "outputs": [{"name": "y", "parameters": {"b": None}}]},
            ("output 'y': parameter 'b'",)),
        ("f32", b'{"id": "\xff", ' + json.dumps(GOOD).encode()[1:], ()),
        ("f32", tensor("FP32", [1, 3], [1, 2, 3], parameters={"binary_data_size": 12}), ()),
        ("f32", {**GOOD, "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r",
            "shared_memory_byte_size": 12}}]}, ("shared memory",)),
        ("two", {"inputs": [tensor("FP32", [2, 3], [0] * 6, "a")["inputs"][0],
            tensor("FP32", [1, 3], [0] * 3, "b")["inputs"][0]]}, ("'b'", "2", "1")),
        ("f32", b"[" * 100_000, ()),
        ("f32", tensor("FP32", [1, 3], [[[[[[1, 2, 3]]]]]]), ("'x'",)),
    ],
)  # fmt: skip
def test_wrong_json_is_a_client_error_that_names_the_place(
    asker: Asker, model: str, body: object, texts: tuple[str, ...]
) -> None:
    """A request that cannot be served is a 400 with the reason, and never a guess."""
    refused(asker.infer(model, body), 400, *texts)


@pytest.mark.parametrize(
    ("model", "datatype", "data", "expected"),
    [
        ("i32", "INT32", [1.0, 2.0, -3.0], [1, 2, -3]),
        ("i64", "INT64", [2**53 + 1, 2**40, -(2**63)], [2**53 + 1, 2**40, -(2**63)]),
        ("u64", "UINT64", [2**64 - 1, 0, 1], [2**64 - 1, 0, 1]),
        ("f16", "FP16", [1, 2.5, 65504], [1, 2.5, 65504]),
        ("bf16", "BF16", [1, 2.5, 256], [1, 2.5, 256]),
        ("f64", "FP64", [1e300, -0.1, 3], [1e300, -0.1, 3]),
        ("bool", "BOOL", [True, False, True], [True, False, True]),
        ("f32", "FP32", ["NaN", "Infinity", 1], [None, None, 1]),
        ("f32", "FP32", [[1, 2, 3]], [1, 2, 3]),
    ],
)
def test_values_come_back_exactly(
    asker: Asker, model: str, datatype: str, data: object, expected: object
) -> None:
    """Numbers survive both ways; what is no JSON number comes back as null."""
    assert expected == output(asker.infer(model, tensor(datatype, [1, 3], data)))


def test_parameters_that_mean_nothing_here_change_nothing(asker: Asker) -> None:
    """No model keeps a state, so a sequence is requests like others; over both transports."""
    request = rpc_tensor("f32", "FP32", [1, 3], THREE)
    request.parameters["sequence_id"].int64_param = 5
    request.parameters["sequence_start"].bool_param = True
    parameters = {"sequence_id": "a", "sequence_end": True, "mine": 1.5, "triton_x": False}

    code, response = asker.rpc(request)

    assert [1, 2, 3] == output(asker.infer("f32", {**GOOD, "parameters": parameters}))
    assert (grpc.StatusCode.OK, THREE) == (code, response.raw_output_contents[0])


def test_bare_nan_is_read_and_never_written(asker: Asker) -> None:
    """NaN and infinities are accepted as other servers write them; the answer is valid JSON."""
    body = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[NaN,-Infinity,1]}]}'

    assert [None, None, 1] == output(asker.infer("f32", body))


def test_batch_of_zero_rows_is_answered_empty(asker: Asker) -> None:
    """No rows in, no rows out, over both transports."""
    answer = asker.infer("f32", tensor("FP32", [0, 3], []))
    code, response = asker.rpc(rpc_tensor("f32", "FP32", [0, 3], b""))

    assert [] == output(answer)
    assert answer.json["outputs"][0]["shape"] == [0, 3]
    assert code is grpc.StatusCode.OK
    assert [0, 3] == list(response.outputs[0].shape)


def test_more_rows_than_the_largest_program_are_served(asker: Asker) -> None:
    """A request larger than any compiled batch is split and joined."""
    data = list(range(30))

    assert data == output(asker.infer("f32", tensor("FP32", [10, 3], data)))


def test_scalars_have_rank_zero(asker: Asker) -> None:
    """The shape [] is one element, in and out."""
    assert [5] == output(asker.infer("scalar", tensor("FP32", [], [5])))
    code, response = asker.rpc(rpc_tensor("scalar", "FP32", [], struct.pack("<f", 5)))
    assert code is grpc.StatusCode.OK
    assert list(response.outputs[0].shape) == []
    assert response.raw_output_contents[0] == struct.pack("<f", 5)


def binary_request(
    size: object = 12, data: bytes = THREE, **tensor_more: object
) -> tuple[bytes, str]:
    """A request with one binary tensor; its body and the length of its JSON part."""
    entry = {
        "name": "x",
        "shape": [1, 3],
        "datatype": "FP32",
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [{**entry, **tensor_more}]}).encode()
    return text + data, str(len(text))


def test_binary_tensors_are_read(asker: Asker) -> None:
    """The binary tensor extension works in; the answer is JSON unless binary is asked for."""
    body, length = binary_request()

    assert [1, 2, 3] == output(asker.infer("f32", body, {LENGTH: length}))


@pytest.mark.parametrize(
    ("request_parameters", "outputs", "is_binary"),
    [
        ({"binary_data_output": True}, None, True),
        ({"binary_data_output": True}, [{"name": "y"}], True),
        ({"binary_data_output": True}, [JSON_OUTPUT], False),
        ({}, [{"name": "y", "parameters": {"binary_data": True}}], True),
    ],
)  # fmt: skip
def test_binary_answers_follow_the_written_rule(
    asker: Asker, request_parameters: object, outputs: object, is_binary: bool
) -> None:
    """`binary_data_output` is the default of all outputs; an output's own parameter wins."""
    body: dict[str, Any] = {**GOOD, "parameters": request_parameters}
    if outputs is not None:
        body["outputs"] = outputs
    answer = asker.infer("f32", body)
    assert answer.status == 200
    if not is_binary:
        assert [1, 2, 3] == output(answer)
        return
    length = int(answer.headers[LENGTH.lower()])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.body[length:] == THREE
    described = json.loads(answer.body[:length])["outputs"][0]
    assert described["parameters"]["binary_data_size"] == 12
    assert "data" not in described


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (binary_request()[0], "abc"),
        (binary_request()[0], "-5"),
        (binary_request()[0], "99999"),
        (binary_request()[0], "9" * 5000),
        (binary_request()[0], "\xb2"),
        (binary_request()[0], None),
        (binary_request(-1)[0], binary_request(-1)[1]),
        (binary_request(2**40)[0], binary_request(2**40)[1]),
        (binary_request(8)[0], binary_request(8)[1]),
        (binary_request(12, THREE + b"!")[0], binary_request(12, THREE + b"!")[1]),
        (binary_request(12, THREE[:-1])[0], binary_request(12, THREE[:-1])[1]),
        (binary_request(data=THREE)[0] + THREE, binary_request()[1]),
        (binary_request(12, THREE)[0].replace(b'"parameters"', b'"data": [1,2,3], "parameters"'),
            str(int(binary_request()[1]) + len(b'"data": [1,2,3], '))),
    ],
)  # fmt: skip
def test_wrong_binary_framing_is_a_client_error(
    asker: Asker, body: bytes, length: str | None
) -> None:
    """Lengths that lie are refused before anything is allocated or guessed."""
    refused(asker.infer("f32", body, {} if length is None else {LENGTH: length}), 400)


def test_raw_body_is_the_one_input_and_comes_back_binary(asker: Asker) -> None:
    """A header length of zero makes the whole body the model's one input, as a batch of one."""
    answer = asker.infer("f32", THREE, {LENGTH: "0"})

    assert answer.status == 200, answer.body
    assert answer.body[int(answer.headers[LENGTH.lower()]) :] == THREE
    refused(asker.infer("two", THREE, {LENGTH: "0"}), 400, "one input")


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [("br", b"x", 415), ("gzip", b"not gzip", 400), ("gzip", b"", 400), ("zstd", b"x", 415)],
)
def test_content_codings_are_read_or_named(
    asker: Asker, coding: str, body: bytes, status: int
) -> None:
    """An unknown coding is 415, a damaged body 400; neither reaches the model."""
    refused(asker.infer("f32", body, {"Content-Encoding": coding}), status)


def test_gzip_request_is_served(asker: Asker) -> None:
    """A compressed request is read."""
    import gzip

    body = gzip.compress(json.dumps(GOOD).encode())

    assert [1, 2, 3] == output(asker.infer("f32", body, {"Content-Encoding": "gzip"}))


def test_id_and_model_name_come_back(asker: Asker) -> None:
    """An id is echoed; without one there is none."""
    assert asker.infer("f32", {**GOOD, "id": "é-1"}).json["id"] == "é-1"
    assert "id" not in asker.infer("f32", GOOD).json
    assert asker.infer("f32", GOOD).json["model_name"] == "f32"


def test_names_are_percent_decoded_once(asker: Asker) -> None:
    """Spaces and non-ASCII letters work; a decoded slash separates nothing."""
    assert asker.infer("%66%33%32", GOOD).status == 200
    assert asker.infer("mit%20Leerzeichen-%C3%A9", GOOD).status == 200
    refused(asker.infer("f32%2Finfer", GOOD), 404)
    refused(asker.infer("%2566%2533%2532", GOOD), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/", 200),
        ("HEAD", "/v2/health/live", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready", 200),
        ("GET", "/v2/models/f32/", 200),
        ("GET", "/v2/models/f32/ready", 200),
        ("GET", "/v2/models/f32/versions/1", 200),
        ("GET", "/v2/models/f32/versions/9", 404),
        ("GET", "/v2/models/nobody", 404),
        ("POST", "/v2/models/nobody/infer", 400),
        ("GET", "/v2/models/f32/infer", 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/repository/index", 200),
        ("POST", "/v2/repository/any/index", 200),
        ("GET", "/nothing", 404),
        ("GET", "/v2/models", 404),
        ("POST", "/v2/models/f32/generate", 404),
        ("POST", "/v2/models/f32/generate_stream", 404),
        ("POST", "/v2/repository/models/f32/load", 400),
        ("GET", "/v2/models/f32/%ff", 400),
    ],
)
def test_every_path_answers_with_its_status(
    asker: Asker, method: str, path: str, status: int
) -> None:
    """Known paths answer; others are 404, other verbs 405, in the one error shape."""
    answer = asker.send(method, path, b"" if method == "POST" else None)

    assert status == answer.status, answer.body
    if status >= 400 and method != "HEAD":
        assert "error" in answer.json


def test_health_and_index_have_the_documented_bodies(asker: Asker) -> None:
    """Bodies as the protocol's text has them."""
    assert asker.send("GET", "/v2/health/live").json == {"live": True}
    assert asker.send("GET", "/v2/health/ready").json == {"ready": True}
    assert asker.send("GET", "/v2/models/f32/ready").json == {"name": "f32", "ready": True}
    index = asker.send("POST", "/v2/repository/index", b'{"ready": true}').json
    assert {"name": "f32", "state": "READY"}.items() <= index[3].items() or any(
        {"name": "f32", "state": "READY"}.items() <= entry.items() for entry in index
    )
    refused(asker.send("POST", "/v2/repository/index", b'{"ready": 1}'), 400)


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "raw", "texts"),
    [
        ("f32", "FP32", [1, 3], THREE[:-4], ("'x'", "12", "8")),
        ("f32", "FP32", [1, 3], THREE + THREE, ("'x'", "12", "24")),
        ("f32", "FP32", [-1, 3], THREE, ("'x'", "-1")),
        ("f32", "FP32", [1, 2**62], THREE, ("'x'",)),
        ("f32", "FP32", [2**62, 2**62], THREE, ("'x'",)),
        ("f32", "FP32", [2**30, 2**30], THREE, ("'x'",)),
        ("f32", "FP32", [1, 0], b"", ("'x'", "extent of axis 1", "3")),
        ("f32", "FP32", [3], THREE, ("'x'", "rank")),
        ("f32", "INT32", [1, 3], THREE, ("'x'", "INT32", "FP32")),
        ("f32", "FP33", [1, 3], THREE, ("FP33",)),
        ("f32", "BYTES", [1], b"\xff\xff\xff\xffabc", ("'x'", "4294967295", "3")),
        ("bool", "BOOL", [1, 3], b"\x00\x01\x02", ("'x'",)),
        ("", "FP32", [1, 3], THREE, ("model",)),
        ("f32", "FP32", [1, 3], None, ("'x'",)),
    ],
)
def test_wrong_rpc_is_invalid_argument_that_names_the_place(
    asker: Asker, model: str, datatype: str, shape: list[int], raw: bytes | None,
    texts: tuple[str, ...],
) -> None:  # fmt: skip
    """The same over gRPC: INVALID_ARGUMENT with the reason."""
    code, details = asker.rpc(rpc_tensor(model, datatype, shape, raw))

    assert code is grpc.StatusCode.INVALID_ARGUMENT, details
    for text in texts:
        assert text in details


def test_wrong_names_and_counts_over_grpc_are_named(asker: Asker) -> None:
    """Duplicates, unknown names and stray raw contents are refused."""
    twice = rpc_tensor("f32", "FP32", [1, 3], THREE)
    twice.MergeFrom(rpc_tensor("f32", "FP32", [1, 3], THREE))
    extra = rpc_tensor("f32", "FP32", [1, 3], THREE)
    extra.MergeFrom(rpc_tensor("f32", "FP32", [1, 3], THREE, name="z"))
    stray = rpc_tensor("f32", "FP32", [1, 3], THREE)
    stray.raw_input_contents.append(THREE)
    unknown = rpc_tensor("f32", "FP32", [1, 3], THREE)
    unknown.outputs.add(name="q")
    doubled = rpc_tensor("f32", "FP32", [1, 3], THREE)
    doubled.outputs.add(name="y")
    doubled.outputs.add(name="y")
    for request, text in (
        (twice, "'x'"),
        (extra, "'z'"),
        (stray, "raw_input_contents"),
        (unknown, "'q'"),
        (doubled, "'y'"),
    ):
        code, details = asker.rpc(request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, details
        assert text in details
    code, details = asker.rpc(rpc_tensor("nobody", "FP32", [1, 3], THREE))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in details


@pytest.mark.parametrize(
    ("model", "datatype", "field", "values", "is_good"),
    [
        ("f32", "FP32", "fp32_contents", [1, 2, 3], True),
        ("f32", "FP32", "fp32_contents", [1, 2], False),
        ("i8", "INT8", "int_contents", [1, -128, 127], True),
        ("i8", "INT8", "int_contents", [1, 300, 3], False),
        ("i64", "INT64", "int64_contents", [2**40, -1, 2**62], True),
        ("u64", "UINT64", "uint64_contents", [2**64 - 1, 0, 1], True),
        ("bool", "BOOL", "bool_contents", [True, False, True], True),
        ("f64", "FP64", "fp64_contents", [1e300, 0, 1], True),
        ("f16", "FP16", "fp32_contents", [1, 2, 3], False),
    ],
)
def test_typed_contents_are_read_with_their_counts_and_ranges(
    asker: Asker, model: str, datatype: str, field: str, values: list[Any], is_good: bool
) -> None:
    """The typed fields of the protocol work, and do not narrow in silence."""
    request = rpc_tensor(model, datatype, [1, 3], None)
    getattr(request.inputs[0].contents, field).extend(values)

    code, response = asker.rpc(request)

    assert (grpc.StatusCode.OK if is_good else grpc.StatusCode.INVALID_ARGUMENT) is code, response
    if is_good:
        raw = asker.rpc(rpc_tensor(model, datatype, [1, 3], response.raw_output_contents[0]))[1]
        assert raw.raw_output_contents == response.raw_output_contents


@pytest.mark.parametrize(
    "method", ["CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"]
)
def test_methods_that_are_not_served_say_so(asker: Asker, method: str) -> None:
    """They are UNIMPLEMENTED, with a text that says what is."""
    with pytest.raises(grpc.RpcError) as caught:
        getattr(asker.stub, method)(getattr(service_pb2, f"{method}Request")(), timeout=30)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "CUDA shared memory (unlike system shared memory)" in caught.value.details()


def test_server_survives_all_of_the_above(asker: Asker) -> None:
    """After hostile requests a good one is answered as before."""
    assert [1, 2, 3] == output(asker.infer("f32", GOOD))
    assert asker.rpc(rpc_tensor("f32", "FP32", [1, 3], THREE))[0] is grpc.StatusCode.OK
