"""One golden case for each RPC, by grpcio, and for its endpoint, by httpx: they tell the same."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from support.conformance_worker import Asker, tensor
from support.server_worker import running_worker, write_scale
from support.shared_objects import SharedObject

from hloserve.wire.protos import inference_pb2

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
KEY = "KEY"
"""Stands for the name of an object of shared memory, which differs from run to run."""
CUDA = "CUDA shared memory (unlike system shared memory) is not implemented by this server"
RAW = "AACAPwAAgD8AAIA/AACAPw=="
"""Base64 of four float32 ones, as protobuf writes bytes in JSON; doubled they are `TWOS`."""
TWOS = "AAAAQAAAAEAAAABAAAAAQA=="
INPUTS = [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]
OUTPUTS = [{"name": "y", "datatype": "FP32", "shape": ["1", "4"]}]
SHAPES = ["-1", "4"]
LOG_FILE = {"settings": {"log_info": {"bool_param": True}}}


@dataclass(frozen=True)
class Golden:
    """What one RPC is asked and answers, and its endpoint.

    Attributes:
        request: as protobuf's JSON.
        answer: what the response has at least, as protobuf's JSON; a text is that of UNIMPLEMENTED.
        rest: method, path and body of the endpoint; None where REST has none.
        rest_answer: what its answer has at least; None for an empty one.
    """

    request: Mapping[str, Any]
    answer: Mapping[str, Any] | str
    rest: tuple[str, str, Any] | None = None
    rest_answer: Any = None


TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}

GOLDEN: Mapping[str, Golden] = {
    "ServerLive": Golden({}, {"live": True}, ("GET", "/v2/health/live", None), {"live": True}),
    "ServerReady": Golden({}, {"ready": True}, ("GET", "/v2/health/ready", None), {"ready": True}),
    "ModelReady": Golden(
        {"name": "scale", "version": "1"},
        {"ready": True},
        ("GET", "/v2/models/scale/versions/1/ready", None),
        {"name": "scale", "ready": True},
    ),
    "ServerMetadata": Golden(
        {}, {"name": "hloserve"}, ("GET", "/v2", None), {"name": "hloserve"}
    ),
    "ModelMetadata": Golden(
        {"name": "scale"},
        {
            "name": "scale",
            "platform": "fake",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": SHAPES}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": SHAPES}],
        },
        ("GET", "/v2/models/scale", None),
        {"name": "scale", "versions": [], "platform": "fake", **TENSORS},
    ),
    "ModelInfer": Golden(
        {"model_name": "scale", "id": "7", "inputs": INPUTS, "raw_input_contents": [RAW]},
        {"model_name": "scale", "id": "7", "outputs": OUTPUTS, "raw_output_contents": [TWOS]},
        ("POST", "/v2/models/scale/infer", {"id": "7", **tensor("FP32", [1, 4], [1, 1, 1, 1])}),
        {
            "model_name": "scale",
            "id": "7",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.0] * 4}],
        },
    ),
    "ModelStreamInfer": Golden(
        {"model_name": "scale", "id": "7", "inputs": INPUTS, "raw_input_contents": [RAW]},
        {
            "infer_response": {
                "model_name": "scale",
                "id": "7",
                "parameters": {"triton_final_response": {"bool_param": True}},
                "outputs": OUTPUTS,
                "raw_output_contents": [TWOS],
            }
        },
    ),
    "ModelConfig": Golden(
        {"name": "scale"},
        {"config": {"name": "scale", "backend": "xla", "max_batch_size": 8}},
        ("GET", "/v2/models/scale/config", None),
        {"name": "scale", "backend": "xla", "max_batch_size": 8},
    ),
    "ModelStatistics": Golden(
        {"name": "never"},
        {"model_stats": [{"name": "never", "version": "1", "memory_usage": [{"type": "CPU"}]}]},
        ("GET", "/v2/models/never/stats", None),
        {"model_stats": [{"name": "never", "version": "1", "inference_count": 0}]},
    ),
    "RepositoryIndex": Golden(
        {"ready": True},
        {"models": [{"name": "never", "state": "READY"}, {"name": "scale", "state": "READY"}]},
        ("POST", "/v2/repository/index", {"ready": True}),
        [{"name": "never", "state": "READY"}, {"name": "scale", "state": "READY"}],
    ),
    "RepositoryModelLoad": Golden(
        {"model_name": "scale"}, {}, ("POST", "/v2/repository/models/scale/load", {})
    ),
    "RepositoryModelUnload": Golden(
        {"model_name": "late"}, {}, ("POST", "/v2/repository/models/late/unload", {})
    ),
    "SystemSharedMemoryRegister": Golden(
        {"name": "r", "key": KEY, "offset": "8", "byte_size": "64"},
        {},
        ("POST", "/v2/systemsharedmemory/region/r/register",
         {"key": KEY, "offset": 8, "byte_size": 64}),
    ),
    "SystemSharedMemoryStatus": Golden(
        {"name": "kept"},
        {"regions": {"kept": {"name": "kept", "key": KEY, "offset": "8", "byte_size": "64"}}},
        ("GET", "/v2/systemsharedmemory/region/kept/status", None),
        [{"name": "kept", "key": KEY, "offset": 8, "byte_size": 64, "requests": 0}],
    ),
    "SystemSharedMemoryUnregister": Golden(
        {"name": "r"}, {}, ("POST", "/v2/systemsharedmemory/region/r/unregister", None)
    ),
    "CudaSharedMemoryStatus": Golden(
        {}, CUDA, ("GET", "/v2/cudasharedmemory/status", None), {"error": CUDA}
    ),
    "CudaSharedMemoryRegister": Golden(
        {"name": "r"}, CUDA, ("POST", "/v2/cudasharedmemory/region/r/register", {}),
        {"error": CUDA},
    ),
    "CudaSharedMemoryUnregister": Golden(
        {"name": "r"}, CUDA, ("POST", "/v2/cudasharedmemory/region/r/unregister", {}),
        {"error": CUDA},
    ),
    "TraceSetting": Golden(
        {"model_name": "scale"},
        {"settings": {"trace_level": {"value": ["OFF"]}, "trace_count": {"value": ["-1"]}}},
        ("GET", "/v2/models/scale/trace/setting", None),
        {"trace_level": ["OFF"], "trace_count": "-1"},
    ),
    "LogSettings": Golden(
        LOG_FILE, LOG_FILE, ("POST", "/v2/logging", {"log_info": True}), {"log_info": True}
    ),
    "IsSameIPCNamespace": Golden({"name": KEY}, {"same": True}),
}  # fmt: skip


@pytest.fixture(name="asker", scope="module")
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A worker of "scale" and "never", that loads on request and has shared memory."""
    repository = tmp_path_factory.mktemp("repository")
    write_scale(repository)
    write_scale(repository, "never")
    write_scale(repository, "late")
    settings = {
        "shared_memory.enabled": True,
        "model_control_mode": "explicit",
        "startup_models": ["scale", "never"],
    }
    with running_worker(repository, settings=settings) as worker:
        asker = Asker(worker)
        asker.connect()
        yield asker
        asker.close()


@pytest.fixture(name="rest", scope="module")
def connect_httpx(asker: Asker) -> Iterator[httpx.Client]:
    """One client for all, as making one takes long."""
    with httpx.Client(base_url=asker.url) as client:
        client.get("/v2")
        yield client


@pytest.fixture(name="key", scope="module")
def make_region(asker: Asker) -> Iterator[str]:
    """The name of an object, which is registered as "kept"."""
    with SharedObject(4096) as shared:
        body = {"key": shared.key, "offset": 8, "byte_size": 64}
        path = "/v2/systemsharedmemory/region/kept/register"
        assert asker.send("POST", path, json.dumps(body).encode()).status == 200
        yield shared.key
        asker.send("POST", "/v2/systemsharedmemory/unregister")


def _with_key(value: Any, key: str) -> Any:
    return json.loads(json.dumps(value).replace(f'"{KEY}"', f'"{key}"'))


def assert_has(got: Any, expected: Any) -> None:
    """Assert that an answer has all that is expected, whatever else it has."""
    if isinstance(expected, Mapping):
        assert isinstance(got, Mapping), got
        for name, value in expected.items():
            assert_has(got.get(name), value)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(got) == len(expected), got
        for one, value in zip(got, expected, strict=True):
            assert_has(one, value)
    else:
        assert got == expected


def test_every_rpc_has_its_golden_case() -> None:
    """One that is added cannot be left out."""
    assert {method.name for method in SERVICE.methods} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_rpc_answers_as_written(asker: Asker, key: str, name: str) -> None:
    """By grpcio, with our own messages, which have all fields."""
    golden, method = GOLDEN[name], SERVICE.methods_by_name[name]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    message = ParseDict(_with_key(golden.request, key), request()).SerializeToString()
    with grpc.insecure_channel(asker.grpc_address) as channel:
        path = f"/{SERVICE.full_name}/{name}"
        if method.client_streaming:
            (body,) = channel.stream_stream(path)(iter([message]), timeout=30)
        else:
            call = channel.unary_unary(path).future(message, timeout=30)
            if isinstance(golden.answer, str):
                assert call.code() is grpc.StatusCode.UNIMPLEMENTED
                assert golden.answer == call.details()
                return
            body = call.result()
    got = MessageToDict(response.FromString(body), preserving_proto_field_name=True)

    assert_has(got, _with_key(golden.answer, key))


@pytest.mark.parametrize("name", [name for name, golden in GOLDEN.items() if golden.rest])
def test_endpoint_answers_as_written(rest: httpx.Client, key: str, name: str) -> None:
    """By httpx; with a HEAD like each GET, and the methods that are not for it refused."""
    golden = GOLDEN[name]
    assert golden.rest is not None
    verb, path, body = golden.rest
    content = None if body is None else json.dumps(_with_key(body, key)).encode()
    answer = rest.request(verb, path, content=content)
    other = rest.put(path)

    assert answer.status_code == (501 if golden.answer == CUDA else 200), answer.text
    if golden.rest_answer is None:
        assert answer.content == b""
    else:
        assert_has(answer.json(), _with_key(golden.rest_answer, key))
    assert other.status_code == 405
    assert verb in other.headers["allow"].split(", ")
    if verb == "GET":
        assert rest.head(path).status_code == answer.status_code


def test_tritonclients_two_transports_tell_the_same(asker: Asker) -> None:
    """Of everything that can be asked without changing something."""
    told = []
    with (
        tritonclient.http.InferenceServerClient(asker.http_address) as over_http,
        tritonclient.grpc.InferenceServerClient(asker.grpc_address) as over_grpc,
    ):
        for client, more in ((over_http, {}), (over_grpc, {"as_json": True})):
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("scale", "1")
            assert not client.is_model_ready("late")
            server = client.get_server_metadata(**more)
            model = client.get_model_metadata("scale", **more)
            config = client.get_model_config("scale", **more)
            index = client.get_model_repository_index(**more)
            told.append(
                (
                    (server["name"], server["version"], server["extensions"]),
                    (model["name"], [int(n) for n in model["inputs"][0]["shape"]]),
                    config.get("config", config)["max_batch_size"],
                    [
                        (entry["name"], entry["state"], entry.get("reason", ""))
                        for entry in (index["models"] if more else index)
                    ],
                )
            )

    assert told[0] == told[1]
    assert [("late", "UNAVAILABLE"), ("never", "READY"), ("scale", "READY")] == [
        entry[:2] for entry in told[0][3]
    ]


def test_path_of_the_repository_names_one(rest: httpx.Client) -> None:
    """Triton's routes have the name of a repository in front; there is one here."""
    for path in ("/v2/repository/any/index", "/v2/repository/any/models/scale/load"):
        assert rest.post(path).status_code == 200
