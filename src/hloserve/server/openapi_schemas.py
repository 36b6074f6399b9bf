"""The shapes of the messages in the OpenAPI document.

What lives here: JSON schemas by name. What does not: the paths (`hloserve.server.openapi`). Plain
data.

Source: JSON Schema 2020-12; V2 protocol, REST.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hloserve.core.dtypes import DTYPES

__all__ = ["SCHEMAS", "ref"]

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_SHAPE = {"type": "array", "items": {"type": "integer"}}
_SENT_SHAPE = {"type": "array", "items": _COUNT}
_DATATYPES = [*(dtype.kserve for dtype in DTYPES if dtype.kserve is not None), "BYTES"]
_DATATYPE = {"type": "string", "enum": list(dict.fromkeys(_DATATYPES))}
_NULL = {"type": "null"}
_PARAMETERS = {
    "type": "object",
    "additionalProperties": {"type": ["boolean", "number", "string"]},
}


def ref(name: str) -> dict[str, Any]:
    """A reference to one of the schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(
    properties: Mapping[str, Any], required: Sequence[str] | None = None, **more: Any
) -> dict[str, Any]:
    """An object; all its properties are required unless told otherwise."""
    names = list(properties) if required is None else list(required)
    return {"type": "object", "properties": dict(properties), "required": names, **more}


def _list(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(item)}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [dict(schema), _NULL]}


_TRACE_TEXTS = ("trace_file", "trace_rate", "trace_count", "log_frequency", "trace_mode")
_TENSOR = _object({"name": _TEXT, "datatype": _DATATYPE, "shape": _SHAPE})
_TIMES = {name: ref("Duration") for name in ("compute_input", "compute_infer", "compute_output")}

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Error": _object({"error": _TEXT}),
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}),
    "ModelReady": _object({"name": _TEXT, "ready": _FLAG}),
    "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "TensorMetadata": _TENSOR
    | {"description": "Row-major; -1 is an axis that the caller chooses."},
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(ref("TensorMetadata")),
            "outputs": _list(ref("TensorMetadata")),
            "batch_sizes": _list(_COUNT)
            | {"description": "Not of the protocol: sizes that batches are run at."},
        },
        ("name", "platform", "inputs", "outputs"),
    ),
    "InferInput": _object(
        {
            "name": _TEXT,
            "datatype": _DATATYPE,
            "shape": _SENT_SHAPE,
            "parameters": _or_null(_PARAMETERS),
            "data": {"description": "Flat, or nested as the shape; absent for binary tensors."},
        },
        ("name", "datatype", "shape"),
    ),
    "RequestedOutput": _object({"name": _TEXT, "parameters": _or_null(_PARAMETERS)}, ("name",)),
    "InferRequest": _object(
        {
            "id": _or_null(_TEXT),
            "parameters": _or_null(_PARAMETERS),
            "inputs": _list(ref("InferInput")),
            "outputs": _or_null(_list(ref("RequestedOutput"))),
        },
        ("inputs",),
        example={
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]
        },
    ),
    "InferOutput": _object(
        {
            "name": _TEXT,
            "datatype": _DATATYPE,
            "shape": _SENT_SHAPE,
            "parameters": _PARAMETERS,
            "data": {"type": "array", "description": "Flat; absent when it is elsewhere."},
        },
        ("name", "datatype", "shape"),
    ),
    "InferResponse": _object(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "outputs": _list(ref("InferOutput")),
        },
        ("model_name", "outputs"),
    ),
    "InputConfig": _object({"name": _TEXT, "data_type": _TEXT, "dims": _SHAPE}),
    "OutputConfig": _object(
        {"name": _TEXT, "data_type": _TEXT, "dims": _SHAPE, "label_filename": _TEXT}
    ),
    "ModelConfig": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "backend": _TEXT,
            "max_batch_size": _COUNT,
            "input": _list(ref("InputConfig")),
            "output": _list(ref("OutputConfig")),
            "instance_group": _list(
                _object(
                    {
                        "name": _TEXT,
                        "kind": {"type": "string", "enum": ["KIND_CPU", "KIND_GPU"]},
                        "count": _COUNT,
                        "gpus": _list(_COUNT),
                    }
                )
            ),
            "dynamic_batching": _object(
                {
                    "preferred_batch_size": _list(_COUNT),
                    "max_queue_delay_microseconds": _COUNT,
                    "preserve_ordering": _FLAG,
                }
            ),
            "model_transaction_policy": _object({"decoupled": _FLAG}),
        },
        ("name", "platform", "backend", "max_batch_size", "input", "output", "instance_group"),
    ),
    "Duration": _object({"count": _COUNT, "ns": _COUNT}),
    "ModelStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": _COUNT | {"description": "Milliseconds since the epoch, or 0."},
            "inference_count": _COUNT | {"description": "Rows."},
            "execution_count": _COUNT,
            "inference_stats": _object(
                {
                    **{name: ref("Duration") for name in ("success", "fail", "queue")},
                    **_TIMES,
                    **{name: ref("Duration") for name in ("cache_hit", "cache_miss")},
                }
            ),
            "batch_stats": _list(_object({"batch_size": _COUNT, **_TIMES})),
            "memory_usage": _list(
                _object(
                    {
                        "type": {"type": "string", "enum": ["CPU", "GPU"]},
                        "id": _COUNT,
                        "byte_size": _COUNT,
                    }
                )
            ),
        }
    ),
    "Statistics": _object({"model_stats": _list(ref("ModelStatistics"))}),
    "IndexRequest": _object({"ready": _or_null(_FLAG)}, ()),
    "IndexEntry": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "state": {"type": "string", "enum": ["READY", "LOADING", "UNAVAILABLE"]},
            "reason": _TEXT,
        }
    ),
    "ChangeRequest": _object({"parameters": _PARAMETERS}, ()),
    "Region": _object(
        {"name": _TEXT, "key": _TEXT, "offset": _COUNT, "byte_size": _COUNT},
    ),
    "RegionRequest": _object(
        {"key": _TEXT, "offset": _COUNT, "byte_size": _COUNT}, ("key", "byte_size")
    ),
    "LogSettings": _object(
        {
            "log_file": _TEXT,
            "log_info": _FLAG,
            "log_warning": _FLAG,
            "log_error": _FLAG,
            "log_verbose_level": _COUNT,
            "log_format": {"type": "string", "enum": ["text", "json"]},
        }
    ),
    "LogSettingsRequest": _object(
        {
            "log_file": _or_null(_TEXT),
            **{f"log_{name}": _or_null(_FLAG) for name in ("info", "warning", "error")},
            "log_verbose_level": _or_null(_COUNT),
            "log_format": {"enum": ["text", "json", "default", None]},
        },
        (),
        example={"log_verbose_level": 1},
    ),
    "TraceSettings": _object(
        {
            "trace_level": _list(_TEXT),
            **dict.fromkeys(_TRACE_TEXTS, _TEXT),
        }
    ),
    "TraceSettingsRequest": {
        "type": "object",
        "additionalProperties": {"anyOf": [_TEXT, _list(_TEXT), _NULL]},
        "example": {"trace_level": ["OFF"]},
    },
}  # fmt: skip
