"""Configuration, statistics and settings of V2 in JSON, on the server's side.

What lives here: what the endpoints config, stats, logging and trace/setting read and write. What
does not: the other answers (`hloserve.wire.v2_json_calls`). Stateless; any thread.

Rule: names are those of the protobuf messages; 64-bit integers are numbers, as in Triton.

Source: Triton's model configuration, statistics, logging and trace extensions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from hloserve.core.model_reports import BatchReport, Duration, ModelConfig, ModelReport
from hloserve.wire.v2_json_values import decode_object
from hloserve.wire.v2_protobuf_reports import config_type

__all__ = [
    "decode_log_request",
    "decode_trace_request",
    "encode_log_settings",
    "encode_model_config",
    "encode_statistics",
    "encode_trace_settings",
]

_encode = msgspec.json.Encoder().encode

_LogValue: TypeAlias = bool | int | float | str | None
_TraceValue: TypeAlias = str | list[str] | None
_log_values = msgspec.json.Decoder[_LogValue](_LogValue)
_trace_values = msgspec.json.Decoder[_TraceValue](_TraceValue)


def encode_model_config(config: ModelConfig) -> bytes:
    """A model's configuration."""
    scheduling: dict[str, Any] = {}
    if config.preferred_batch_sizes:
        scheduling["dynamic_batching"] = {
            "preferred_batch_size": config.preferred_batch_sizes,
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
        }
    return _encode(
        {
            "name": config.name,
            "platform": config.platform,
            "backend": config.backend,
            "max_batch_size": config.max_batch_size,
            "input": [
                {"name": t.name, "data_type": config_type(t.datatype), "dims": t.dims}
                for t in config.inputs
            ],
            "output": [
                {
                    "name": t.name,
                    "data_type": config_type(t.datatype),
                    "dims": t.dims,
                    "label_filename": t.label_filename,
                }
                for t in config.outputs
            ],
            "instance_group": [
                {
                    "name": f"{config.name}_0",
                    "kind": config.instance_kind,
                    "count": 1,
                    "gpus": config.device_ordinals,
                }
            ],
            **scheduling,
            "model_transaction_policy": {"decoupled": False},
        }
    )


def encode_statistics(reports: Iterable[ModelReport]) -> bytes:
    """``{"model_stats": [...]}``."""
    return _encode({"model_stats": [_report(report) for report in reports]})


def _report(report: ModelReport) -> dict[str, Any]:
    nothing = Duration(0, 0)
    return {
        "name": report.name,
        "version": report.version,
        "last_inference": report.last_inference_ms,
        "inference_count": report.inference_count,
        "execution_count": report.execution_count,
        "inference_stats": {
            "success": _duration(report.success),
            "fail": _duration(report.fail),
            "queue": _duration(report.queue),
            "compute_input": _duration(report.compute_input),
            "compute_infer": _duration(report.compute_infer),
            "compute_output": _duration(report.compute_output),
            "cache_hit": _duration(nothing),
            "cache_miss": _duration(nothing),
        },
        "batch_stats": [_batch(batch) for batch in report.batches],
        "memory_usage": [
            {"type": memory.kind, "id": memory.ordinal, "byte_size": memory.nbytes}
            for memory in report.memory
        ],
    }


def _batch(batch: BatchReport) -> dict[str, Any]:
    return {
        "batch_size": batch.batch_size,
        "compute_input": _duration(batch.compute_input),
        "compute_infer": _duration(batch.compute_infer),
        "compute_output": _duration(batch.compute_output),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def decode_log_request(body: bytes) -> Mapping[str, bool | int | float | str | None]:
    """Read log settings to change; null puts one back. An empty body changes nothing.

    Raises:
        MalformedBody: it is no JSON object of such values; those that are none are named.
    """
    return decode_object(body, _log_values, "log settings")


def encode_log_settings(settings: Mapping[str, bool | int | str]) -> bytes:
    """The log settings that hold, as one object."""
    return _encode(settings)


def decode_trace_request(body: bytes) -> Mapping[str, Sequence[str]]:
    """Read trace settings to change: a string or an array of them each; null puts one back.

    Raises:
        MalformedBody: it is no JSON object of such values; those that are none are named.
    """
    given = decode_object(body, _trace_values, "trace settings")
    return {
        name: [values] if isinstance(values, str) else values or []
        for name, values in given.items()
    }


def encode_trace_settings(settings: Mapping[str, Sequence[str]]) -> bytes:
    """The trace settings that hold: levels as an array, the others as strings."""
    return _encode(
        {
            name: list(values) if name == "trace_level" else values[0]
            for name, values in settings.items()
        }
    )
