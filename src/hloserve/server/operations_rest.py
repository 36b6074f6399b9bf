"""Configuration, statistics and settings over REST: decode, call, encode.

What lives here: the endpoints. What does not: their paths (`server.rest_service`), what is answered
(`server.operations`) and bytes (`wire.v2_json_reports`). Loop thread.
"""

from hloserve.server.operations import Operations
from hloserve.server.rest_exchange import Exchange
from hloserve.wire import v2_json_reports as codec

__all__ = ["OperationsEndpoints"]


class OperationsEndpoints:
    """Answers exchanges about a model and a version; both are empty for the server."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def config(self, exchange: Exchange, model: str, version: str) -> None:
        """The configuration of a model."""
        config = self._operations.reports.config(model, version)
        exchange.reply(200, codec.encode_model_config(config))

    def statistics(self, exchange: Exchange, model: str, version: str) -> None:
        """The statistics of a model, or of all."""
        reports = self._operations.reports.statistics(model, version)
        exchange.reply(200, codec.encode_statistics(reports))

    def log_settings(self, exchange: Exchange, model: str, version: str) -> None:
        """The log's settings."""
        exchange.reply(200, codec.encode_log_settings(self._operations.logs.read()))

    def set_log_settings(self, exchange: Exchange, model: str, version: str) -> None:
        """Change the log's settings; answers those that hold then."""
        changes = codec.decode_log_request(exchange.control_body)
        exchange.reply(200, codec.encode_log_settings(self._operations.logs.update(changes)))

    def trace_settings(self, exchange: Exchange, model: str, version: str) -> None:
        """The trace settings of a model, or of the server."""
        settings = self._operations.traces.read(model, version)
        exchange.reply(200, codec.encode_trace_settings(settings))

    def set_trace_settings(self, exchange: Exchange, model: str, version: str) -> None:
        """Change trace settings; answers those that hold then."""
        changes = codec.decode_trace_request(exchange.control_body)
        settings = self._operations.traces.update(changes, model, version)
        exchange.reply(200, codec.encode_trace_settings(settings))
