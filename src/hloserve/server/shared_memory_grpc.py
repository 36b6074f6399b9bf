"""The shared-memory methods of `inference.GRPCInferenceService`: decode, call, encode.

What lives here: one method table. What does not: regions (`server.shared_memory`) and bytes
(`wire.v2_protobuf_shared_memory`). Loop thread.
"""

from collections.abc import Callable, Mapping

from hloserve.core.errors import HloserveError, NotImplementedYet
from hloserve.core.tickets import Call
from hloserve.server.grpc_call import Handler, Rpc
from hloserve.server.shared_memory import SharedMemory
from hloserve.wire import v2_protobuf_shared_memory as codec

__all__ = ["shared_memory_methods"]

_SERVICE = "/inference.GRPCInferenceService/"
_EMPTY = b""


def shared_memory_methods(memory: SharedMemory) -> Mapping[str, Handler]:
    """Handlers by full method path."""

    def register(rpc: Rpc) -> bytes:
        memory.register(*codec.decode_register_request(rpc.message))
        return _EMPTY

    def status(rpc: Rpc) -> bytes:
        return codec.encode_status_response(memory.status(codec.decode_status_request(rpc.message)))

    def is_same_namespace(rpc: Rpc) -> bytes:
        key = codec.decode_namespace_request(rpc.message)
        return codec.encode_namespace_response(memory.is_same_namespace(key))

    def unregister(rpc: Rpc) -> None:
        def done(_: None, error: Exception | None) -> None:
            if error is None:
                rpc.reply(_EMPTY)
            else:
                rpc.fail(error)

        try:
            name = codec.decode_unregister_request(rpc.message)
        except HloserveError as error:
            rpc.fail(error)
        else:
            Call(memory.unregister(name), done).step()

    table: dict[str, Handler] = {
        "SystemSharedMemoryStatus": _answering(status),
        "SystemSharedMemoryRegister": _answering(register),
        "SystemSharedMemoryUnregister": unregister,
        "IsSameIPCNamespace": _answering(is_same_namespace),
    }
    for verb in ("Status", "Register", "Unregister"):
        table[f"CudaSharedMemory{verb}"] = _refuse_cuda
    return {_SERVICE + name: handler for name, handler in table.items()}


def _answering(method: Callable[[Rpc], bytes]) -> Handler:
    """A handler that answers at once."""

    def handler(rpc: Rpc) -> None:
        try:
            message = method(rpc)
        except HloserveError as error:
            rpc.fail(error)
        else:
            rpc.reply(message)

    return handler


def _refuse_cuda(rpc: Rpc) -> None:
    rpc.fail(NotImplementedYet("CUDA shared memory (unlike system shared memory)"))
