"""`inference.GRPCInferenceService`: each method is decode, call, encode.

What lives here: the method table of the gRPC transport. What does not: bytes (`wire.v2_protobuf`),
behaviour (`server.inference`, `server.catalog`) and HTTP/2 (`server.grpc_transport`). Loop thread.

Source: V2 protocol, gRPC; method names and field numbers are Triton's.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from hloserve.core.clock import Clock
from hloserve.core.errors import HloserveError, ModelNotFound
from hloserve.core.requests import InferResponse, Parameter
from hloserve.core.tickets import Call, Ticket
from hloserve.server.catalog import Catalog
from hloserve.server.grpc_infer_stream import InferStream
from hloserve.server.grpc_stream import StreamHandler, StreamingRpc
from hloserve.server.grpc_transport import Handler, Rpc
from hloserve.server.inference import InferenceService
from hloserve.server.operations import Operations
from hloserve.server.operations_grpc import operations_answers
from hloserve.server.repository_control import RepositoryControl
from hloserve.server.shared_memory_grpc import shared_memory_methods
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_metadata as calls
from hloserve.wire.grpc_framing import Message

__all__ = ["GrpcInferenceService"]

_SERVICE = "/inference.GRPCInferenceService/"


class GrpcInferenceService:
    """Binds the V2 methods to the inference service, the catalog and the repository."""

    def __init__(
        self,
        inference: InferenceService,
        catalog: Catalog,
        control: RepositoryControl,
        operations: Operations,
        clock: Clock,
    ) -> None:
        self._inference = inference
        self._catalog = catalog
        self._control = control
        self._operations = operations
        self._clock = clock

    def methods(self) -> Mapping[str, Handler]:
        """Handlers by full method path."""
        answers: dict[str, Callable[[Message], bytes]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "RepositoryIndex": self._repository_index,
            **operations_answers(self._operations),
        }
        table: dict[str, Handler] = {
            _SERVICE + name: partial(_answer, method) for name, method in answers.items()
        }
        table.update(shared_memory_methods(self._inference.shared_memory))
        table[_SERVICE + "ModelInfer"] = self.model_infer
        table[_SERVICE + "RepositoryModelLoad"] = self._load
        table[_SERVICE + "RepositoryModelUnload"] = self._unload
        return table

    def streams(self) -> Mapping[str, StreamHandler]:
        """Streaming handlers by full method path."""
        return {_SERVICE + "ModelStreamInfer": self._model_stream_infer}

    def _model_stream_infer(self, rpc: StreamingRpc) -> None:
        InferStream(rpc, self._inference, self._clock)

    def model_infer(self, rpc: Rpc) -> None:
        """Decode, call, encode."""
        try:
            request = codec.decode_infer_request(rpc.message, self._clock.now_ns(), rpc.deadline_ns)
        except HloserveError as error:
            rpc.fail(error)
            return

        def reply(response: InferResponse | None, error: Exception | None) -> None:
            if response is None:
                assert error is not None, "a request ends with a response or an error"
                rpc.fail(error)
                return
            try:
                message = codec.encode_infer_response(response)
            except HloserveError as problem:  # more than a message can be
                rpc.fail(problem)
            else:
                rpc.reply(message)

        rpc.on_cancel = self._inference.start(request, reply).cancel

    def _server_live(self, message: Message) -> bytes:
        return calls.encode_server_live(is_live=self._catalog.is_live)

    def _server_ready(self, message: Message) -> bytes:
        return calls.encode_server_ready(is_ready=self._catalog.is_ready)

    def _model_ready(self, message: Message) -> bytes:
        name, version = calls.decode_model_ready_request(message)
        try:
            is_ready = self._catalog.is_model_ready(name, version)
        except ModelNotFound:
            is_ready = False  # the protocol answers, and does not fail, for an unknown model
        return calls.encode_model_ready(is_ready=is_ready)

    def _server_metadata(self, message: Message) -> bytes:
        return calls.encode_server_metadata(self._catalog.server_metadata())

    def _model_metadata(self, message: Message) -> bytes:
        name, version = calls.decode_model_metadata_request(message)
        return calls.encode_model_metadata(self._catalog.model_metadata(name, version))

    def _repository_index(self, message: Message) -> bytes:
        ready_only = calls.decode_repository_index_request(message)
        return calls.encode_repository_index(self._catalog.index(ready_only=ready_only))

    def _load(self, rpc: Rpc) -> None:
        _change(self._control.load, calls.decode_load_request, rpc)

    def _unload(self, rpc: Rpc) -> None:
        _change(self._control.unload, calls.decode_unload_request, rpc)


def _change(
    change: Callable[[str, Mapping[str, Parameter]], Coroutine[Ticket[Any], None, None]],
    decode: Callable[[Message], calls.ModelChange],
    rpc: Rpc,
) -> None:
    """Answer when the repository has changed, which may take as long as a compilation."""
    try:
        wanted = decode(rpc.message)
    except HloserveError as error:
        rpc.fail(error)
        return

    def done(_: None, error: Exception | None) -> None:
        if error is None:
            rpc.reply(calls.EMPTY)
        else:
            rpc.fail(error)

    Call(change(wanted.name, wanted.parameters), done).step()


def _answer(method: Callable[[Message], bytes], rpc: Rpc) -> None:
    try:
        message = method(rpc.message)
    except HloserveError as error:
        rpc.fail(error)
    else:
        rpc.reply(message)
