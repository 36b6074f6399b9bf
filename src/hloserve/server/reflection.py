"""gRPC server reflection, v1 and v1alpha: how generic clients learn what can be called.

What lives here: the stream of questions and answers. What does not: the answers
(`hloserve.wire.grpc_reflection`). Loop thread.
"""

from collections.abc import Collection, Mapping

from hloserve.core.errors import HloserveError
from hloserve.server.grpc_stream import StreamHandler, StreamingRpc
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_reflection import REFLECTION_SERVICES, answer_reflection

__all__ = ["ReflectionService"]


class ReflectionService:
    """Answers what services there are, and how they are defined.

    Args:
        services: full names of the other gRPC services of this server.
    """

    def __init__(self, services: Collection[str]) -> None:
        self._services = frozenset(services) | frozenset(REFLECTION_SERVICES)

    def streams(self) -> Mapping[str, StreamHandler]:
        """Streaming handlers by full method path."""
        return {f"/{name}/ServerReflectionInfo": self._begin for name in REFLECTION_SERVICES}

    def _begin(self, rpc: StreamingRpc) -> None:
        def answer(question: Message) -> None:
            try:
                rpc.send(answer_reflection(question, self._services))
            except HloserveError as error:
                rpc.fail(error)
            if rpc.is_full:  # a caller that asks and does not read gets no further
                rpc.pause()

        rpc.on_message = answer
        rpc.on_half_close = rpc.finish
        rpc.on_room = rpc.resume
