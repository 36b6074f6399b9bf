"""`reactant_control.ControlService`: each method is decode, call, encode.

What lives here: the method table. What does not: what is answered (`hloserve.server.control`) and
bytes (`hloserve.wire.control_protobuf`). Loop thread.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from hloserve.core.tickets import Call, Ticket
from hloserve.server.control import ModelControl
from hloserve.server.grpc_call import Handler, Rpc
from hloserve.wire import control_protobuf as codec
from hloserve.wire.grpc_framing import Message
from hloserve.wire.v2_protobuf_metadata import EMPTY

__all__ = ["control_methods"]


def control_methods(control: ModelControl) -> Mapping[str, Handler]:
    """Handlers by full method path."""

    async def status(message: Message) -> bytes:
        codec.decode_status_request(message)
        return codec.encode_control_status(control.status())

    async def set_residency(message: Message) -> bytes:
        name, floor = codec.decode_residency_request(message)
        return codec.encode_residency(await control.set_residency(name, floor))

    async def set_policy(message: Message) -> bytes:
        control.set_policy(*codec.decode_policy_request(message))
        return EMPTY

    async def compact(message: Message) -> bytes:
        reload = codec.decode_compact_request(message)
        return codec.encode_compaction(await control.compact(reload))

    methods = {
        "ModelControlStatus": status,
        "SetModelResidency": set_residency,
        "SetModelPolicy": set_policy,
        "CompactMemory": compact,
    }
    return {
        f"/{codec.CONTROL_SERVICE}/{name}": partial(_answer, method)
        for name, method in methods.items()
    }


def _answer(method: Callable[[Message], Coroutine[Ticket[Any], None, bytes]], rpc: Rpc) -> None:
    """Answer when it is done. Who goes away does not stop what the device has begun."""

    def done(answer: bytes | None, error: Exception | None) -> None:
        if answer is None:
            assert error is not None, "a call ends with an answer or an error"
            rpc.fail(error)
        else:
            rpc.reply(answer)

    Call(method(rpc.message), done).step()
