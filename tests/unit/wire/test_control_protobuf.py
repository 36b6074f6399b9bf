"""Messages of the control service: the numbers that controllers know, and both ways."""

import json
import math
from typing import Any

import pytest

from hloserve.config.loading import load
from hloserve.core.errors import BadRequest, ConfigProblem, MalformedBody
from hloserve.core.model_control import (
    MAX_WEIGHT,
    Compaction,
    ControlStatus,
    Floor,
    ModelControlStatus,
)
from hloserve.wire import control_protobuf as codec
from hloserve.wire.protos import control_pb2 as pb

MODEL = ModelControlStatus(
    name="resnet", floor=Floor.DEVICE, is_on_device=True, is_on_host=False, weight_bytes=100,
    weight=2.5, queue_depth=3, compute_seconds=1.25, requests_served=4, dispatch_count=5,
    rows_served=6, padded_rows=8, requests_expired=9, requests_failed=10, max_batch_size=16,
    batch_input_name="image", batch_axis=1,
)  # fmt: skip
STATUS = ControlStatus(
    residency_mode="externally_managed", discipline="fair", has_weight_cache=True, max_bytes=1000,
    resident_bytes=300, pinned_bytes=100, scratch_bytes=50, loads=3, loaded_bytes=900,
    load_seconds=0.5, evictions=2, hits=70, compactions=1, models=(MODEL,),
)  # fmt: skip

# Source: spec "Control service".
NUMBERS = {
    "ModelControlStatusRequest": {},
    "ModelControlStatusResponse": {
        "residency_mode": 1, "discipline": 2, "models": 3, "weight_cache_max_bytes": 4,
    },
    "ModelStatus": {
        "name": 1, "residency": 2, "device_resident": 3, "host_resident": 4, "weight_nbytes": 5,
        "weight": 6, "queue_depth": 7, "total_compute_seconds": 8, "requests_served": 9,
        "dispatch_count": 10, "max_batch_size": 11, "batch_input_name": 12, "batch_axis": 13,
        "rows_served": 14,
    },
    "SetModelResidencyRequest": {"name": 1, "target": 2},
    "SetModelResidencyResponse": {"residency": 1},
    "SetModelPolicyRequest": {"name": 1, "has_weight": 2, "weight": 3},
    "SetModelPolicyResponse": {},
    "CompactMemoryRequest": {"reload_models": 1},
    "CompactMemoryResponse": {"reloaded_models": 1, "resident_bytes_after": 2},
}  # fmt: skip
TYPES = {
    "weight_cache_max_bytes": "uint64", "weight_nbytes": "int64", "weight": "double",
    "queue_depth": "int64", "total_compute_seconds": "double", "requests_served": "uint64",
    "dispatch_count": "uint64", "max_batch_size": "int64", "batch_axis": "int64",
    "rows_served": "uint64", "reloaded_models": "int64", "resident_bytes_after": "uint64",
    "has_weight": "bool", "device_resident": "bool", "host_resident": "bool", "name": "string",
    "batch_input_name": "string", "residency_mode": "string", "discipline": "string",
    "reload_models": "string",
}  # fmt: skip


def _field_types(message: Any) -> dict[str, str]:
    kinds = {1: "double", 3: "int64", 4: "uint64", 8: "bool", 9: "string", 11: "message"}
    return {field.name: kinds.get(field.type, "enum") for field in message.fields}


@pytest.mark.parametrize("name", NUMBERS)
def test_fields_have_the_numbers_that_controllers_know(name: str) -> None:
    """Those of ours begin at 1000, so that they are never in the way."""
    message = pb.DESCRIPTOR.message_types_by_name[name]
    numbers = {field.name: field.number for field in message.fields}

    assert NUMBERS[name] == {field: n for field, n in numbers.items() if n < 1000}
    types = _field_types(message)
    assert {f: TYPES[f] for f in NUMBERS[name] if f in TYPES} == {
        f: types[f] for f in NUMBERS[name] if f in TYPES
    }


def test_service_and_residencies_have_the_names_that_controllers_know() -> None:
    """Package, service, methods and the values of the enum."""
    service = pb.DESCRIPTOR.services_by_name["ControlService"]

    assert "reactant_control.ControlService" == codec.CONTROL_SERVICE
    assert {
        "ModelControlStatus": ("ModelControlStatusRequest", "ModelControlStatusResponse"),
        "SetModelResidency": ("SetModelResidencyRequest", "SetModelResidencyResponse"),
        "SetModelPolicy": ("SetModelPolicyRequest", "SetModelPolicyResponse"),
        "CompactMemory": ("CompactMemoryRequest", "CompactMemoryResponse"),
    } == {m.name: (m.input_type.name, m.output_type.name) for m in service.methods}
    assert {
        "RESIDENCY_UNSPECIFIED": 0, "UNPINNED": 1, "PINNED_SYSTEM": 2, "PINNED_DEVICE": 3,
    } == dict(pb.Residency.items())  # fmt: skip


def test_status_is_the_same_on_the_other_side() -> None:
    """Every field, of the device and of a model."""
    assert STATUS == codec.decode_control_status(codec.encode_control_status(STATUS))


def test_budget_of_another_server_means_a_weight_cache() -> None:
    """Servers without our fields say so by the budget alone."""
    with_budget = pb.ModelControlStatusResponse(weight_cache_max_bytes=5).SerializeToString()

    assert codec.decode_control_status(with_budget).has_weight_cache
    assert not codec.decode_control_status(b"").has_weight_cache


@pytest.mark.parametrize("floor", Floor)
def test_residencies_are_the_same_on_the_other_side(floor: Floor) -> None:
    """Requests and answers."""
    asked = codec.decode_residency_request(codec.encode_residency_request("m", floor))

    assert ("m", floor) == asked
    assert floor is codec.decode_residency(codec.encode_residency(floor))


@pytest.mark.parametrize(("number", "got"), [(0, "not set"), (4, "4"), (-1, "-1")])
def test_residency_that_does_not_exist_is_refused(number: int, got: str) -> None:
    """What is not said is not guessed; the message lists what there is."""
    request = pb.SetModelResidencyRequest(name="m")
    request.target = number  # type: ignore[assignment]

    with pytest.raises(BadRequest, match=f"is {got}, expected one of UNPINNED .1., PINNED_SYS"):
        codec.decode_residency_request(request.SerializeToString())


@pytest.mark.parametrize("weight", [0.0, -1.0, 1000000.5, math.inf, -math.inf, math.nan])
def test_weight_that_is_no_share_is_refused(weight: float) -> None:
    """Finite and above 0."""
    body = pb.SetModelPolicyRequest(name="m", has_weight=True, weight=weight).SerializeToString()

    with pytest.raises(BadRequest, match=r"weight of model 'm' is .* above 0"):
        codec.decode_policy_request(body)


@pytest.mark.parametrize("weight", [None, 5e-324, 1.0, MAX_WEIGHT])
def test_policy_is_the_same_on_the_other_side(weight: float | None) -> None:
    """None leaves the weight, whatever number the message holds."""
    assert ("m", weight) == codec.decode_policy_request(codec.encode_policy_request("m", weight))


@pytest.mark.parametrize("weight", [-1.0, 0.0, 5e-324, 1.0, 1e6, 1000000.5, math.inf, math.nan])
def test_weight_that_a_running_server_takes_is_one_that_its_settings_take(weight: float) -> None:
    """What works live can be written down for the next start, and the other way round."""
    body = pb.SetModelPolicyRequest(name="m", has_weight=True, weight=weight).SerializeToString()
    is_taken = is_configured = True
    try:
        codec.decode_policy_request(body)
    except BadRequest:
        is_taken = False
    try:
        load(environ={"HLOSERVE_SCHEDULER_MODELS": json.dumps({"m": {"weight": weight}})})
    except ConfigProblem:
        is_configured = False

    assert is_taken == is_configured


def test_weight_counts_only_when_it_is_said_to() -> None:
    """A controller may fill the field and leave has_weight unset."""
    body = pb.SetModelPolicyRequest(name="m", weight=-3).SerializeToString()

    assert ("m", None) == codec.decode_policy_request(body)


def test_compaction_is_the_same_on_the_other_side() -> None:
    """A model that is named twice is loaded once."""
    assert ["b", "a"] == codec.decode_compact_request(codec.encode_compact_request(["b", "a", "b"]))
    done = Compaction(2, 300)
    assert done == codec.decode_compaction(codec.encode_compaction(done))


@pytest.mark.parametrize(
    "decode",
    [
        codec.decode_status_request,
        codec.decode_residency_request,
        codec.decode_policy_request,
        codec.decode_compact_request,
    ],
)
def test_bytes_that_are_no_message_are_refused(decode: Any) -> None:
    """As those of other services are."""
    with pytest.raises(MalformedBody):
        decode(b"\xff")


@pytest.mark.parametrize("decode", [codec.decode_residency_request, codec.decode_policy_request])
def test_request_without_a_model_is_refused(decode: Any) -> None:
    """An empty name is no name."""
    with pytest.raises(BadRequest, match="names no model"):
        decode(b"")
