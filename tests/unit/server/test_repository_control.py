"""Load and unload on request, over gRPC and REST: the model repository extension."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_services import Services, running_services
from support.server_worker import write_scale
from support.wire_callers import GrpcCaller, RestCaller

from hloserve.core.clock import SystemClock
from hloserve.core.errors import Code
from hloserve.server.grpc_service import GrpcInferenceService
from hloserve.server.rest_service import RestInferenceService
from hloserve.wire import v2_protobuf_metadata as calls
from hloserve.wire.protos import inference_pb2
from hloserve.wire.status import STATUS


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """A server in explicit mode that serves "scale", with a bundle "late" beside it."""
    with running_services(tmp_path) as made:
        write_scale(tmp_path, "late")
        yield made


def _grpc(services: Services, method: str, message: bytes) -> GrpcCaller:
    service = GrpcInferenceService(
        services.inference,
        services.catalog,
        services.control,
        services.operations,
        SystemClock(),
    )
    caller = GrpcCaller(message)
    service.methods()[f"/inference.GRPCInferenceService/{method}"](caller)
    while caller.answer is None and caller.error is None:
        services.engine.loop.run_one()
    return caller


def _rest(services: Services, target: str, body: object = None) -> RestCaller:
    service = RestInferenceService(
        services.inference,
        services.catalog,
        services.control,
        services.operations,
        SystemClock(),
        {},
    )
    caller = RestCaller("POST", target, b"" if body is None else json.dumps(body).encode())
    service(caller.exchange)
    while not caller.status:
        services.engine.loop.run_one()
    return caller


def _ask(services: Services, way: str, verb: str, model: str) -> tuple[Code | None, str]:
    """Load or unload; the code and text of the error, if it is one."""
    if way == "REST":
        answer = _rest(services, f"/v2/repository/models/{model}/{verb}")
        codes = {STATUS[code].http: code for code in (Code.NOT_FOUND, Code.FAILED_PRECONDITION)}
        return codes.get(answer.status), answer.body.decode()
    encode = calls.encode_load_request if verb == "load" else calls.encode_unload_request
    caller = _grpc(services, f"RepositoryModel{verb.capitalize()}", encode(model))
    if caller.error is None:
        return None, ""
    return next(c for c in Code if STATUS[c].grpc == caller.error[0]), caller.error[1]


@pytest.mark.parametrize("way", ["REST", "gRPC"])
def test_load_is_answered_when_the_model_serves(services: Services, way: str) -> None:
    """The answer is empty, and the next request is served."""
    assert (None, "") == _ask(services, way, "load", "late")

    assert services.registry.is_serving("late")


@pytest.mark.parametrize("way", ["REST", "gRPC"])
def test_load_of_an_unchanged_model_changes_nothing(services: Services, way: str) -> None:
    """It serves already, so there is nothing to wait for."""
    _ask(services, way, "load", "late")
    device = services.registry.get("late").device

    assert (None, "") == _ask(services, way, "load", "late")

    assert device is services.registry.get("late").device


@pytest.mark.parametrize("way", ["REST", "gRPC"])
def test_load_of_a_broken_bundle_tells_the_reason(services: Services, way: str) -> None:
    """The operator who asked gets the findings."""
    bundle = write_scale(services.model.bundle.parent, "broken")
    (bundle / "weights.safetensors").write_bytes(b"")

    code, text = _ask(services, way, "load", "broken")

    assert Code.FAILED_PRECONDITION is code
    assert "weights.safetensors" in text
    assert "cannot be loaded" in text


@pytest.mark.parametrize("way", ["REST", "gRPC"])
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_unknown_model_is_not_found(services: Services, way: str, verb: str) -> None:
    """Neither in a repository nor served."""
    assert Code.NOT_FOUND is _ask(services, way, verb, "zebra")[0]


@pytest.mark.parametrize("way", ["REST", "gRPC"])
def test_unloaded_model_stays_in_the_index(services: Services, way: str) -> None:
    """It can be loaded again; until then nobody finds it."""
    _ask(services, way, "load", "late")

    assert (None, "") == _ask(services, way, "unload", "late")

    entry = next(entry for entry in services.catalog.index() if entry.name == "late")
    assert ("UNAVAILABLE", "unloaded") == (entry.state.index_text, entry.reason)
    assert (None, "") == _ask(services, way, "load", "late")


@pytest.mark.parametrize("way", ["REST", "gRPC"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_other_modes_refuse(tmp_path: Path, way: str, mode: str, verb: str) -> None:
    """What follows the repository by itself is not told what to do; the setting is named."""
    with running_services(tmp_path, mode) as services:
        code, text = _ask(services, way, verb, "scale")

    assert Code.FAILED_PRECONDITION is code
    assert "model_control_mode" in text


def test_parameters_of_a_load_are_refused_by_name(services: Services) -> None:
    """A configuration or files that travel with the request would be ignored in silence."""
    request = inference_pb2.RepositoryModelLoadRequest(model_name="late")
    request.parameters["file:model.mlir"].bytes_param = b"12345"

    caller = _grpc(services, "RepositoryModelLoad", request.SerializeToString())
    answer = _rest(services, "/v2/repository/models/late/load", {"parameters": {"config": "{}"}})

    assert caller.error is not None
    assert "'file:model.mlir'" in caller.error[1]
    assert 400 == answer.status
    assert "'config'" in answer.json["error"]
    assert not services.registry.is_serving("late")


def test_unload_takes_unload_dependents_and_nothing_else(services: Services) -> None:
    """Triton's parameter, true or false."""
    path = "/v2/repository/models/scale/unload"

    assert 400 == _rest(services, path, {"parameters": {"force": True}}).status
    assert 400 == _rest(services, path, {"parameters": {"unload_dependents": "yes"}}).status
    assert 200 == _rest(services, path, {"parameters": {"unload_dependents": True}}).status
    assert not services.registry.is_serving("scale")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v2/repository/models/late/load", 200),
        ("/v2/repository/any/models/late/load", 200),
        ("/v2/repository/models/models/load", 404),
        ("/v2/repository/models/late", 404),
        ("/v2/repository/a/b/models/late/load", 404),
        ("/v2/repository/models/late/explode", 404),
    ],
)
def test_paths_of_the_extension(services: Services, target: str, status: int) -> None:
    """With and without the name of a repository; a model may be called like a part of the path."""
    assert status == _rest(services, target).status
