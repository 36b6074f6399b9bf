"""The control service as a controller sees it, over grpcio."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.conformance_worker import Asker
from support.server_worker import RunningWorker, rows, running_worker, write_scale

from hloserve import Client
from hloserve.core.errors import BadRequest, ModelNotFound, NotPossibleNow, Unavailable
from hloserve.core.model_control import Compaction, Floor
from hloserve.engine.fake_backend import FakeBackend
from hloserve.wire.protos import control_pb2 as pb

Ask = Callable[..., tuple[grpc.StatusCode, Any]]

_ANSWERS: Mapping[str, Any] = {
    "ModelControlStatus": pb.ModelControlStatusResponse,
    "SetModelResidency": pb.SetModelResidencyResponse,
    "SetModelPolicy": pb.SetModelPolicyResponse,
    "CompactMemory": pb.CompactMemoryResponse,
}
_WEIGHTS_BYTES = 64
"""Of the model that `write_scale` writes: four numbers, at a multiple of 64."""

_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_REFUSED = grpc.StatusCode.FAILED_PRECONDITION
_UNKNOWN = grpc.StatusCode.NOT_FOUND


def _ask(
    channel: grpc.Channel, method: str, request: Any = b"", **options: Any
) -> tuple[grpc.StatusCode, Any]:
    """Make a call with a message, or with bytes; status and answer, or status and text."""
    body = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_unary(f"/reactant_control.ControlService/{method}")
    try:
        answer = call(body, timeout=20, **options)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, _ANSWERS[method].FromString(answer)


@pytest.fixture
def ask(asker: Asker) -> Iterator[Ask]:
    """Calls of a worker whose weights are all on the device."""
    with grpc.insecure_channel(asker.grpc_address) as channel:
        yield partial(_ask, channel)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker that serves "scale", whose counters nobody else moves."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as running:
        yield running


@pytest.fixture
def client(worker: RunningWorker) -> Iterator[Client]:
    """Our client of it."""
    with Client("{}:{}".format(*worker.addresses.grpc)) as client:
        yield client


def test_status_of_a_worker_that_has_served(worker: RunningWorker, client: Client) -> None:
    """The golden answer: what a controller reads of a model after two requests."""
    client.infer("scale", {"x": rows(1)})
    client.infer("scale", {"x": rows(1, 2, 3)})
    with grpc.insecure_channel("{}:{}".format(*worker.addresses.grpc)) as channel:
        code, status = _ask(channel, "ModelControlStatus", pb.ModelControlStatusRequest())

    assert grpc.StatusCode.OK is code
    assert ("self_managed", 0, False) == (
        status.residency_mode,
        status.weight_cache_max_bytes,
        status.has_weight_cache,
    )
    assert status.discipline in ("fair", "fifo", "edf")
    (model,) = status.models
    assert model.total_compute_seconds > 0
    model.ClearField("total_compute_seconds")
    assert (
        pb.ModelStatus(
            name="scale",
            residency=model.residency,
            device_resident=True,
            host_resident=model.host_resident,
            weight_nbytes=model.weight_nbytes,
            weight=1.0,
            queue_depth=0,
            requests_served=2,
            dispatch_count=2,
            max_batch_size=8,
            batch_input_name="x",
            batch_axis=1,
            rows_served=4,
            padded_rows=5,
        )
        == model
    )
    assert model.weight_nbytes >= 16


def test_status_lists_every_model_that_serves(asker: Asker, ask: Ask) -> None:
    """By name; one without a batch axis has neither batch nor axis."""
    index = asker.send("POST", "/v2/repository/index").json
    code, status = ask("ModelControlStatus")

    assert grpc.StatusCode.OK is code
    assert [entry["name"] for entry in index] == [model.name for model in status.models]
    scalar = next(model for model in status.models if model.name == "scalar")
    assert (0, "", 0) == (scalar.max_batch_size, scalar.batch_input_name, scalar.batch_axis)
    two = next(model for model in status.models if model.name == "two")
    assert (4, "a", 1) == (two.max_batch_size, two.batch_input_name, two.batch_axis)


def test_weight_is_set_and_shown(client: Client) -> None:
    """By our client; a policy without a weight changes nothing."""
    client.control.set_weight("scale", 2.5)

    assert 2.5 == client.control.status().models[0].weight
    client.control.set_weight("scale", 1)
    assert 1.0 == client.control.status().models[0].weight


def test_policy_without_a_weight_is_accepted(ask: Ask) -> None:
    """It says nothing; the name is looked at all the same."""
    code, answer = ask("SetModelPolicy", pb.SetModelPolicyRequest(name="f32", weight=-1))
    unknown, _ = ask("SetModelPolicy", pb.SetModelPolicyRequest(name="never"))

    assert (grpc.StatusCode.OK, b"") == (code, answer.SerializeToString())
    assert _UNKNOWN is unknown


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weight_that_is_no_share_is_refused(ask: Ask, weight: float) -> None:
    """Finite and above 0; the message names model and number."""
    code, text = ask(
        "SetModelPolicy", pb.SetModelPolicyRequest(name="f32", has_weight=True, weight=weight)
    )

    assert _INVALID is code
    assert f"weight of model 'f32' is {weight:g}" in text


@pytest.mark.parametrize(
    ("method", "request_", "code", "told"),
    [
        (
            "SetModelPolicy",
            pb.SetModelPolicyRequest(name="never", has_weight=True, weight=1),
            _UNKNOWN,
            "model 'never' is not served here",
        ),
        ("SetModelPolicy", pb.SetModelPolicyRequest(has_weight=True, weight=1), _INVALID, "name"),
        ("SetModelPolicy", b"\xff", _INVALID, "SetModelPolicyRequest"),
        (
            "SetModelResidency",
            pb.SetModelResidencyRequest(name="f32"),
            _INVALID,
            "the residency is not set",
        ),
        ("SetModelResidency", b"\x0a\x03f32\x10\x09", _INVALID, "the residency is 9"),
        ("SetModelResidency", b"\x10\x03", _INVALID, "names no model"),
        ("SetModelResidency", b"\xff", _INVALID, "SetModelResidencyRequest"),
        (
            "SetModelResidency",
            pb.SetModelResidencyRequest(name="f32", target=pb.PINNED_DEVICE),
            _REFUSED,
            "weight_cache_bytes",
        ),
        (
            "SetModelResidency",
            pb.SetModelResidencyRequest(name="f32", target=pb.UNPINNED),
            _REFUSED,
            "weight_cache_bytes",
        ),
        ("CompactMemory", b"\xff", _INVALID, "CompactMemoryRequest"),
        ("ModelControlStatus", b"\xff", _INVALID, "ModelControlStatusRequest"),
    ],
)
def test_errors_have_the_statuses_that_controllers_know(
    ask: Ask, method: str, request_: Any, code: grpc.StatusCode, told: str
) -> None:
    """And a message that says what to do."""
    got, text = ask(method, request_)

    assert code is got
    assert told in text


def test_compaction_without_a_weight_cache_is_none(ask: Ask) -> None:
    """Neither models nor bytes, whoever is named."""
    code, answer = ask("CompactMemory", pb.CompactMemoryRequest(reload_models=["f32", "never"]))

    assert (grpc.StatusCode.OK, 0, 0) == (
        code,
        answer.reloaded_models,
        answer.resident_bytes_after,
    )


def test_method_that_does_not_exist_is_unimplemented(ask: Ask) -> None:
    """As of every service."""
    code, text = ask("Reboot")

    assert grpc.StatusCode.UNIMPLEMENTED is code
    assert "Reboot" in text


def test_examples_of_the_page_run(
    worker: RunningWorker, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader can paste them; only the address differs."""
    page = Path(__file__).resolve().parents[2] / "docs" / "control.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    address = "{}:{}".format(*worker.addresses.grpc)

    exec(compile(example.replace("127.0.0.1:8001", address), str(page), "exec"), {})

    assert "scale 1.0 0 " in capsys.readouterr().out
    assert 2.0 == client.control.status().models[0].weight


def test_errors_are_those_of_our_client(client: Client) -> None:
    """By type; what cannot be is refused before anything is sent."""
    with pytest.raises(NotPossibleNow, match="weight_cache_bytes"):
        client.control.set_residency("scale", "device")
    with pytest.raises(BadRequest, match="there are unpinned, system, device"):
        client.control.set_residency("scale", "disk")
    with pytest.raises(ModelNotFound):
        client.control.set_weight("never", 1)
    with pytest.raises(BadRequest, match="above 0"):
        client.control.set_weight("scale", float("nan"))
    with pytest.raises(BadRequest, match="a list of names"):
        client.control.compact("scale")
    assert Compaction(0, 0) == client.control.compact(["scale"])
    assert {model.floor for model in client.control.status().models} <= set(Floor)


def test_reading_needs_infer_and_changing_needs_admin(tmp_path: Path) -> None:
    """Where there are tokens."""
    write_scale(tmp_path / "models")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"user infer {'i' * 16}\nops admin {'a' * 16}\n")
    tokens.chmod(0o600)
    with (
        running_worker(tmp_path / "models", settings={"access.tokens_file": str(tokens)}) as worker,
        grpc.insecure_channel("{}:{}".format(*worker.addresses.grpc)) as channel,
    ):
        codes = {
            (letter, method): _ask(
                channel, method, metadata=(("authorization", f"Bearer {letter * 16}"),)
            )[0].name
            for letter in "ia"
            for method in ("ModelControlStatus", "CompactMemory")
        }
        nobody, _ = _ask(channel, "ModelControlStatus")

    assert {
        ("i", "ModelControlStatus"): "OK",
        ("i", "CompactMemory"): "PERMISSION_DENIED",
        ("a", "ModelControlStatus"): "OK",
        ("a", "CompactMemory"): "OK",
    } == codes
    assert grpc.StatusCode.UNAUTHENTICATED is nobody


@contextmanager
def _three_models(
    directory: Path, residency: str, backend: FakeBackend | None = None
) -> Iterator[tuple[Client, Callable[..., tuple[grpc.StatusCode, Any]]]]:
    """A worker with room for the weights of two of the models a, b and c."""
    for name in "abc":
        write_scale(directory, name)
    flags = {
        "runtime.weight_cache_bytes": 2 * _WEIGHTS_BYTES,
        "runtime.residency_mode": residency,
    }
    with (
        running_worker(directory, backend, flags) as worker,
        Client("{}:{}".format(*worker.addresses.grpc)) as client,
        grpc.insecure_channel("{}:{}".format(*worker.addresses.grpc)) as channel,
    ):
        yield client, partial(_ask, channel)


def _where(client: Client) -> dict[str, tuple[str, bool, bool]]:
    models = client.control.status().models
    return {m.name: (m.floor.value, m.is_on_device, m.is_on_host) for m in models}


def test_controller_places_weights(tmp_path: Path) -> None:
    """A pinned model is served; one that is not is answered so that a gateway goes elsewhere."""
    with _three_models(tmp_path, "external") as (client, ask):
        status = client.control.status()
        assert ("externally_managed", True, 2 * _WEIGHTS_BYTES) == (
            status.residency_mode,
            status.has_weight_cache,
            status.max_bytes,
        )
        assert _WEIGHTS_BYTES == status.models[0].weight_bytes
        with pytest.raises(Unavailable):
            client.infer("a", {"x": rows(1)})

        request = pb.SetModelResidencyRequest(name="a", target=pb.PINNED_DEVICE)
        code, answer = ask("SetModelResidency", request)

        assert (grpc.StatusCode.OK, pb.PINNED_DEVICE) == (code, answer.residency)
        assert ("device", True) == _where(client)["a"][:2]
        np.testing.assert_array_equal(rows(2), client.infer("a", {"x": rows(1)})["y"])
        assert Floor.SYSTEM is client.control.set_residency("b", "system")
        assert ("system", False, True) == _where(client)["b"]
        assert Floor.UNPINNED is client.control.set_residency("a", Floor.UNPINNED)
        assert ("unpinned", False, False) == _where(client)["a"]
        with pytest.raises(Unavailable):
            client.infer("a", {"x": rows(1)})
        code, text = ask(
            "SetModelResidency", pb.SetModelResidencyRequest(name="z", target=pb.UNPINNED)
        )
        assert _UNKNOWN is code
        assert "'z'" in text


def test_pin_that_finds_no_room_changes_nothing(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED; what was pinned before is served on."""
    backend = FakeBackend()
    with _three_models(tmp_path, "external", backend) as (client, ask):
        client.control.set_residency("a", "device")
        backend.limit_bytes = 20  # four numbers take 16

        code, text = ask(
            "SetModelResidency", pb.SetModelResidencyRequest(name="b", target=pb.PINNED_DEVICE)
        )

        assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
        assert "device memory is full" in text
        assert ("device", True) == _where(client)["a"][:2]
        assert ("unpinned", False, False) == _where(client)["b"]
        backend.limit_bytes = None
        np.testing.assert_array_equal(rows(2), client.infer("a", {"x": rows(1)})["y"])


def test_worker_that_decides_by_itself_takes_no_orders(tmp_path: Path) -> None:
    """It has a weight cache; which setting hands it over is in the message."""
    with _three_models(tmp_path, "self_managed") as (client, ask):
        request = pb.SetModelResidencyRequest(name="a", target=pb.PINNED_DEVICE)
        for name in ("a", "z"):
            request.name = name
            code, text = ask("SetModelResidency", request)
            assert _REFUSED is code
            assert "runtime.residency_mode" in text
        assert "self_managed" == client.control.status().residency_mode


def test_compaction_takes_weights_off_and_loads_some_again(tmp_path: Path) -> None:
    """In the order that is asked for, as far as they fit; and every request is right afterwards."""
    with _three_models(tmp_path, "self_managed") as (client, ask):
        for name in "abc":
            client.infer(name, {"x": rows(1)})
        before = client.control.status()
        code, answer = ask("CompactMemory", pb.CompactMemoryRequest(reload_models=["z", "a"]))

        assert 2 * _WEIGHTS_BYTES == before.resident_bytes
        assert before.evictions > 0
        assert (grpc.StatusCode.OK, 1, _WEIGHTS_BYTES) == (
            code,
            answer.reloaded_models,
            answer.resident_bytes_after,
        )
        assert [True, False, False] == [on_device for _, on_device, _ in _where(client).values()]
        assert Compaction(0, 0) == client.control.compact()
        assert before.compactions + 2 == client.control.status().compactions
        for name in "abc":
            np.testing.assert_array_equal(rows(6), client.infer(name, {"x": rows(3)})["y"])
