"""Messages of the control service in protobuf, both ways and for both sides.

What lives here: bytes. What does not: what is answered (`hloserve.server.control`). Stateless; any
thread.

Rule: a residency of the protocol is a floor; what it leaves unsaid, or a number that it does not
have, is refused, since neither says what to do.
"""

from collections.abc import Mapping, Sequence

from hloserve.core.errors import BadRequest
from hloserve.core.model_control import (
    WEIGHT_RANGE,
    Compaction,
    ControlStatus,
    Floor,
    ModelControlStatus,
    is_weight,
)
from hloserve.wire.protos import control_pb2 as pb
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf_metadata import parse_message

__all__ = [
    "CONTROL_SERVICE",
    "decode_compact_request",
    "decode_compaction",
    "decode_control_status",
    "decode_policy_request",
    "decode_residency",
    "decode_residency_request",
    "decode_status_request",
    "encode_compact_request",
    "encode_compaction",
    "encode_control_status",
    "encode_policy_request",
    "encode_residency",
    "encode_residency_request",
]

CONTROL_SERVICE: str = pb.DESCRIPTOR.services_by_name["ControlService"].full_name
"""Its name in the paths of its methods."""

_RESIDENCIES: Mapping[Floor, pb.Residency] = {
    Floor.UNPINNED: pb.UNPINNED,
    Floor.SYSTEM: pb.PINNED_SYSTEM,
    Floor.DEVICE: pb.PINNED_DEVICE,
}
_FLOORS: Mapping[int, Floor] = {int(number): floor for floor, number in _RESIDENCIES.items()}


def decode_status_request(body: ByteString) -> None:
    """Read a ModelControlStatusRequest, which says nothing.

    Raises:
        MalformedBody: it is not one.
    """
    parse_message(pb.ModelControlStatusRequest, body)


def encode_control_status(status: ControlStatus) -> bytes:
    """Write a ModelControlStatusResponse."""
    response = pb.ModelControlStatusResponse(
        residency_mode=status.residency_mode,
        discipline=status.discipline,
        weight_cache_max_bytes=status.max_bytes,
        has_weight_cache=status.has_weight_cache,
        weight_cache_resident_bytes=status.resident_bytes,
        weight_cache_pinned_bytes=status.pinned_bytes,
        weight_cache_scratch_bytes=status.scratch_bytes,
        weight_loads=status.loads,
        weight_loaded_bytes=status.loaded_bytes,
        weight_load_seconds=status.load_seconds,
        weight_evictions=status.evictions,
        weight_hits=status.hits,
        compactions=status.compactions,
    )
    for model in status.models:
        response.models.add(
            name=model.name,
            residency=_RESIDENCIES[model.floor],
            device_resident=model.is_on_device,
            host_resident=model.is_on_host,
            weight_nbytes=model.weight_bytes,
            weight=model.weight,
            queue_depth=model.queue_depth,
            total_compute_seconds=model.compute_seconds,
            requests_served=model.requests_served,
            dispatch_count=model.dispatch_count,
            max_batch_size=model.max_batch_size,
            batch_input_name=model.batch_input_name,
            batch_axis=model.batch_axis,
            rows_served=model.rows_served,
            padded_rows=model.padded_rows,
            requests_expired=model.requests_expired,
            requests_failed=model.requests_failed,
        )
    return response.SerializeToString()


def decode_control_status(body: ByteString) -> ControlStatus:
    """Read a ModelControlStatusResponse.

    Another server may have a budget without saying that it has a cache.
    """
    response = parse_message(pb.ModelControlStatusResponse, body)
    return ControlStatus(
        residency_mode=response.residency_mode,
        discipline=response.discipline,
        has_weight_cache=response.has_weight_cache or response.weight_cache_max_bytes > 0,
        max_bytes=response.weight_cache_max_bytes,
        resident_bytes=response.weight_cache_resident_bytes,
        pinned_bytes=response.weight_cache_pinned_bytes,
        scratch_bytes=response.weight_cache_scratch_bytes,
        loads=response.weight_loads,
        loaded_bytes=response.weight_loaded_bytes,
        load_seconds=response.weight_load_seconds,
        evictions=response.weight_evictions,
        hits=response.weight_hits,
        compactions=response.compactions,
        models=tuple(_model(message) for message in response.models),
    )


def _model(message: pb.ModelStatus) -> ModelControlStatus:
    return ModelControlStatus(
        name=message.name,
        floor=_floor(message.residency),
        is_on_device=message.device_resident,
        is_on_host=message.host_resident,
        weight_bytes=message.weight_nbytes,
        weight=message.weight,
        queue_depth=message.queue_depth,
        compute_seconds=message.total_compute_seconds,
        requests_served=message.requests_served,
        dispatch_count=message.dispatch_count,
        rows_served=message.rows_served,
        padded_rows=message.padded_rows,
        requests_expired=message.requests_expired,
        requests_failed=message.requests_failed,
        max_batch_size=message.max_batch_size,
        batch_input_name=message.batch_input_name,
        batch_axis=message.batch_axis,
    )


def encode_residency_request(name: str, target: Floor) -> bytes:
    """Write a SetModelResidencyRequest."""
    message = pb.SetModelResidencyRequest(name=name, target=_RESIDENCIES[target])
    return message.SerializeToString()


def decode_residency_request(body: ByteString) -> tuple[str, Floor]:
    """Read a SetModelResidencyRequest: the model, and its floor.

    Raises:
        MalformedBody: it is not one.
        BadRequest: it names no model or no residency that there is.
    """
    request = parse_message(pb.SetModelResidencyRequest, body)
    return _name(request.name), _floor(request.target)


def encode_residency(floor: Floor) -> bytes:
    """Write a SetModelResidencyResponse."""
    return pb.SetModelResidencyResponse(residency=_RESIDENCIES[floor]).SerializeToString()


def decode_residency(body: ByteString) -> Floor:
    """Read a SetModelResidencyResponse.

    Raises:
        BadRequest: it names no residency that there is.
    """
    return _floor(parse_message(pb.SetModelResidencyResponse, body).residency)


def encode_policy_request(name: str, weight: float | None) -> bytes:
    """Write a SetModelPolicyRequest; without a weight it changes nothing."""
    return pb.SetModelPolicyRequest(
        name=name, has_weight=weight is not None, weight=weight or 0.0
    ).SerializeToString()


def decode_policy_request(body: ByteString) -> tuple[str, float | None]:
    """Read a SetModelPolicyRequest: the model, and its weight when it is to change.

    Raises:
        MalformedBody: it is not one.
        BadRequest: it names no model, or its weight is none that there may be.
    """
    request = parse_message(pb.SetModelPolicyRequest, body)
    name = _name(request.name)
    if not request.has_weight:
        return name, None
    if not is_weight(request.weight):
        raise BadRequest(f"weight of model {name!r} is {request.weight}, expected {WEIGHT_RANGE}")
    return name, request.weight


def encode_compact_request(reload: Sequence[str]) -> bytes:
    """Write a CompactMemoryRequest."""
    return pb.CompactMemoryRequest(reload_models=reload).SerializeToString()


def decode_compact_request(body: ByteString) -> list[str]:
    """Read a CompactMemoryRequest: the models to load again, in order, each once.

    Raises:
        MalformedBody: it is not one.
    """
    return list(dict.fromkeys(parse_message(pb.CompactMemoryRequest, body).reload_models))


def encode_compaction(compaction: Compaction) -> bytes:
    """Write a CompactMemoryResponse."""
    return pb.CompactMemoryResponse(
        reloaded_models=compaction.reloaded_models, resident_bytes_after=compaction.resident_bytes
    ).SerializeToString()


def decode_compaction(body: ByteString) -> Compaction:
    """Read a CompactMemoryResponse."""
    response = parse_message(pb.CompactMemoryResponse, body)
    return Compaction(response.reloaded_models, response.resident_bytes_after)


def _name(name: str) -> str:
    if not name:
        raise BadRequest("the request names no model; set name")
    return name


def _floor(number: int) -> Floor:
    floor = _FLOORS.get(number)
    if floor is None:
        known = ", ".join(f"{pb.Residency.Name(n)} ({int(n)})" for n in _RESIDENCIES.values())
        got = "not set" if number == pb.RESIDENCY_UNSPECIFIED else str(int(number))
        raise BadRequest(f"the residency is {got}, expected one of {known}")
    return floor
