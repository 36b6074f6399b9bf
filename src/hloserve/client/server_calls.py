"""What a client asks of a server besides inference.

What lives here: one method per call: encode, call, decode. What does not: inference and how a call
is made (`hloserve.client.blocking`), bytes (`hloserve.wire`). Any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hloserve.core.errors import Unavailable
from hloserve.core.model_reports import ModelConfig, ModelReport
from hloserve.core.requests import ModelIndexEntry, ModelMetadata, ServerMetadata
from hloserve.wire import v2_protobuf_metadata as calls
from hloserve.wire import v2_protobuf_reports as reports
from hloserve.wire.grpc_framing import Message

__all__ = ["ServerCalls"]

T = TypeVar("T")


class ServerCalls:
    """The calls of a client; whoever builds on it says how a call is made."""

    def model_metadata(self, model: str) -> ModelMetadata:
        """Inputs and outputs of a model: `.inputs[i].name`, `.datatype`, `.shape`.

        Raises:
            ModelNotFound: nothing of that name is served there.
        """
        body = calls.encode_model_metadata_request(model)
        return self._read(calls.decode_model_metadata, self._call("ModelMetadata", body, model))

    def model_config(self, model: str) -> ModelConfig:
        """How a model is served: `.max_batch_size`, `.preferred_batch_sizes`, `.inputs[i].dims`.

        Raises:
            ModelNotFound: nothing of that name is served there.
        """
        body = reports.encode_model_config_request(model)
        return self._read(reports.decode_model_config, self._call("ModelConfig", body, model))

    def model_statistics(self, model: str = "") -> tuple[ModelReport, ...]:
        """What a model has done since it was first loaded; of every model without a name.

        Example:
            >>> from hloserve import Client
            >>> with Client("localhost:8001") as client:  # doctest: +SKIP
            ...     (report,) = client.model_statistics("digits")
            ...     report.inference_count, report.success.count, report.success.ns

        Raises:
            ModelNotFound: nothing of that name is served there.
        """
        body = reports.encode_statistics_request(model)
        return self._read(reports.decode_statistics, self._call("ModelStatistics", body, model))

    def log_settings(self) -> Mapping[str, bool | int | str | None]:
        """What the server's log shows, by the protocol's names: `log_info`, `log_format`..."""
        return self.update_log_settings({})

    def update_log_settings(
        self, settings: Mapping[str, bool | int | str | None]
    ) -> Mapping[str, bool | int | str | None]:
        """Change what the server's log shows; returns all settings as they are then.

        Args:
            settings: by the protocol's names; None puts one back to what the server started with.

        Raises:
            BadRequest: a name or a value that does not exist; nothing is changed.
        """
        body = reports.encode_log_request(settings)
        return self._read(reports.decode_log_settings, self._call("LogSettings", body))

    def trace_settings(self, model: str = "") -> Mapping[str, Sequence[str]]:
        """The trace settings of a model, or of the server without a name.

        Raises:
            ModelNotFound: nothing of that name is served there.
        """
        body = reports.encode_trace_request({}, model)
        return self._read(reports.decode_trace_settings, self._call("TraceSetting", body, model))

    def server_metadata(self) -> ServerMetadata:
        """The server's name, version and protocol extensions."""
        return self._read(calls.decode_server_metadata, self._call("ServerMetadata"))

    def repository_index(self, *, is_ready_only: bool = False) -> tuple[ModelIndexEntry, ...]:
        """Every model that the server knows, with its state and, when not ready, the reason."""
        body = calls.encode_repository_index_request(is_ready_only)
        return self._read(calls.decode_repository_index, self._call("RepositoryIndex", body))

    def load_model(self, model: str, *, timeout_s: float | None = None) -> None:
        """Load a bundle of the server's repository, or load it again; returns when it serves.

        The server must run in `model_control_mode: explicit`.

        Args:
            model: name of the bundle's directory.
            timeout_s: instead of the client's; a load may take as long as compiling does.

        Raises:
            NotPossibleNow: the mode does not allow it, or the bundle cannot be loaded; the message
                has the reason.
            ModelNotFound: there is no such bundle.
        """
        self._call("RepositoryModelLoad", calls.encode_load_request(model), model, timeout_s)

    def unload_model(self, model: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; requests that it has already are answered.

        Args:
            model: served name.
            unload_dependents: with a meta model, unload the models that only it calls.

        Raises:
            NotPossibleNow: the mode does not allow it, or the model is being loaded.
            ModelNotFound: nothing of that name is served there.
        """
        body = calls.encode_unload_request(model, unload_dependents)
        self._call("RepositoryModelUnload", body, model)

    def is_server_live(self) -> bool:
        """True when the server answers; False when nobody does."""
        try:
            return self._read(calls.decode_server_live, self._call("ServerLive"))
        except Unavailable:
            return False

    def is_server_ready(self) -> bool:
        """True when the server is ready to infer; False when it is not, or nobody answers."""
        try:
            return self._read(calls.decode_server_ready, self._call("ServerReady"))
        except Unavailable:
            return False

    def is_model_ready(self, model: str) -> bool:
        """True when the model takes requests; False when it does not, or is not served there."""
        body = calls.encode_model_ready_request(model)
        return self._read(calls.decode_model_ready, self._call("ModelReady", body, model))

    def _read(self, decode: Callable[[Message], T], answer: Message) -> T:
        """Decode an answer; one that cannot be read is the server's fault, not the caller's."""
        raise NotImplementedError

    def _call(
        self, method: str, body: bytes = b"", model: str = "", timeout_s: float | None = None
    ) -> Message:
        """Make one call of the V2 service."""
        raise NotImplementedError
