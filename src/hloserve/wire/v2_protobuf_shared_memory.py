"""Messages about regions of shared memory in protobuf, both ways and for both sides.

What lives here: register, unregister, status, and the question whether two processes see the same
objects. What does not: tensors in regions (`hloserve.wire.v2_shared_memory`). Stateless; any
thread.

Source: Triton's system shared memory extension; IsSameIPCNamespace is of ReactantServer.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hloserve.core.requests import RegionStatus
from hloserve.wire.protos import inference_pb2
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf_metadata import parse_message

__all__ = [
    "RegionRequest",
    "decode_namespace_request",
    "decode_namespace_response",
    "decode_register_request",
    "decode_status_request",
    "decode_status_response",
    "decode_unregister_request",
    "encode_namespace_request",
    "encode_namespace_response",
    "encode_register_request",
    "encode_status_request",
    "encode_status_response",
    "encode_unregister_request",
]


class RegionRequest(NamedTuple):
    """A part of an object that shall become a region."""

    name: str
    key: str
    offset: int
    byte_size: int


def encode_register_request(request: RegionRequest) -> bytes:
    """Write a SystemSharedMemoryRegisterRequest."""
    return inference_pb2.SystemSharedMemoryRegisterRequest(**request._asdict()).SerializeToString()


def decode_register_request(body: ByteString) -> RegionRequest:
    """Read a SystemSharedMemoryRegisterRequest."""
    message = parse_message(inference_pb2.SystemSharedMemoryRegisterRequest, body)
    return RegionRequest(message.name, message.key, message.offset, message.byte_size)


def encode_unregister_request(name: str) -> bytes:
    """Write a SystemSharedMemoryUnregisterRequest; an empty name means all regions."""
    return inference_pb2.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()


def decode_unregister_request(body: ByteString) -> str:
    """Read the name in a SystemSharedMemoryUnregisterRequest."""
    return parse_message(inference_pb2.SystemSharedMemoryUnregisterRequest, body).name


def encode_status_request(name: str = "") -> bytes:
    """Write a SystemSharedMemoryStatusRequest; an empty name means all regions."""
    return inference_pb2.SystemSharedMemoryStatusRequest(name=name).SerializeToString()


def decode_status_request(body: ByteString) -> str:
    """Read the name in a SystemSharedMemoryStatusRequest."""
    return parse_message(inference_pb2.SystemSharedMemoryStatusRequest, body).name


def encode_status_response(regions: Iterable[RegionStatus]) -> bytes:
    """Write a SystemSharedMemoryStatusResponse."""
    message = inference_pb2.SystemSharedMemoryStatusResponse()
    for region in regions:
        message.regions[region.name].MergeFrom(
            inference_pb2.SystemSharedMemoryStatusResponse.RegionStatus(
                name=region.name,
                key=region.key,
                offset=region.offset,
                byte_size=region.byte_size,
                owner_uid=region.owner_uid,
                requests=region.requests,
                age_s=region.age_s,
            )
        )
    return message.SerializeToString()


def decode_status_response(body: ByteString) -> tuple[RegionStatus, ...]:
    """Read a SystemSharedMemoryStatusResponse; sorted by name."""
    message = parse_message(inference_pb2.SystemSharedMemoryStatusResponse, body)
    return tuple(
        RegionStatus(
            name,
            region.key,
            region.offset,
            region.byte_size,
            region.owner_uid,
            region.requests,
            region.age_s,
        )
        for name, region in sorted(message.regions.items())
    )


def encode_namespace_request(key: str) -> bytes:
    """Write an IsSameIPCNamespaceRequest."""
    return inference_pb2.IsSameIPCNamespaceRequest(name=key).SerializeToString()


def decode_namespace_request(body: ByteString) -> str:
    """Read the key in an IsSameIPCNamespaceRequest."""
    return parse_message(inference_pb2.IsSameIPCNamespaceRequest, body).name


def encode_namespace_response(is_same: bool) -> bytes:
    """Write an IsSameIPCNamespaceResponse."""
    return inference_pb2.IsSameIPCNamespaceResponse(same=is_same).SerializeToString()


def decode_namespace_response(body: ByteString) -> bool:
    """Read an IsSameIPCNamespaceResponse."""
    return parse_message(inference_pb2.IsSameIPCNamespaceResponse, body).same
