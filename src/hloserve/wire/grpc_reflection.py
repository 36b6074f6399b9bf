"""Answers of gRPC server reflection: what services there are, and the files that define them.

What lives here: one request in, one response out. What does not: the stream that carries them
(`hloserve.server.reflection`). Stateless; any thread.

Rule: v1 and v1alpha differ in the names of their messages, not in their bytes, so one codec serves
both.

Source: gRPC server reflection protocol.
"""

from collections.abc import Collection

from google.protobuf.descriptor import FileDescriptor

from hloserve.core.errors import Code
from hloserve.wire.protos import (
    POOL,
    control_pb2,
    health_pb2,
    inference_pb2,
    reflection_pb2,
    reflection_v1alpha_pb2,
)
from hloserve.wire.protos import reflection_pb2 as pb
from hloserve.wire.status import grpc_code
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf_metadata import parse_message

__all__ = ["REFLECTION_SERVICES", "answer_reflection"]

REFLECTION_SERVICES = (
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name,
    reflection_v1alpha_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name,
)

_FILES = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        control_pb2,
        health_pb2,
        inference_pb2,
        reflection_pb2,
        reflection_v1alpha_pb2,
    )
}


def answer_reflection(body: ByteString, services: Collection[str]) -> bytes:
    """Answer one ServerReflectionRequest.

    Args:
        body: the request.
        services: full names of the services that there are.

    Returns:
        A ServerReflectionResponse; what is not known is an error in it.

    Raises:
        MalformedBody: it is no such request.
    """
    request = parse_message(pb.ServerReflectionRequest, body)
    response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for name in sorted(services):
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _put_file(response, _FILES[request.file_by_filename])
        elif kind == "file_containing_symbol":
            _put_file(response, _file_of(request.file_containing_symbol))
        elif kind == "all_extension_numbers_of_type":
            name = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type).full_name
            response.all_extension_numbers_response.base_type_name = name
        elif kind == "file_containing_extension":
            raise KeyError("there are no extensions")  # proto3 has none
        else:
            _put_error(response, Code.INVALID_ARGUMENT, "the request asks for nothing")
    except KeyError:
        _put_error(response, Code.NOT_FOUND, f"{kind}: this server has no such definition")
    return response.SerializeToString()


def _file_of(symbol: str) -> FileDescriptor:
    """The file that defines a symbol. The pool knows no methods by name. Raises KeyError."""
    service, _, method = symbol.rpartition(".")
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        return POOL.FindServiceByName(service).methods_by_name[method].containing_service.file


def _put_file(response: pb.ServerReflectionResponse, file: FileDescriptor) -> None:
    """The file alone: none of ours imports another."""
    response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)


def _put_error(response: pb.ServerReflectionResponse, code: Code, text: str) -> None:
    response.error_response.error_code = grpc_code(code)
    response.error_response.error_message = text
