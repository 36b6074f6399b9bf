"""V2 answers in JSON other than inference: health, metadata, index, errors.

What lives here: encoding. What does not: inference (`hloserve.wire.v2_json`), and where the
answers come from (`hloserve.server.catalog`). Stateless; any thread.

Source: V2 protocol, "Health", "Server Metadata", "Model Metadata", error response; model
repository extension, "Index".
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hloserve.core.requests import (
    ModelIndexEntry,
    ModelMetadata,
    ServerMetadata,
    TensorMetadata,
)
from hloserve.wire.http1_messages import format_error_body as encode_error

__all__ = [
    "encode_error",
    "encode_index",
    "encode_live",
    "encode_model_metadata",
    "encode_model_ready",
    "encode_ready",
    "encode_server_metadata",
]

_encode = msgspec.json.Encoder().encode


def encode_live(is_live: bool) -> bytes:
    """``{"live": true}``."""
    return _encode({"live": is_live})


def encode_ready(is_ready: bool) -> bytes:
    """``{"ready": true}``."""
    return _encode({"ready": is_ready})


def encode_model_ready(name: str, is_ready: bool) -> bytes:
    """``{"name": "m", "ready": true}``."""
    return _encode({"name": name, "ready": is_ready})


def encode_server_metadata(metadata: ServerMetadata) -> bytes:
    """Name, version and extensions of the server."""
    return _encode(
        {
            "name": metadata.name,
            "version": metadata.version,
            "extensions": metadata.extensions,
        }
    )


def encode_model_metadata(metadata: ModelMetadata) -> bytes:
    """A model's tensors; open axes are -1. What is not of the protocol is left out when empty."""
    beyond = {"batch_sizes": metadata.batch_sizes} if metadata.batch_sizes else {}
    return _encode(
        {
            "name": metadata.name,
            "versions": metadata.versions,
            "platform": metadata.platform,
            "inputs": _tensors(metadata.inputs),
            "outputs": _tensors(metadata.outputs),
            **beyond,
        }
    )


def encode_index(entries: Iterable[ModelIndexEntry]) -> bytes:
    """The repository's models, as a bare array."""
    return _encode(
        [
            {
                "name": entry.name,
                "version": entry.version,
                "state": entry.state.index_text,
                "reason": entry.reason,
            }
            for entry in entries
        ]
    )


def _tensors(tensors: Sequence[TensorMetadata]) -> list[dict[str, Any]]:
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        for tensor in tensors
    ]
