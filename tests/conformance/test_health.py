"""`grpc.health.v1.Health` as grpcio's own stubs see it."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.server_worker import RunningWorker, running_worker, write_scale

from hloserve import Client
from hloserve.engine.fake_backend import FakeBackend
from hloserve.wire.protos import health_pb2 as ours

_STATUS = health_pb2.HealthCheckResponse.ServingStatus
_SERVER_NAMES = (
    "",
    "inference.GRPCInferenceService",
    "reactant_control.ControlService",
    "grpc.health.v1.Health",
)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker that serves "scale" and knows "late", in explicit mode."""
    write_scale(tmp_path)
    write_scale(tmp_path, "late")
    settings = {"model_control_mode": "explicit", "startup_models": ["scale"]}
    with running_worker(tmp_path, settings=settings) as running:
        yield running


@pytest.fixture
def address(worker: RunningWorker) -> str:
    """Its gRPC address."""
    return "{}:{}".format(*worker.addresses.grpc)


@pytest.fixture
def health(address: str) -> Iterator[health_pb2_grpc.HealthStub]:
    """A stub of the health service."""
    with grpc.insecure_channel(address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def _check(health: health_pb2_grpc.HealthStub, service: str) -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    return str(_STATUS.Name(health.Check(request, timeout=20).status))


def _watch(health: health_pb2_grpc.HealthStub, service: str) -> Iterator[str]:
    call = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=50)
    return (str(_STATUS.Name(answer.status)) for answer in call)


@pytest.mark.parametrize("service", _SERVER_NAMES)
def test_server_is_checked_by_the_empty_name_and_its_services(
    health: health_pb2_grpc.HealthStub, service: str
) -> None:
    """They mean the server's readiness."""
    assert _check(health, service) == "SERVING"


def test_model_is_checked_by_its_name(health: health_pb2_grpc.HealthStub) -> None:
    """SERVING while requests to it are served; known and not loaded is NOT_SERVING."""
    assert (_check(health, "scale"), _check(health, "late")) == ("SERVING", "NOT_SERVING")


def test_unknown_name_is_not_found(health: health_pb2_grpc.HealthStub) -> None:
    """The status of the call says so, as the protocol wants of Check."""
    with pytest.raises(grpc.RpcError) as caught:
        _check(health, "nope")

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'nope'" in caught.value.details()


def test_list_has_the_server_and_every_model(address: str) -> None:
    """All names that Check would answer for; grpcio's stubs have no List yet."""
    with grpc.insecure_channel(address) as channel:
        body = channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=20)

    answer = ours.HealthListResponse.FromString(body)
    statuses = {name: _STATUS.Name(found.status) for name, found in answer.statuses.items()}
    assert statuses == {
        **dict.fromkeys(_SERVER_NAMES, "SERVING"),
        "scale": "SERVING",
        "late": "NOT_SERVING",
    }


def test_watch_tells_the_present_state_and_every_change(
    health: health_pb2_grpc.HealthStub, address: str
) -> None:
    """A model that is loaded and unloaded comes and goes."""
    states = _watch(health, "late")
    with Client(address) as client:
        assert next(states) == "NOT_SERVING"
        client.load_model("late")
        assert next(states) == "SERVING"
        client.unload_model("late")
        assert next(states) == "NOT_SERVING"


def test_watch_of_an_unknown_name_waits_for_it(
    health: health_pb2_grpc.HealthStub, address: str, tmp_path: Path
) -> None:
    """It is SERVICE_UNKNOWN, and no error, until there is such a model."""
    states = _watch(health, "new")
    assert next(states) == "SERVICE_UNKNOWN"

    write_scale(tmp_path, "new")
    with Client(address) as client:
        client.load_model("new")

    assert "SERVING" in (next(states), next(states))  # it may be seen loading first


def test_watch_of_the_server_follows_its_models(
    health: health_pb2_grpc.HealthStub, address: str
) -> None:
    """A server without models is not ready; changes that do not matter are not told."""
    states = _watch(health, "")
    with Client(address) as client:
        assert next(states) == "SERVING"
        client.load_model("late")
        client.unload_model("late")
        client.unload_model("scale")
        assert next(states) == "NOT_SERVING"


def test_leaving_server_tells_and_ends_watches(tmp_path: Path) -> None:
    """NOT_SERVING, then the call ends, so that it does not hold the drain up."""
    write_scale(tmp_path)
    worker = RunningWorker(tmp_path, FakeBackend(), {"drain_timeout_s": 50})
    with grpc.insecure_channel("{}:{}".format(*worker.addresses.grpc)) as channel:
        states = _watch(health_pb2_grpc.HealthStub(channel), "scale")
        assert next(states) == "SERVING"

        worker.stop()

        assert next(states) == "NOT_SERVING"
        with pytest.raises(grpc.RpcError) as caught:
            next(states)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert worker.join() == 0


def test_watcher_that_leaves_is_forgotten(health: health_pb2_grpc.HealthStub, address: str) -> None:
    """Later changes reach those who stay."""
    gone = health.Watch(health_pb2.HealthCheckRequest(service="late"), timeout=50)
    assert next(gone).status == _STATUS.Value("NOT_SERVING")
    states = _watch(health, "late")
    assert next(states) == "NOT_SERVING"

    gone.cancel()
    with Client(address) as client:
        client.load_model("late")

    assert next(states) == "SERVING"


def test_malformed_request_is_the_callers_fault(address: str) -> None:
    """For Check and for Watch."""
    with grpc.insecure_channel(address) as channel:
        for call in (
            lambda: channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff", timeout=20),
            lambda: list(channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\xff", timeout=20)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
