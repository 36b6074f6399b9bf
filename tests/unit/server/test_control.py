"""What the control service answers, on a fake device."""

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from support.control_fakes import FakeCommands, FakeResidency
from support.meta_bundles import write_meta
from support.server_worker import fake_program, write_scale
from support.wire_callers import GrpcCaller

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.errors import (
    Code,
    DeviceMemoryFull,
    ModelNotFound,
    ModelNotReady,
    NotPossibleNow,
)
from hloserve.core.model_control import Compaction, Floor
from hloserve.core.tickets import Call, Ticket
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.residency.floors import ResidencyMode
from hloserve.models.loader import load_model
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.server.control import ModelControl
from hloserve.server.control_grpc import control_methods
from hloserve.wire import control_protobuf as codec
from hloserve.wire.status import grpc_code

T = TypeVar("T")


ECHO = """
def run(inputs, call):
    return {"y": inputs["x"]}
"""


class Device:
    """A control over one model, "scale", and what it acts on."""

    def __init__(self, directory: Path, mode: ResidencyMode) -> None:
        self.backend = FakeBackend()
        self.model = load_model(write_scale(directory), self.backend)
        self.registry = Registry()
        self.registry.set_ready(self.model)
        self.commands = FakeCommands()
        self.residency = FakeResidency(mode)
        self.control = ModelControl(self.registry, self.commands, "fair")
        self.control.residency = self.residency

    def run(self, coroutine: Coroutine[Ticket[Any], None, T]) -> T:
        """Start a call, let the dispatch thread do its part, and give what came of it."""
        outcomes: list[tuple[T | None, Exception | None]] = []
        Call(coroutine, lambda value, error: outcomes.append((value, error))).step()
        self.commands.run_commands()
        ((value, error),) = outcomes
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # no error means a T

    def call(self, method: str, message: bytes = b"") -> GrpcCaller:
        """Make a call of the service."""
        caller = GrpcCaller(message)
        control_methods(self.control)[f"/reactant_control.ControlService/{method}"](caller)
        return caller


@pytest.fixture
def device(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device whose weights a controller places, or of the mode that a test is marked with."""
    made = Device(tmp_path, getattr(request, "param", ResidencyMode.EXTERNAL))
    yield made
    made.model.free()


def in_mode(mode: ResidencyMode) -> pytest.MarkDecorator:
    """Use a device of another mode."""
    return pytest.mark.parametrize("device", [mode], indirect=True)


def test_status_has_shares_queues_counters_and_weights(device: Device) -> None:
    """All that a controller needs to place models and to route to them."""
    device.residency.set_floor(device.model.device, Floor.DEVICE)
    device.commands.depths["scale"] = 3
    device.commands.weights["scale"] = 2.5
    device.model.device.statistics.record_dispatch(8, 2, 5, 1_500_000_000)

    status = device.control.status()

    assert ("externally_managed", "fair") == (status.residency_mode, status.discipline)
    assert (True, 5_000, 3_000) == (
        status.has_weight_cache,
        status.max_bytes,
        status.resident_bytes,
    )
    assert (7, 1.5, 2, 40) == (status.loads, status.load_seconds, status.evictions, status.hits)
    (model,) = status.models
    assert ("scale", Floor.DEVICE, True, False, 1_000) == (
        model.name,
        model.floor,
        model.is_on_device,
        model.is_on_host,
        model.weight_bytes,
    )
    assert (2.5, 3, 1.5) == (model.weight, model.queue_depth, model.compute_seconds)
    assert (1, 2, 5, 8) == (
        model.dispatch_count,
        model.requests_served,
        model.rows_served,
        model.padded_rows,
    )
    assert (8, "x", 1) == (model.max_batch_size, model.batch_input_name, model.batch_axis)


@in_mode(ResidencyMode.EVERYTHING)
def test_status_without_a_budget_says_that_everything_is_there(device: Device) -> None:
    """A budget of 0 is how controllers are told that there is no weight cache."""
    status = device.control.status()

    assert ("self_managed", False, 0) == (
        status.residency_mode,
        status.has_weight_cache,
        status.max_bytes,
    )
    assert status.models[0].is_on_device
    assert status.models[0].weight_bytes == device.model.weight_bytes


def test_batch_axis_is_that_of_the_wire(tmp_path: Path, device: Device) -> None:
    """The second axis of a row-major shape is number 2; a model without one has none."""
    columns = write_bundle(
        tmp_path / "columns",
        "columns",
        [IOSpec("x", "f32", (4, 1), batch_axis=1)],
        [IOSpec("y", "f32", (4, 1), batch_axis=1)],
        {1: fake_program("identity", ["4x1xf32"], ["4x1xf32"])},
        {},
    )
    scalar = write_bundle(
        tmp_path / "scalar",
        "scalar",
        [IOSpec("x", "f32", ())],
        [IOSpec("y", "f32", ())],
        {0: fake_program("identity", ["f32"], ["f32"])},
        {},
    )
    models = [load_model(bundle, device.backend) for bundle in (columns, scalar)]
    for model in models:
        device.registry.set_ready(model)

    found = {m.name: (m.batch_input_name, m.batch_axis) for m in device.control.status().models}

    assert {"columns": ("x", 2), "scalar": ("", 0), "scale": ("x", 1)} == found
    for model in models:
        model.free()


def test_residency_is_set_between_two_dispatches(device: Device) -> None:
    """The call is answered when the dispatch thread has done it, and the status shows it."""
    caller = device.call("SetModelResidency", codec.encode_residency_request("scale", Floor.SYSTEM))

    assert (None, []) == (caller.answer, device.residency.calls)
    device.commands.run_commands()
    assert caller.answer is not None
    assert codec.decode_residency(caller.answer) is Floor.SYSTEM
    assert [("scale", Floor.SYSTEM)] == device.residency.calls
    (model,) = device.control.status().models
    assert (Floor.SYSTEM, True) == (model.floor, model.is_on_host)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (ResidencyMode.EVERYTHING, "runtime.weight_cache_bytes"),
        (ResidencyMode.SELF_MANAGED, "decides by itself"),
    ],
    indirect=["device"],
)
@pytest.mark.parametrize("name", ["scale", "never"])
def test_residency_is_refused_where_the_worker_decides(
    device: Device, told: str, name: str
) -> None:
    """Whatever the model; the message says which setting changes that."""
    with pytest.raises(NotPossibleNow, match=told):
        device.run(device.control.set_residency(name, Floor.DEVICE))

    assert [] == device.residency.calls


def test_residency_of_an_unknown_model_is_refused(device: Device) -> None:
    """As an inference request is; while the device is not open it may be there soon."""
    with pytest.raises(ModelNotFound):
        device.run(device.control.set_residency("never", Floor.DEVICE))
    device.control.residency = None
    device.registry.is_discovering = True
    with pytest.raises(ModelNotReady, match="starting"):
        device.run(device.control.set_residency("never", Floor.DEVICE))
    with pytest.raises(NotPossibleNow):
        device.run(device.control.set_residency("scale", Floor.DEVICE))


def test_device_without_room_refuses_a_pin(device: Device) -> None:
    """What the dispatch thread meets is the answer of the call."""
    device.residency.full_for = "scale"
    caller = device.call("SetModelResidency", codec.encode_residency_request("scale", Floor.DEVICE))
    device.commands.run_commands()

    assert caller.error is not None
    assert (grpc_code(Code.RESOURCE_EXHAUSTED), True) == (
        caller.error[0],
        "1000 bytes are needed" in caller.error[1],
    )


def test_weight_is_set_at_once(device: Device) -> None:
    """And left alone by a policy that has none."""
    device.control.set_policy("scale", 3.0)
    device.control.set_policy("scale", None)

    assert 3.0 == device.control.status().models[0].weight
    for weight in (1.0, None):
        with pytest.raises(ModelNotFound):
            device.control.set_policy("never", weight)


def test_compaction_loads_again_what_serves(device: Device) -> None:
    """In the order that was asked for; names that nothing serves under are passed over."""
    caller = device.call("CompactMemory", codec.encode_compact_request(["never", "scale"]))
    device.commands.run_commands()

    assert caller.answer is not None
    assert Compaction(1, 1_000) == codec.decode_compaction(caller.answer)
    assert [["scale"]] == device.residency.calls


@in_mode(ResidencyMode.EVERYTHING)
def test_compaction_without_a_budget_does_nothing(device: Device) -> None:
    """There is nothing that could be taken off the device."""
    assert Compaction(0, 0) == device.run(device.control.compact(["scale"]))
    device.control.residency = None
    assert Compaction(0, 0) == device.run(device.control.compact(["scale"]))
    assert [] == device.residency.calls


def _add_metas(device: Device, directory: Path) -> dict[str, Model]:
    """A meta model over "scale" and "other", one over "other" and "never", and one over none."""
    calls = {"pipe": ["scale", "other"], "half": ["other", "never"], "alone": []}
    bundles = [write_scale(directory, "other")]
    bundles += [write_meta(directory, ECHO, name, calls=names) for name, names in calls.items()]
    models = {bundle.name: load_model(bundle, device.backend) for bundle in bundles}
    for model in models.values():
        device.registry.set_ready(model)
    return models


@pytest.fixture
def metas(tmp_path: Path, device: Device) -> Iterator[dict[str, Model]]:
    """Three meta models, and what they call."""
    models = _add_metas(device, tmp_path)
    yield models
    for model in models.values():
        model.free()


def test_meta_model_stands_for_the_models_that_it_calls(
    device: Device, metas: dict[str, Model]
) -> None:
    """Their weights are added up, and where all of them are; they are not listed themselves."""
    device.residency.set_floor(device.model.device, Floor.DEVICE)
    device.residency.set_floor(metas["other"].device, Floor.SYSTEM)
    metas["pipe"].device.statistics.record_dispatch(0, 1, 1, 500_000_000)

    found = {model.name: model for model in device.control.status().models}

    assert ["alone", "half", "pipe"] == list(found)
    pipe = found["pipe"]
    assert (Floor.SYSTEM, False, False, 2_000) == (
        pipe.floor,
        pipe.is_on_device,
        pipe.is_on_host,
        pipe.weight_bytes,
    )
    assert (0, "", 0) == (pipe.max_batch_size, pipe.batch_input_name, pipe.batch_axis)
    assert (1, 0.5) == (pipe.dispatch_count, pipe.compute_seconds)
    half, alone = found["half"], found["alone"]
    assert (Floor.SYSTEM, False, True) == (half.floor, half.is_on_device, half.is_on_host)
    assert (Floor.UNPINNED, False, False, 0) == (
        alone.floor,
        alone.is_on_device,
        alone.is_on_host,
        alone.weight_bytes,
    )


def test_exposed_models_are_listed_beside_the_meta_models_that_call_them(
    device: Device, metas: dict[str, Model]
) -> None:
    """As the repository index lists them."""
    control = ModelControl(device.registry, device.commands, "fair", ("scale",))

    assert ["alone", "half", "pipe", "scale"] == [m.name for m in control.status().models]


def test_floor_of_a_meta_model_is_that_of_the_models_that_it_calls(
    device: Device, metas: dict[str, Model]
) -> None:
    """Without a floor, those that another one calls as well are left alone."""
    device.run(device.control.set_residency("pipe", Floor.DEVICE))
    device.run(device.control.set_residency("half", Floor.UNPINNED))
    device.run(device.control.set_residency("pipe", Floor.UNPINNED))
    device.run(device.control.set_residency("alone", Floor.DEVICE))

    assert [
        ("scale", Floor.DEVICE),
        ("other", Floor.DEVICE),
        ("scale", Floor.UNPINNED),
    ] == device.residency.calls


def test_floors_of_a_meta_model_change_together_or_not_at_all(
    device: Device, metas: dict[str, Model]
) -> None:
    """What was set before the device was full is set back."""
    device.residency.set_floor(device.model.device, Floor.SYSTEM)
    device.residency.full_for = "other"

    with pytest.raises(DeviceMemoryFull):
        device.run(device.control.set_residency("pipe", Floor.DEVICE))

    assert [
        ("scale", Floor.SYSTEM),
        ("scale", Floor.DEVICE),
        ("scale", Floor.SYSTEM),
    ] == device.residency.calls


def test_compaction_loads_what_meta_models_call_once(
    device: Device, metas: dict[str, Model]
) -> None:
    """A controller names what the status lists."""
    device.run(device.control.compact(["half", "pipe", "alone", "scale"]))

    assert [["other", "scale"]] == device.residency.calls


def test_meta_model_has_no_share(device: Device, metas: dict[str, Model]) -> None:
    """It is the models that it calls that the device is shared among."""
    with pytest.raises(ModelNotFound, match=r"set the weights of the models .*: scale, other"):
        device.control.set_policy("pipe", 2.0)
    with pytest.raises(ModelNotFound, match="it calls none"):
        device.control.set_policy("alone", None)


@pytest.mark.parametrize(
    ("method", "message", "code"),
    [
        ("ModelControlStatus", b"\xff", Code.INVALID_ARGUMENT),
        ("CompactMemory", b"\xff", Code.INVALID_ARGUMENT),
        ("SetModelResidency", b"\x0a\x01m", Code.INVALID_ARGUMENT),
        ("SetModelPolicy", codec.encode_policy_request("scale", -1), Code.INVALID_ARGUMENT),
        ("SetModelPolicy", codec.encode_policy_request("never", 1), Code.NOT_FOUND),
        (
            "SetModelResidency",
            codec.encode_residency_request("never", Floor.DEVICE),
            Code.NOT_FOUND,
        ),
    ],
)
def test_faults_of_the_caller_are_told_by_status(
    device: Device, method: str, message: bytes, code: Code
) -> None:
    """Before anything is changed."""
    caller = device.call(method, message)

    assert caller.error is not None
    assert grpc_code(code) == caller.error[0]
    assert ([], {}) == (device.residency.calls, device.commands.weights)


def test_caller_that_goes_away_does_not_stop_what_has_begun(device: Device) -> None:
    """Nobody is answered, and the weights are where they were asked to be."""
    caller = device.call("SetModelResidency", codec.encode_residency_request("scale", Floor.DEVICE))
    caller.cancelled()
    device.commands.run_commands()

    assert (None, None) == (caller.answer, caller.error)
    assert [("scale", Floor.DEVICE)] == device.residency.calls


def test_counters_of_a_served_model_are_plain_numbers(device: Device) -> None:
    """What the service sends is what the status has."""
    device.model.device.statistics.record_dispatch(4, 1, 3, 10)
    caller = device.call("ModelControlStatus")

    assert caller.answer is not None
    assert device.control.status() == codec.decode_control_status(caller.answer)
    np.testing.assert_equal(1e-8, device.control.status().models[0].compute_seconds)
