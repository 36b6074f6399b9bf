"""Configuration, statistics and settings of V2 in protobuf, both ways and for both sides.

What lives here: ModelConfig, ModelStatistics, LogSettings and TraceSetting. What does not: the
other calls (`hloserve.wire.v2_protobuf_metadata`). Stateless; any thread.

Source: Triton's model configuration, statistics, logging and trace extensions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from hloserve.core.errors import BadRequest
from hloserve.core.model_reports import (
    BatchReport,
    Duration,
    MemoryReport,
    ModelConfig,
    ModelReport,
    TensorConfig,
)
from hloserve.wire.protos import inference_pb2 as pb
from hloserve.wire.tensor_bytes import ByteString
from hloserve.wire.v2_protobuf_metadata import ModelName, parse_message

__all__ = [
    "LogSettingsMap",
    "TraceSettingsMap",
    "config_type",
    "decode_log_request",
    "decode_log_settings",
    "decode_model_config",
    "decode_model_config_request",
    "decode_statistics",
    "decode_statistics_request",
    "decode_trace_request",
    "decode_trace_settings",
    "encode_log_request",
    "encode_log_settings",
    "encode_model_config",
    "encode_model_config_request",
    "encode_statistics",
    "encode_statistics_request",
    "encode_trace_request",
    "encode_trace_settings",
]

LogSettingsMap: TypeAlias = Mapping[str, bool | int | str | None]
"""Log settings by name; None is a setting without a value."""

TraceSettingsMap: TypeAlias = Mapping[str, Sequence[str]]
"""Trace settings by name; each may have several values, or none."""

_STRING = "BYTES"
_UINT32_MAX = 2**32 - 1


def config_type(datatype: str) -> str:
    """The name that a model configuration has for a datatype: ``TYPE_FP32``, ``TYPE_STRING``."""
    return "TYPE_STRING" if datatype == _STRING else f"TYPE_{datatype}"


def _datatype(config_type: str) -> str:
    return _STRING if config_type == "TYPE_STRING" else config_type.removeprefix("TYPE_")


# -- model configuration


def encode_model_config_request(name: str, version: str = "") -> bytes:
    """Write a ModelConfigRequest."""
    return pb.ModelConfigRequest(name=name, version=version).SerializeToString()


def decode_model_config_request(body: ByteString) -> ModelName:
    """Read a ModelConfigRequest.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(pb.ModelConfigRequest, body)
    return ModelName(request.name, request.version)


def encode_model_config(config: ModelConfig) -> bytes:
    """Write a ModelConfigResponse."""
    response = pb.ModelConfigResponse()
    message = response.config
    message.name, message.platform = config.name, config.platform
    message.backend = config.backend
    message.max_batch_size = config.max_batch_size
    for given in config.inputs:
        kind = pb.DataType.Value(config_type(given.datatype))
        message.input.add(name=given.name, data_type=kind, dims=given.dims)
    for given in config.outputs:
        kind = pb.DataType.Value(config_type(given.datatype))
        message.output.add(
            name=given.name, data_type=kind, dims=given.dims, label_filename=given.label_filename
        )
    message.instance_group.add(
        name=f"{config.name}_0",
        count=1,
        gpus=config.device_ordinals,
        kind=pb.ModelInstanceGroup.Kind.Value(config.instance_kind),
    )
    if config.preferred_batch_sizes:
        message.dynamic_batching.preferred_batch_size.extend(config.preferred_batch_sizes)
    message.model_transaction_policy.decoupled = False
    return response.SerializeToString()


def decode_model_config(body: ByteString) -> ModelConfig:
    """Read a ModelConfigResponse."""
    config = parse_message(pb.ModelConfigResponse, body).config
    group = config.instance_group[0] if config.instance_group else pb.ModelInstanceGroup()
    return ModelConfig(
        name=config.name,
        platform=config.platform,
        backend=config.backend,
        max_batch_size=config.max_batch_size,
        inputs=tuple(_tensor_config(t) for t in config.input),
        outputs=tuple(_tensor_config(t, t.label_filename) for t in config.output),
        preferred_batch_sizes=tuple(config.dynamic_batching.preferred_batch_size),
        instance_kind=pb.ModelInstanceGroup.Kind.Name(group.kind),
        device_ordinals=tuple(group.gpus),
    )


def _tensor_config(
    tensor: pb.ModelInput | pb.ModelOutput, label_filename: str = ""
) -> TensorConfig:
    datatype = _datatype(pb.DataType.Name(tensor.data_type))
    return TensorConfig(tensor.name, datatype, tuple(tensor.dims), label_filename)


# -- statistics


def encode_statistics_request(name: str = "", version: str = "") -> bytes:
    """Write a ModelStatisticsRequest; without a name for all models."""
    return pb.ModelStatisticsRequest(name=name, version=version).SerializeToString()


def decode_statistics_request(body: ByteString) -> ModelName:
    """Read a ModelStatisticsRequest; an empty name asks for all models.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(pb.ModelStatisticsRequest, body)
    return ModelName(request.name, request.version)


def encode_statistics(reports: Iterable[ModelReport]) -> bytes:
    """Write a ModelStatisticsResponse."""
    response = pb.ModelStatisticsResponse()
    for report in reports:
        message = response.model_stats.add(
            name=report.name,
            version=report.version,
            last_inference=report.last_inference_ms,
            inference_count=report.inference_count,
            execution_count=report.execution_count,
            inference_stats=pb.InferStatistics(
                success=_duration(report.success),
                fail=_duration(report.fail),
                queue=_duration(report.queue),
                compute_input=_duration(report.compute_input),
                compute_infer=_duration(report.compute_infer),
                compute_output=_duration(report.compute_output),
                cache_hit=pb.StatisticDuration(),
                cache_miss=pb.StatisticDuration(),
            ),
        )
        for batch in report.batches:
            message.batch_stats.add(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
        for memory in report.memory:
            message.memory_usage.add(type=memory.kind, id=memory.ordinal, byte_size=memory.nbytes)
    return response.SerializeToString()


def decode_statistics(body: ByteString) -> tuple[ModelReport, ...]:
    """Read a ModelStatisticsResponse."""
    response = parse_message(pb.ModelStatisticsResponse, body)
    return tuple(_report(message) for message in response.model_stats)


def _report(message: pb.ModelStatistics) -> ModelReport:
    times = message.inference_stats
    return ModelReport(
        name=message.name,
        version=message.version,
        last_inference_ms=message.last_inference,
        inference_count=message.inference_count,
        execution_count=message.execution_count,
        success=_as_duration(times.success),
        fail=_as_duration(times.fail),
        queue=_as_duration(times.queue),
        compute_input=_as_duration(times.compute_input),
        compute_infer=_as_duration(times.compute_infer),
        compute_output=_as_duration(times.compute_output),
        batches=tuple(
            BatchReport(
                batch.batch_size,
                _as_duration(batch.compute_input),
                _as_duration(batch.compute_infer),
                _as_duration(batch.compute_output),
            )
            for batch in message.batch_stats
        ),
        memory=tuple(MemoryReport(m.type, m.id, m.byte_size) for m in message.memory_usage),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def _as_duration(message: pb.StatisticDuration) -> Duration:
    return Duration(message.count, message.ns)


# -- settings


def encode_log_request(settings: LogSettingsMap) -> bytes:
    """Write a LogSettingsRequest; an empty one only asks.

    Raises:
        BadRequest: a number that the message cannot hold.
    """
    request = pb.LogSettingsRequest()
    for name, value in settings.items():
        _put_log_value(request.settings[name], name, value)
    return request.SerializeToString()


def decode_log_request(body: ByteString) -> LogSettingsMap:
    """Read a LogSettingsRequest.

    Raises:
        MalformedBody: it is not one.
    """
    return _log_values(parse_message(pb.LogSettingsRequest, body).settings)


def encode_log_settings(settings: LogSettingsMap) -> bytes:
    """Write a LogSettingsResponse."""
    response = pb.LogSettingsResponse()
    for name, value in settings.items():
        _put_log_value(response.settings[name], name, value)
    return response.SerializeToString()


def decode_log_settings(body: ByteString) -> LogSettingsMap:
    """Read a LogSettingsResponse."""
    return _log_values(parse_message(pb.LogSettingsResponse, body).settings)


def _put_log_value(
    place: pb.LogSettingsRequest.SettingValue | pb.LogSettingsResponse.SettingValue,
    name: str,
    value: bool | int | str | None,
) -> None:
    if isinstance(value, bool):
        place.bool_param = value
    elif isinstance(value, int):
        if not 0 <= value <= _UINT32_MAX:
            raise BadRequest(f"{name} is {value}, expected 0 to {_UINT32_MAX}")
        place.uint32_param = value
    elif value is not None:
        place.string_param = value


def _log_values(
    settings: Mapping[str, pb.LogSettingsRequest.SettingValue]
    | Mapping[str, pb.LogSettingsResponse.SettingValue],
) -> LogSettingsMap:
    values: dict[str, bool | int | str | None] = {}
    for name, value in settings.items():
        which = value.WhichOneof("parameter_choice")
        values[name] = None if which is None else getattr(value, which)
    return values


def encode_trace_request(settings: TraceSettingsMap, model: str = "") -> bytes:
    """Write a TraceSettingRequest; without settings it only asks."""
    request = pb.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        request.settings[name].value.extend(values)
    return request.SerializeToString()


def decode_trace_request(body: ByteString) -> tuple[str, TraceSettingsMap]:
    """Read a TraceSettingRequest: the model, empty for the server, and the settings.

    Raises:
        MalformedBody: it is not one.
    """
    request = parse_message(pb.TraceSettingRequest, body)
    return request.model_name, {name: tuple(v.value) for name, v in request.settings.items()}


def encode_trace_settings(settings: TraceSettingsMap) -> bytes:
    """Write a TraceSettingResponse."""
    response = pb.TraceSettingResponse()
    for name, values in settings.items():
        response.settings[name].value.extend(values)
    return response.SerializeToString()


def decode_trace_settings(body: ByteString) -> TraceSettingsMap:
    """Read a TraceSettingResponse."""
    response = parse_message(pb.TraceSettingResponse, body)
    return {name: tuple(v.value) for name, v in response.settings.items()}
