"""The V2 methods over gRPC: decode, call, encode."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.server_services import Services, running_services
from support.server_worker import rows
from support.wire_callers import GrpcCaller

from hloserve.core.clock import SystemClock
from hloserve.core.errors import Code
from hloserve.core.requests import NEVER_NS, InferRequest
from hloserve.server.grpc_service import GrpcInferenceService
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_metadata as calls
from hloserve.wire.status import grpc_code


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """One model that serves."""
    with running_services(tmp_path) as made:
        yield made


def _call(
    services: Services, method: str, message: bytes = b"", deadline_ns: int = NEVER_NS
) -> GrpcCaller:
    service = GrpcInferenceService(
        services.inference,
        services.catalog,
        services.control,
        services.operations,
        SystemClock(),
    )
    caller = GrpcCaller(message, deadline_ns)
    service.methods()[f"/inference.GRPCInferenceService/{method}"](caller)
    return caller


def _infer(services: Services, model: str = "scale", deadline_ns: int = NEVER_NS) -> GrpcCaller:
    message = codec.encode_infer_request(InferRequest(model, {"x": rows(1, 2)}, id="a"))
    return _call(services, "ModelInfer", message, deadline_ns)


def _answer(caller: GrpcCaller) -> bytes:
    assert caller.answer is not None, f"the call failed: {caller.error}"
    return caller.answer


def test_inference_is_answered_when_its_batch_has_run(services: Services) -> None:
    """The response has the id of the request and the outputs of the model."""
    caller = _infer(services)
    services.deliver()

    response = codec.decode_infer_response(_answer(caller))
    assert ("scale", "a") == (response.model, response.id)
    np.testing.assert_array_equal(rows(2, 4), response.outputs["y"])


def test_call_that_is_cancelled_leaves_nothing_behind(services: Services) -> None:
    """Neither in the queue nor in the count of requests."""
    services.engine.hold_device(services.model.device)
    caller = _infer(services)

    caller.cancelled()

    assert (caller.answer, caller.error) == (None, None)
    assert (
        services.engine.scheduler.depth(services.model.device),
        services.inference.in_flight,
    ) == (0, 0)


@pytest.mark.parametrize(
    ("method", "message", "code"),
    [
        ("ModelInfer", b"\xff", Code.INVALID_ARGUMENT),
        ("ModelMetadata", b"\xff", Code.INVALID_ARGUMENT),
        ("ModelMetadata", calls.encode_model_metadata_request("never"), Code.NOT_FOUND),
    ],
)
def test_faults_of_the_caller_are_told_by_status(
    services: Services, method: str, message: bytes, code: Code
) -> None:
    """A message that cannot be read, and a name that is not known."""
    caller = _call(services, method, message)

    assert caller.error is not None
    assert grpc_code(code) == caller.error[0]


def test_request_fails_with_the_status_of_its_error(services: Services) -> None:
    """An unknown model, and a deadline that is over."""
    codes = [_infer(services, "never").error, _infer(services, deadline_ns=1).error]

    assert [grpc_code(Code.NOT_FOUND), grpc_code(Code.DEADLINE_EXCEEDED)] == [
        error[0] for error in codes if error is not None
    ]


def test_server_whose_device_is_lost_is_neither_live_nor_ready(services: Services) -> None:
    """Whoever restarts it need not wait for its end."""
    services.catalog.is_live = False

    assert not calls.decode_server_live(_answer(_call(services, "ServerLive")))
    assert not calls.decode_server_ready(_answer(_call(services, "ServerReady")))


def test_questions_are_answered_at_once(services: Services) -> None:
    """Live, ready, metadata and index need no device."""
    assert calls.decode_server_live(_answer(_call(services, "ServerLive")))
    assert calls.decode_server_ready(_answer(_call(services, "ServerReady")))
    server = calls.decode_server_metadata(_answer(_call(services, "ServerMetadata")))
    assert server.name == "hloserve"
    asked = calls.encode_model_metadata_request("scale")
    model = calls.decode_model_metadata(_answer(_call(services, "ModelMetadata", asked)))
    assert model == services.model.metadata
    index = calls.decode_repository_index(_answer(_call(services, "RepositoryIndex")))
    assert ["scale"] == [entry.name for entry in index]


@pytest.mark.parametrize(("name", "expected"), [("scale", True), ("never", False)])
def test_model_that_is_unknown_is_not_ready(services: Services, name: str, expected: bool) -> None:
    """The protocol answers this question, and does not fail, for every name."""
    message = calls.encode_model_ready_request(name)

    assert calls.decode_model_ready(_answer(_call(services, "ModelReady", message))) is expected
