"""Messages of `grpc.health.v1.Health`, on the server's side.

What lives here: bytes. What does not: what is healthy (`hloserve.server.health`). Stateless; any
thread.

Source: gRPC health checking protocol.
"""

from collections.abc import Mapping
from enum import Enum

from hloserve.wire.protos import health_pb2 as pb
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf_metadata import parse_message

__all__ = ["ServingStatus", "decode_check_request", "encode_check", "encode_list"]


class ServingStatus(Enum):
    """The states of the protocol, by their numbers."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


_ANSWERS: Mapping[ServingStatus, bytes] = {
    status: pb.HealthCheckResponse(status=status.name).SerializeToString()
    for status in ServingStatus
}


def decode_check_request(body: ByteString) -> str:
    """Read a HealthCheckRequest: the name of a service.

    Raises:
        MalformedBody: it is not one.
    """
    return parse_message(pb.HealthCheckRequest, body).service


def encode_check(status: ServingStatus) -> bytes:
    """A HealthCheckResponse."""
    return _ANSWERS[status]


def encode_list(statuses: Mapping[str, ServingStatus]) -> bytes:
    """A HealthListResponse."""
    response = pb.HealthListResponse()
    for name, status in statuses.items():
        response.statuses[name].MergeFrom(pb.HealthCheckResponse(status=status.name))
    return response.SerializeToString()
