"""The shared memory extension, message by message: the same over REST and gRPC."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from support.conformance_worker import Asker, write_identities
from support.server_worker import running_worker
from support.shared_objects import SharedObject
from tritonclient.grpc import service_pb2

from hloserve.core.dtypes import DTYPES
from hloserve.wire.protos import inference_pb2

REGION, OFFSET, SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
WAYS = ["rest", "grpc"]


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Raw access to a worker that has shared memory enabled."""
    repository = tmp_path_factory.mktemp("identities")
    write_identities(repository)
    settings = {"shared_memory.enabled": True, "shared_memory.max_copied_bytes": 2**20}
    with running_worker(repository, settings=settings) as worker:
        asker = Asker(worker)
        asker.connect()
        yield asker
        asker.close()


@pytest.fixture
def shared() -> Iterator[SharedObject]:
    """An object of four pages."""
    with SharedObject(4 * 4096) as made:
        yield made


def _call(asker: Asker, method: str, message: Any) -> Any:
    """One RPC: the answer, or status and text."""
    try:
        return getattr(asker.stub, method)(message, timeout=30)
    except grpc.RpcError as error:
        return error.code(), error.details()


def _register(
    asker: Asker, way: str, name: str, key: object, offset: object, size: object
) -> str | None:
    """None, or the text of a refusal, which is the caller's fault."""
    if way == "rest":
        body = {"key": key, "offset": offset, "byte_size": size}
        answer = asker.send("POST", f"/v2/systemsharedmemory/region/{name}/register", _json(body))
        assert answer.status in (200, 400), answer.body
        return None if answer.status == 200 else answer.json["error"]
    message = service_pb2.SystemSharedMemoryRegisterRequest(
        name=name, key=key, offset=offset, byte_size=size
    )
    answer = _call(asker, "SystemSharedMemoryRegister", message)
    if isinstance(answer, tuple):
        assert answer[0] is grpc.StatusCode.INVALID_ARGUMENT
        return str(answer[1])
    return None


def _unregister(asker: Asker, way: str, name: str) -> None:
    if way == "rest":
        path = f"/region/{name}" if name else ""
        answer = asker.send("POST", f"/v2/systemsharedmemory{path}/unregister")
        assert (200, b"") == (answer.status, answer.body)
    else:
        message = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        _call(asker, "SystemSharedMemoryUnregister", message)


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


def _infer(
    asker: Asker,
    way: str,
    model: str,
    shape: list[int],
    datatype: str,
    place: dict[str, object],
    out: dict[str, object] | None = None,
) -> tuple[str, Any]:
    """Infer with an input in shared memory; the status' name, and the answer or the text."""
    if way == "rest":
        body: dict[str, Any] = {
            "inputs": [{"name": "x", "shape": shape, "datatype": datatype, "parameters": place}],
            "outputs": [{"name": "y", "parameters": out or {}}],
        }
        answer = asker.infer(model, body)
        if answer.status == 200:
            return "OK", answer.json["outputs"][0]
        assert answer.status in (400, 429), answer.body
        return "refused", answer.json["error"]
    request = service_pb2.ModelInferRequest(model_name=model)
    _set(request.inputs.add(name="x", datatype=datatype, shape=shape).parameters, place)
    _set(request.outputs.add(name="y").parameters, out or {})
    status, response = asker.rpc(request)
    return ("OK", response) if status is grpc.StatusCode.OK else (status.name, response)


def _set(parameters: Any, values: dict[str, object]) -> None:
    for key, value in values.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(parameters[key], kind, value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("token", [dtype.token for dtype in DTYPES if dtype.kserve])
def test_every_datatype_goes_through(
    sharing: Asker, shared: SharedObject, token: str, way: str
) -> None:
    """Bytes in are bytes out, at offsets that are no multiple of the element size."""
    dtype = next(dtype for dtype in DTYPES if dtype.token == token)
    data = np.array([[1, 0, 1]]).astype(dtype.numpy).tobytes()
    shared.bytes[3 : 3 + len(data)] = np.frombuffer(data, np.uint8)
    assert _register(sharing, way, "r", shared.key, 0, 4096) is None

    place: dict[str, object] = {REGION: "r", OFFSET: 3, SIZE: len(data)}
    out: dict[str, object] = {REGION: "r", OFFSET: 1001, SIZE: 64}
    status, answer = _infer(sharing, way, token, [1, 3], dtype.kserve or "", place, out)

    assert "OK" == status, answer
    assert data == shared.bytes[1001 : 1001 + len(data)].tobytes()
    if way == "grpc":
        assert [b""] == list(answer.raw_output_contents)
        assert len(data) == answer.outputs[0].parameters[SIZE].int64_param
    else:
        assert {"name", "datatype", "shape"} == set(answer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("key", "offset", "size", "text"),
    [
        ("", 0, 8, "no name of an object"),
        ("../etc/passwd", 0, 8, "no name of an object"),
        ("/a/b", 0, 8, "no name of an object"),
        ("hloserve-test-absent", 0, 8, "cannot be opened"),
        (None, 0, 0, "byte_size is 0"),
        (None, 4 * 4096, 1, "more than the object"),
        (None, 1, 4 * 4096, "more than the object"),
        (None, 2**62, 2**62, "more than the object"),
        (None, 2**63 - 1, 1, "more than the object"),
        (None, 2**64 - 1, 1, "offset"),
        (None, 1, 2**64 - 1, "byte_size"),
    ],
)
def test_what_is_no_part_of_an_object_is_not_registered(
    sharing: Asker,
    shared: SharedObject,
    way: str,
    key: str | None,
    offset: int,
    size: int,
    text: str,
) -> None:
    """Names are confined, and sums do not overflow."""
    answer = _register(sharing, way, "bad", shared.key if key is None else key, offset, size)

    assert answer is not None
    assert text in answer


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"key": 5, "byte_size": 8}', b'{"key": "a", "byte_size": "8"}',
             b'{"key": "a", "byte_size": 1e3}', b"\xff", b"[" * 5000],
)  # fmt: skip
def test_malformed_register_body_is_refused(sharing: Asker, body: bytes) -> None:
    """One error shape, no traceback."""
    answer = sharing.send("POST", "/v2/systemsharedmemory/region/r/register", body)

    assert 400 == answer.status
    assert ["error"] == list(answer.json)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        ({REGION: "none", SIZE: 12}, "FAILED_PRECONDITION", "unregistered shared memory region"),
        ({REGION: "r", SIZE: 11}, "INVALID_ARGUMENT", "'x'"),
        ({REGION: "r", SIZE: 12, OFFSET: 53}, "INVALID_ARGUMENT", "not inside"),
        ({REGION: "r", SIZE: 12, OFFSET: 2**63 - 1}, "INVALID_ARGUMENT", "not inside"),
        ({REGION: "r", SIZE: 12, OFFSET: -1}, "INVALID_ARGUMENT", "-1"),
        ({REGION: "r"}, "INVALID_ARGUMENT", SIZE),
        ({SIZE: 12}, "INVALID_ARGUMENT", REGION),
        ({OFFSET: 0}, "INVALID_ARGUMENT", REGION),
    ],
)
def test_places_that_are_none_are_refused(
    sharing: Asker,
    shared: SharedObject,
    way: str,
    place: dict[str, object],
    code: str,
    text: str,
) -> None:
    """The same for inputs over both transports; nothing is copied."""
    assert _register(sharing, way, "r", shared.key, 0, 64) is None

    status, answer = _infer(sharing, way, "f32", [1, 3], "FP32", place)

    assert status in ("refused", code)
    assert text in answer


@pytest.mark.parametrize("way", WAYS)
def test_output_larger_than_its_place_is_refused(
    sharing: Asker, shared: SharedObject, way: str
) -> None:
    """And nothing of it is written."""
    assert _register(sharing, way, "r", shared.key, 0, 64) is None
    shared.bytes[:] = 0
    shared.bytes[:12] = 1
    place: dict[str, object] = {REGION: "r", SIZE: 12}
    out: dict[str, object] = {REGION: "r", OFFSET: 32, SIZE: 11}

    status, text = _infer(sharing, way, "f32", [1, 3], "FP32", place, out)

    assert status in ("refused", "INVALID_ARGUMENT")
    assert "output 'y': shared_memory_byte_size is 11, expected at least 12" in text
    assert not shared.bytes[12:].any()


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_checked_before_they_are_copied(
    sharing: Asker, shared: SharedObject, way: str
) -> None:
    """Dtype, shape and model; and the limit of what is copied at once."""
    assert _register(sharing, way, "r", shared.key, 0, 4 * 4096) is None

    for model, shape, datatype, size, text in (
        ("f32", [1, 3], "INT32", 12, "datatype"),
        ("f32", [1, 4], "FP32", 16, "extent"),
        ("absent", [1, 3], "FP32", 12, "absent"),
    ):
        place: dict[str, object] = {REGION: "r", SIZE: size}
        if model == "absent" and way == "rest":
            continue  # a 404, which test_hostile_requests looks at
        status, answer = _infer(sharing, way, model, shape, datatype, place)
        assert "OK" != status
        assert text in answer


@pytest.mark.parametrize("way", WAYS)
def test_object_that_was_cut_fails_its_requests_and_nobody_else(
    sharing: Asker, shared: SharedObject, way: str
) -> None:
    """The server goes on; registering again helps."""
    assert _register(sharing, way, "r", shared.key, 4096, 64) is None
    shared.resize(0)
    place: dict[str, object] = {REGION: "r", SIZE: 12}

    for _ in range(2):
        status, text = _infer(sharing, way, "f32", [1, 3], "FP32", place)
        assert status in ("refused", "FAILED_PRECONDITION")
        assert "'r' has lost its memory" in text

    shared.resize(8192)
    assert _register(sharing, way, "r", shared.key, 4096, 64) is None
    assert "OK" == _infer(sharing, way, "f32", [1, 3], "FP32", place)[0]


def test_status_tells_owner_and_use_beyond_the_protocol(
    sharing: Asker, shared: SharedObject
) -> None:
    """For one region and for all; an unknown one is an empty answer, not an error."""
    _unregister(sharing, "grpc", "")
    assert _register(sharing, "rest", "r", "/" + shared.key, 16, 64) is None

    answer = sharing.send("GET", "/v2/systemsharedmemory/status")
    (region,) = answer.json
    body = _call(
        sharing, "SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(name="r")
    ).SerializeToString()
    ours = inference_pb2.SystemSharedMemoryStatusResponse.FromString(body).regions["r"]

    assert ("r", "/" + shared.key, 16, 64) == tuple(
        region[key] for key in ("name", "key", "offset", "byte_size")
    )
    owner = shared.path.stat().st_uid
    assert (owner, 0) == (region["owner_uid"], region["requests"])
    assert (owner, 0, 64) == (ours.owner_uid, ours.requests, ours.byte_size)
    assert 0 <= region["age_s"] <= ours.age_s
    one = sharing.send("GET", "/v2/systemsharedmemory/region/r/status")
    assert ["r"] == [found["name"] for found in one.json]
    assert [] == sharing.send("GET", "/v2/systemsharedmemory/region/none/status").json


def test_namespace_is_the_same_where_an_object_can_be_seen(
    sharing: Asker, shared: SharedObject
) -> None:
    """For names of objects alone; never an error."""
    ask = grpc.insecure_channel(sharing.grpc_address)
    call = ask.unary_unary("/inference.GRPCInferenceService/IsSameIPCNamespace")
    answers = []
    for key in (shared.key, "/" + shared.key, "", "absent", "../shm/" + shared.key, "a/b"):
        message = inference_pb2.IsSameIPCNamespaceRequest(name=key).SerializeToString()
        body = call(message, timeout=30)
        answers.append(inference_pb2.IsSameIPCNamespaceResponse.FromString(body).same)
    ask.close()

    assert [True, True, False, False, False, False] == answers


@pytest.mark.parametrize("verb", ["Status", "Register", "Unregister"])
def test_cuda_shared_memory_is_unimplemented(sharing: Asker, verb: str) -> None:
    """Over both transports, in words."""
    status, text = _call(
        sharing,
        f"CudaSharedMemory{verb}",
        getattr(service_pb2, f"CudaSharedMemory{verb}Request")(),
    )
    method = "GET" if verb == "Status" else "POST"
    one = sharing.send(method, f"/v2/cudasharedmemory/region/r/{verb.lower()}")

    assert (grpc.StatusCode.UNIMPLEMENTED, 501) == (status, one.status)
    assert "CUDA shared memory" in text
    assert text == one.json["error"]


@pytest.mark.parametrize("way", WAYS)
def test_shared_memory_is_off_unless_enabled(asker: Asker, shared: SharedObject, way: str) -> None:
    """Every call says so, and which setting it is; nothing is looked for."""
    if way == "grpc":
        message = service_pb2.SystemSharedMemoryRegisterRequest(
            name="r", key=shared.key, byte_size=8
        )
        answers = [
            _call(asker, "SystemSharedMemoryRegister", message),
            _call(asker, "SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
            _call(
                asker,
                "SystemSharedMemoryUnregister",
                service_pb2.SystemSharedMemoryUnregisterRequest(),
            ),
            _infer(asker, way, "f32", [1, 3], "FP32", {REGION: "r", SIZE: 12}),
        ]
        assert {"FAILED_PRECONDITION"} == {getattr(code, "name", code) for code, _ in answers}
        assert all("shared_memory.enabled" in text for _, text in answers)
    else:
        body = _json({"key": shared.key, "byte_size": 8})
        path = "/v2/systemsharedmemory"
        refusals = [
            asker.send("POST", f"{path}/region/r/register", body),
            asker.send("GET", f"{path}/status"),
            asker.send("POST", f"{path}/unregister"),
        ]
        assert [400] * 3 == [answer.status for answer in refusals]
        assert all("shared_memory.enabled" in answer.json["error"] for answer in refusals)


def test_metadata_names_the_extension_where_it_is_enabled(asker: Asker, sharing: Asker) -> None:
    """A client can ask before it tries."""
    extensions = [a.send("GET", "/v2").json["extensions"] for a in (asker, sharing)]

    assert [False, True] == ["system_shared_memory" in known for known in extensions]


def test_more_than_may_be_copied_is_refused_until_later(sharing: Asker) -> None:
    """A small message cannot make the server allocate without bound."""
    with SharedObject(2**21) as large:
        assert _register(sharing, "grpc", "large", large.key, 0, 2**21) is None
        rows = 2**21 // 12
        place: dict[str, object] = {REGION: "large", SIZE: rows * 12}

        status, text = _infer(sharing, "grpc", "f32", [rows, 3], "FP32", place)

        assert "RESOURCE_EXHAUSTED" == status
        assert "shared_memory.max_copied_bytes" in text
        _unregister(sharing, "grpc", "large")
