"""The OpenAPI document of the REST port.

What lives here: every path, what it takes and what it answers. What does not: the shapes of the
messages (`hloserve.server.openapi_schemas`) and the endpoints (`hloserve.server.rest_service`).
Pure; any thread.

A test sends what the document allows to a server, and compares the answers with it.

Source: OpenAPI 3.1; V2 protocol, REST.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from hloserve import __version__
from hloserve.server.openapi_schemas import SCHEMAS, ref

__all__ = ["build_openapi", "openapi_json"]

_Json: TypeAlias = dict[str, Any]

_REASONS: Mapping[int, str] = {
    400: "The request cannot be served as it is; the message says why.",
    401: "A token is needed, and there is no valid one.",
    403: "The token is not for this.",
    404: "There is no such model, version or region.",
    413: "The body is too large.",
    415: "The content coding is not read; gzip and deflate are.",
    429: "The server has too much to do; come again later.",
    501: "A part of the protocol that this server does not have.",
    503: "Not now: the model is loading or has failed, or the server is leaving.",
    504: "The deadline passed before the answer.",
}
_READING = (400, 401, 403)
_OF_MODEL = (*_READING, 404, 503)
_WITH_BODY = (*_READING, 413, 415)
_INFERENCE = (*_WITH_BODY, 404, 429, 501, 503, 504)
_CHANGE = (*_WITH_BODY, 404, 429, 501, 503)

_DESCRIPTION = """\
The KServe V2 (Open Inference) protocol over HTTP, with Triton's extensions. The page `/docs` of a
server lets you try it. A `GET` may be a `HEAD` too. Paths of a model may carry `/versions/1`.
Errors are `{"error": "..."}`, whatever their status. Request bodies may be compressed with gzip or
deflate, and answers are for clients that accept it.
"""


def build_openapi() -> _Json:
    """The whole document, as JSON values."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hloserve",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "tags": [
            {"name": "health", "description": "Is it there, is it ready?"},
            {"name": "models", "description": "What is served, and how it does."},
            {"name": "inference", "description": "Running a model."},
            {"name": "repository", "description": "Loading and unloading."},
            {"name": "shared memory", "description": "Tensors that are not in the message."},
            {"name": "settings", "description": "Log and trace."},
            {"name": "documentation", "description": "This document, and the page to try it."},
        ],
        "paths": {
            **_health(),
            **_models(),
            **_inference(),
            **_repository(),
            **_shared_memory(),
            **_settings(),
            **_documentation(),
        },
        "components": {
            "schemas": SCHEMAS,
            "responses": {
                f"status{status}": _answer(reason, ref("Error"))
                for status, reason in _REASONS.items()
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed where the server has a file of tokens.",
                }
            },
        },
    }


@lru_cache(maxsize=1)
def openapi_json() -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(build_openapi())


def _health() -> _Json:
    not_ready = {"503": _answer("Not ready.", ref("Ready"))}
    return {
        "/v2/health/live": {
            "get": _operation("live", "health", "Is the server alive?", (400,), ref("Live")) | {
                "responses": {
                    "200": _answer("It is.", ref("Live")),
                    "503": _answer("It ends: its device is lost or hangs.", ref("Live")),
                    "400": _error(400),
                }
            }
        },
        "/v2/health/ready": {
            "get": _operation("ready", "health", "Is it ready?", (400,), ref("Ready")) | {
                "responses": {
                    "200": _answer("It is.", ref("Ready")), **not_ready, "400": _error(400)
                }
            }
        },
    }  # fmt: skip


def _models() -> _Json:
    ready = _operation("modelReady", "models", "Is a model ready?", _OF_MODEL, ref("ModelReady"))
    ready["responses"]["503"] = _answer("It is not.", ref("ModelReady"))
    return {
        "/v2": {
            "get": _operation(
                "serverMetadata", "models", "Name, version and extensions of the server.",
                _READING, ref("ServerMetadata"),
            )
        },
        **_versioned("", "get", _operation(
            "modelMetadata", "models", "Inputs and outputs of a model.",
            _OF_MODEL, ref("ModelMetadata"),
        )),
        **_versioned("/ready", "get", ready),
        **_versioned("/config", "get", _operation(
            "modelConfig", "models", "How a model is served, in the words of Triton.",
            _OF_MODEL, ref("ModelConfig"),
        )),
        **_versioned("/stats", "get", _operation(
            "modelStatistics", "models", "What a model has done since it was first loaded.",
            _OF_MODEL, ref("Statistics"),
        )),
        "/v2/models/stats": {
            "get": _operation(
                "statistics", "models", "The statistics of all models.",
                _OF_MODEL, ref("Statistics"),
            )
        },
    }  # fmt: skip


def _inference() -> _Json:
    operation = _operation(
        "infer", "inference", "Run a model once.", _INFERENCE, ref("InferResponse")
    )
    operation["description"] = (
        "JSON, or JSON and binary tensors behind it: then `Inference-Header-Content-Length` is the"
        " length of the JSON, in requests and answers. With the length 0 the body is the one input."
    )
    binary = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
    operation["parameters"] = [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "schema": {"type": "integer", "minimum": 0},
            "description": "Bytes of JSON before the binary tensors.",
        }
    ]
    operation["requestBody"] = _body(ref("InferRequest"), is_required=True)
    operation["requestBody"]["content"]["application/octet-stream"] = binary
    operation["responses"]["200"]["content"]["application/octet-stream"] = binary
    return _versioned("/infer", "post", operation)


def _repository() -> _Json:
    index = _operation(
        "index", "repository", "Every model of the repository, and its state.",
        _WITH_BODY, {"type": "array", "items": ref("IndexEntry")},
    )  # fmt: skip
    index["requestBody"] = _body(ref("IndexRequest"))
    load = _operation(
        "load", "repository", "Load a bundle, or load it again; answers when it serves.", _CHANGE
    )
    load["description"] = "Only in `model_control_mode: explicit`. There are no parameters."
    load["requestBody"] = _body(ref("ChangeRequest"))
    unload = _operation(
        "unload", "repository", "Unload a model; what it was asked before is answered.", _CHANGE
    )
    unload["description"] = "Only in `model_control_mode: explicit`."
    unload["requestBody"] = _body(ref("ChangeRequest"))
    model = _parameter("model")
    return {
        "/v2/repository/index": {"post": index},
        "/v2/repository/models/{model}/load": {"post": load, "parameters": [model]},
        "/v2/repository/models/{model}/unload": {"post": unload, "parameters": [model]},
    }


def _shared_memory() -> _Json:
    tag, region = "shared memory", [_parameter("region")]
    regions = {"type": "array", "items": ref("Region")}
    register = _operation(
        "registerRegion", tag, "Offer an object of /dev/shm to the server.", _CHANGE
    )
    register["requestBody"] = _body(ref("RegionRequest"), is_required=True)
    start = "/v2/systemsharedmemory"
    return {
        f"{start}/status": {
            "get": _operation("regions", tag, "All regions.", (*_READING, 404), regions)
        },
        f"{start}/unregister": {
            "post": _operation("unregisterAll", tag, "Let go of all regions.", _CHANGE)
        },
        f"{start}/region/{{region}}/status": {
            "get": _operation("region", tag, "One region.", (*_READING, 404), regions),
            "parameters": region,
        },
        f"{start}/region/{{region}}/register": {"post": register, "parameters": region},
        f"{start}/region/{{region}}/unregister": {
            "post": _operation("unregisterRegion", tag, "Let go of a region.", _CHANGE),
            "parameters": region,
        },
    }


def _settings() -> _Json:
    def pair(name: str, what: str, schema: str, refused: Sequence[int]) -> _Json:
        read = _operation(f"get{name}", "settings", f"The {what}.", refused, ref(schema))
        write = _operation(
            f"set{name}", "settings", f"Change the {what}; null puts one back.",
            (*_WITH_BODY, 501, *refused), ref(schema),
        )  # fmt: skip
        write["requestBody"] = _body(ref(f"{schema}Request"))
        return {"get": read, "post": write}

    return {
        "/v2/logging": pair("LogSettings", "log's settings", "LogSettings", _READING),
        "/v2/trace/setting": pair("TraceSettings", "trace settings", "TraceSettings", _READING),
        "/v2/models/{model}/trace/setting": {
            **pair("ModelTraceSettings", "trace settings of a model", "TraceSettings", _OF_MODEL),
            "parameters": [_parameter("model")],
        },
    }


def _documentation() -> _Json:
    page = _operation("docs", "documentation", "The page to try it.", (400,))
    page["responses"]["200"] = {
        "description": "HTML that needs no network.",
        "content": {"text/html": {"schema": {"type": "string"}}},
    }
    return {
        "/v2/openapi.json": {
            "get": _operation(
                "openapi", "documentation", "This document.", (400,), {"type": "object"}
            )
        },
        "/docs": {"get": page},
    }


def _versioned(rest: str, method: str, operation: _Json) -> _Json:
    """The two paths of an operation on a model."""
    with_version = {**operation, "operationId": f"{operation['operationId']}OfVersion"}
    model, version = _parameter("model"), _parameter("version")
    return {
        f"/v2/models/{{model}}{rest}": {method: operation, "parameters": [model]},
        f"/v2/models/{{model}}/versions/{{version}}{rest}": {
            method: with_version,
            "parameters": [model, version],
        },
    }


def _operation(
    name: str, tag: str, summary: str, errors: Sequence[int], answer: _Json | None = None
) -> _Json:
    responses = {"200": {"description": "Done."} if answer is None else _answer("Done.", answer)}
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "responses": responses | {str(status): _error(status) for status in sorted({*errors})},
    }


def _answer(description: str, schema: _Json) -> _Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error(status: int) -> _Json:
    return {"$ref": f"#/components/responses/status{status}"}


def _body(schema: _Json, *, is_required: bool = False) -> _Json:
    return {"required": is_required, "content": {"application/json": {"schema": schema}}}


def _parameter(name: str) -> _Json:
    meanings = {
        "model": "A served name, percent-encoded.",
        "version": "Bundles have no versions; 1 is accepted, because clients send it.",
        "region": "The name under which a region is registered.",
    }
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": meanings[name],
        "schema": {"type": "string", "minLength": 1},
        **({"example": "1"} if name == "version" else {}),
    }
