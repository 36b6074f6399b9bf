"""Configuration, statistics and settings over gRPC: decode, call, encode.

What lives here: one method table. What does not: what is answered (`server.operations`) and bytes
(`wire.v2_protobuf_reports`). Loop thread.
"""

from collections.abc import Callable, Mapping

from hloserve.server.operations import Operations
from hloserve.wire import v2_protobuf_reports as codec
from hloserve.wire.grpc_framing import Message

__all__ = ["operations_answers"]


def operations_answers(operations: Operations) -> Mapping[str, Callable[[Message], bytes]]:
    """What answers a request message with a response message, by method name."""

    def model_config(message: Message) -> bytes:
        name, version = codec.decode_model_config_request(message)
        return codec.encode_model_config(operations.reports.config(name, version))

    def model_statistics(message: Message) -> bytes:
        name, version = codec.decode_statistics_request(message)
        return codec.encode_statistics(operations.reports.statistics(name, version))

    def log_settings(message: Message) -> bytes:
        changes = codec.decode_log_request(message)
        return codec.encode_log_settings(operations.logs.update(changes))

    def trace_setting(message: Message) -> bytes:
        model, changes = codec.decode_trace_request(message)
        return codec.encode_trace_settings(operations.traces.update(changes, model))

    return {
        "ModelConfig": model_config,
        "ModelStatistics": model_statistics,
        "LogSettings": log_settings,
        "TraceSetting": trace_setting,
    }
