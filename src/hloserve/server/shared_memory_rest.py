"""The shared-memory endpoints of the V2 protocol over REST: route, decode, call, encode.

What lives here: ``/v2/systemsharedmemory`` and ``/v2/cudasharedmemory``. What does not: regions
(`server.shared_memory`) and bodies (`wire.v2_json_shared_memory`). Loop thread.

Source: Triton's system shared memory extension, REST.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hloserve.core.errors import NotImplementedYet
from hloserve.core.tickets import Call
from hloserve.server.rest_exchange import Exchange
from hloserve.server.shared_memory import SharedMemory
from hloserve.wire.v2_json_shared_memory import decode_register, encode_status

__all__ = ["SharedMemoryEndpoints"]

_Endpoint: TypeAlias = Callable[[Exchange, str, str], None]


class SharedMemoryEndpoints:
    """Answers what is asked of regions; each endpoint gets the exchange and a region's name."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._of_kind: Mapping[str, Mapping[str, Mapping[str, _Endpoint]]] = {
            "systemsharedmemory": {
                "status": {"GET": self._status, "HEAD": self._status},
                "register": {"POST": self._register},
                "unregister": {"POST": self._unregister},
            },
            "cudasharedmemory": {
                "status": {"GET": _refuse_cuda, "HEAD": _refuse_cuda},
                "register": {"POST": _refuse_cuda},
                "unregister": {"POST": _refuse_cuda},
            },
        }

    def find(self, segments: Sequence[str]) -> tuple[str, Mapping[str, _Endpoint] | None]:
        """Find the endpoint of ``KIND[/region/NAME]/VERB``: the region's name, and its methods."""
        verbs = self._of_kind.get(segments[0], {}) if segments else {}
        if len(segments) == 2 and segments[1] != "register":
            return "", verbs.get(segments[1])
        if len(segments) == 4 and segments[1] == "region":
            return segments[2], verbs.get(segments[3])
        return "", None

    def _status(self, exchange: Exchange, region: str, _: str) -> None:
        exchange.reply(200, encode_status(self._memory.status(region)))

    def _register(self, exchange: Exchange, region: str, _: str) -> None:
        wanted = decode_register(exchange.control_body)
        self._memory.register(region, wanted.key, wanted.offset, wanted.byte_size)
        exchange.reply(200)

    def _unregister(self, exchange: Exchange, region: str, _: str) -> None:
        def done(_: None, error: Exception | None) -> None:
            if error is None:
                exchange.reply(200)
            else:
                exchange.fail(error)

        Call(self._memory.unregister(region), done).step()


def _refuse_cuda(exchange: Exchange, region: str, _: str) -> None:
    raise NotImplementedYet("CUDA shared memory (unlike system shared memory)")
