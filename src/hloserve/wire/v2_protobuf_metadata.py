"""V2 health, metadata and repository messages in protobuf, both ways and for both sides.

What lives here: every call but ModelInfer (`hloserve.wire.v2_protobuf`), configuration, statistics
and settings (`hloserve.wire.v2_protobuf_reports`). The server encodes what the client decodes and
the other way round, so each call's two messages stand together. Stateless; any thread.

Source: V2 protocol, health and metadata; Triton's model repository extension.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from hloserve.core.errors import MalformedBody
from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    Parameter,
    ServerMetadata,
    TensorMetadata,
)
from hloserve.wire.protos import inference_pb2
from hloserve.wire.tensor_bytes import ByteString

__all__ = [
    "EMPTY",
    "ModelChange",
    "ModelName",
    "decode_load_request",
    "decode_model_metadata",
    "decode_model_metadata_request",
    "decode_model_ready",
    "decode_model_ready_request",
    "decode_repository_index",
    "decode_repository_index_request",
    "decode_server_live",
    "decode_server_metadata",
    "decode_server_ready",
    "decode_unload_request",
    "encode_load_request",
    "encode_model_metadata",
    "encode_model_metadata_request",
    "encode_model_ready",
    "encode_model_ready_request",
    "encode_repository_index",
    "encode_repository_index_request",
    "encode_server_live",
    "encode_server_metadata",
    "encode_server_ready",
    "encode_unload_request",
    "parse_message",
]

EMPTY = b""
"""A message without fields: ServerLiveRequest, RepositoryModelLoadResponse..."""

M = TypeVar("M", bound=Message)

_STATES = {"LOADING": ModelState.LOADING, "READY": ModelState.READY}


class ModelName(NamedTuple):
    """Which model a call is about; `version` is empty when the caller named none."""

    name: str
    version: str


class ModelChange(NamedTuple):
    """A model to load or unload, and how."""

    name: str
    parameters: dict[str, Parameter]


def parse_message(kind: type[M], body: ByteString) -> M:
    """Parse one message.

    Raises:
        MalformedBody: it is none of that kind.
    """
    try:
        return kind.FromString(bytes(body))
    except DecodeError as error:
        raise MalformedBody(f"the body is not a valid {kind.DESCRIPTOR.name} message") from error


def encode_server_live(is_live: bool) -> bytes:
    """Write a ServerLiveResponse."""
    return inference_pb2.ServerLiveResponse(live=is_live).SerializeToString()


def decode_server_live(body: ByteString) -> bool:
    """Read a ServerLiveResponse."""
    return parse_message(inference_pb2.ServerLiveResponse, body).live


def encode_server_ready(is_ready: bool) -> bytes:
    """Write a ServerReadyResponse."""
    return inference_pb2.ServerReadyResponse(ready=is_ready).SerializeToString()


def decode_server_ready(body: ByteString) -> bool:
    """Read a ServerReadyResponse."""
    return parse_message(inference_pb2.ServerReadyResponse, body).ready


def encode_model_ready_request(name: str, version: str = "") -> bytes:
    """Write a ModelReadyRequest."""
    return inference_pb2.ModelReadyRequest(name=name, version=version).SerializeToString()


def decode_model_ready_request(body: ByteString) -> ModelName:
    """Read a ModelReadyRequest.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(inference_pb2.ModelReadyRequest, body)
    return ModelName(request.name, request.version)


def encode_model_ready(is_ready: bool) -> bytes:
    """Write a ModelReadyResponse."""
    return inference_pb2.ModelReadyResponse(ready=is_ready).SerializeToString()


def decode_model_ready(body: ByteString) -> bool:
    """Read a ModelReadyResponse."""
    return parse_message(inference_pb2.ModelReadyResponse, body).ready


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    """Write a ServerMetadataResponse."""
    return inference_pb2.ServerMetadataResponse(
        name=metadata.name, version=metadata.version, extensions=metadata.extensions
    ).SerializeToString()


def decode_server_metadata(body: ByteString) -> ServerMetadata:
    """Read a ServerMetadataResponse."""
    response = parse_message(inference_pb2.ServerMetadataResponse, body)
    return ServerMetadata(response.name, response.version, tuple(response.extensions))


def encode_model_metadata_request(name: str, version: str = "") -> bytes:
    """Write a ModelMetadataRequest."""
    return inference_pb2.ModelMetadataRequest(name=name, version=version).SerializeToString()


def decode_model_metadata_request(body: ByteString) -> ModelName:
    """Read a ModelMetadataRequest.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(inference_pb2.ModelMetadataRequest, body)
    return ModelName(request.name, request.version)


def encode_model_metadata(metadata: ModelMetadata) -> bytes:
    """Write a ModelMetadataResponse."""
    response = inference_pb2.ModelMetadataResponse(
        name=metadata.name,
        versions=metadata.versions,
        platform=metadata.platform,
        batch_sizes=metadata.batch_sizes,
    )
    for field, tensors in (
        (response.inputs, metadata.inputs),
        (response.outputs, metadata.outputs),
    ):
        for tensor in tensors:
            field.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return response.SerializeToString()


def decode_model_metadata(body: ByteString) -> ModelMetadata:
    """Read a ModelMetadataResponse."""
    response = parse_message(inference_pb2.ModelMetadataResponse, body)
    inputs, outputs = (
        tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in tensors)
        for tensors in (response.inputs, response.outputs)
    )
    return ModelMetadata(
        response.name,
        tuple(response.versions),
        response.platform,
        inputs,
        outputs,
        tuple(response.batch_sizes),
    )


def encode_repository_index_request(is_ready_only: bool = False) -> bytes:
    """Write a RepositoryIndexRequest."""
    return inference_pb2.RepositoryIndexRequest(ready=is_ready_only).SerializeToString()


def decode_repository_index_request(body: ByteString) -> bool:
    """Read a RepositoryIndexRequest: whether only ready models are wanted.

    The name of a repository in it is ignored; there is one.

    Raises:
        MalformedBody: it is not one.
    """
    return parse_message(inference_pb2.RepositoryIndexRequest, body).ready


def encode_repository_index(models: Iterable[ModelIndexEntry]) -> bytes:
    """Write a RepositoryIndexResponse."""
    response = inference_pb2.RepositoryIndexResponse()
    for model in models:
        response.models.add(
            name=model.name,
            version=model.version,
            state=model.state.index_text,
            reason=model.reason,
        )
    return response.SerializeToString()


def decode_repository_index(body: ByteString) -> tuple[ModelIndexEntry, ...]:
    """Read a RepositoryIndexResponse; a state that we have no name for is a model not served."""
    response = parse_message(inference_pb2.RepositoryIndexResponse, body)
    return tuple(
        ModelIndexEntry(m.name, m.version, _STATES.get(m.state, ModelState.FAILED), m.reason)
        for m in response.models
    )


def encode_load_request(name: str) -> bytes:
    """Write a RepositoryModelLoadRequest."""
    return inference_pb2.RepositoryModelLoadRequest(model_name=name).SerializeToString()


def decode_load_request(body: ByteString) -> ModelChange:
    """Read a RepositoryModelLoadRequest; the name of a repository in it is ignored.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(inference_pb2.RepositoryModelLoadRequest, body)
    return ModelChange(request.model_name, _parameters(request.parameters))


def encode_unload_request(name: str, unload_dependents: bool = False) -> bytes:
    """Write a RepositoryModelUnloadRequest."""
    request = inference_pb2.RepositoryModelUnloadRequest(model_name=name)
    if unload_dependents:
        request.parameters["unload_dependents"].bool_param = True
    return request.SerializeToString()


def decode_unload_request(body: ByteString) -> ModelChange:
    """Read a RepositoryModelUnloadRequest; the name of a repository in it is ignored.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(inference_pb2.RepositoryModelUnloadRequest, body)
    return ModelChange(request.model_name, _parameters(request.parameters))


def _parameters(
    given: "Mapping[str, inference_pb2.ModelRepositoryParameter]",
) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for key, value in given.items():
        which = value.WhichOneof("parameter_choice")
        content = "" if which is None else getattr(value, which)
        # Files travel as bytes; nothing here takes them, so their size is all that is worth saying.
        parameters[key] = f"{len(content)} bytes" if isinstance(content, bytes) else content
    return parameters
