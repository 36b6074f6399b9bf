"""The gRPC health checking protocol: `grpc.health.v1.Health`.

What lives here: what is asked about, and telling whoever watches. What does not: readiness itself
(`hloserve.server.catalog`) and bytes (`hloserve.wire.grpc_health`). Loop thread.

Rules.
1. The empty name and the names of this server's gRPC services mean the server: SERVING while it is
   ready. Any other name is a model's: SERVING while requests to it are served.
2. A watcher gets the present state at once, then every change that it has read the one before of:
   a slow reader misses states in between, never the last.
3. When the server leaves, watchers get NOT_SERVING, and their calls end UNAVAILABLE.

Source: gRPC health checking protocol.
"""

from collections.abc import Callable, Collection, Mapping

from hloserve.core.errors import Code, HloserveError, ModelNotFound
from hloserve.server.catalog import Catalog
from hloserve.server.grpc_call import Handler, Rpc
from hloserve.server.grpc_stream import StreamHandler, StreamingRpc, server_streaming
from hloserve.wire import grpc_health as codec
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_health import ServingStatus

__all__ = ["HealthService"]

_SERVICE = "/grpc.health.v1.Health/"


class HealthService:
    """Answers health checks.

    Args:
        catalog: knows what is ready.
        services: full names of the gRPC services of this server.
    """

    def __init__(self, catalog: Catalog, services: Collection[str]) -> None:
        self._catalog = catalog
        self._services = frozenset(services) | {""}
        self._watchers: dict[StreamingRpc, _Watcher] = {}

    def methods(self) -> Mapping[str, Handler]:
        """Handlers by full method path."""
        return {_SERVICE + "Check": self._check, _SERVICE + "List": self._list}

    def streams(self) -> Mapping[str, StreamHandler]:
        """Streaming handlers by full method path."""
        return {_SERVICE + "Watch": server_streaming(self._watch)}

    def changed(self) -> None:
        """Say that the state of something may have changed: watchers are told if it has."""
        for watcher in tuple(self._watchers.values()):
            watcher.look()

    def status_of(self, service: str) -> ServingStatus:
        """The state of what a name means; `SERVICE_UNKNOWN` when it means nothing."""
        if service in self._services:
            return _serving(self._catalog.is_ready)
        try:
            return _serving(self._catalog.is_model_ready(service, ""))
        except ModelNotFound:
            return ServingStatus.SERVICE_UNKNOWN

    def _check(self, rpc: Rpc) -> None:
        try:
            service = codec.decode_check_request(rpc.message)
        except HloserveError as error:
            rpc.fail(error)
            return
        status = self.status_of(service)
        if status is ServingStatus.SERVICE_UNKNOWN:
            rpc.fail_with(Code.NOT_FOUND, f"no service or model {service!r} is known here")
        else:
            rpc.reply(codec.encode_check(status))

    def _list(self, rpc: Rpc) -> None:
        names = [*self._services, *(entry.name for entry in self._catalog.index())]
        rpc.reply(codec.encode_list({name: self.status_of(name) for name in names}))

    def _watch(self, rpc: StreamingRpc, message: Message) -> None:
        try:
            service = codec.decode_check_request(message)
        except HloserveError as error:
            rpc.fail(error)
            return
        watcher = _Watcher(rpc, lambda: self.status_of(service))
        self._watchers[rpc] = watcher
        rpc.on_cancel = lambda: self._leave(rpc)
        rpc.on_room = watcher.look
        rpc.on_drain = lambda: self._drain(rpc)
        watcher.look()

    def _leave(self, rpc: StreamingRpc) -> None:
        self._watchers.pop(rpc, None)

    def _drain(self, rpc: StreamingRpc) -> None:
        watcher = self._watchers.pop(rpc, None)
        if watcher is not None:
            watcher.tell(ServingStatus.NOT_SERVING)
            rpc.fail_with(Code.UNAVAILABLE, "the server is shutting down")


class _Watcher:
    """One call of Watch, and the state that it was told last."""

    def __init__(self, rpc: StreamingRpc, present: Callable[[], ServingStatus]) -> None:
        self._rpc = rpc
        self._present = present
        self._told: ServingStatus | None = None

    def look(self) -> None:
        """Tell the present state, unless it was told, or the peer reads too slowly for now."""
        status = self._present()
        if not self._rpc.is_full:
            self.tell(status)

    def tell(self, status: ServingStatus) -> None:
        """Send a state unless it was the last one sent."""
        if status is not self._told:
            self._told = status
            self._rpc.send(codec.encode_check(status))


def _serving(is_ready: bool) -> ServingStatus:
    return ServingStatus.SERVING if is_ready else ServingStatus.NOT_SERVING
