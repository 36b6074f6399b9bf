"""The three ports of a worker: REST, gRPC, admin.

What lives here: binding them, telling where they are, closing them in order. What does not: what
they answer (`server.grpc_service`, `server.rest_service`, `server.admin`). Loop thread.
"""

import asyncio
import json
import logging
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloserve.config.schema import WorkerConfig
from hloserve.config.security_checks import require_safe_address
from hloserve.core.clock import Clock
from hloserve.core.errors import ConfigProblem
from hloserve.core.logging import log_event
from hloserve.server.access import scope_of_admin, scope_of_rest
from hloserve.server.grpc_services import GrpcServices
from hloserve.server.grpc_transport import GrpcServer
from hloserve.server.rest_transport import Exchange, HttpServer, HttpTimeouts
from hloserve.server.security import Security
from hloserve.wire.bytes_in_hand import BytesInHand
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.http1_messages import HttpLimits

__all__ = ["Addresses", "Listeners", "join_address", "write_ports_file"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Between two looks at the files of tokens and certificates; a change takes two looks."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a worker listens: host and port of each, and whether it speaks TLS there."""

    http: tuple[str, int]
    grpc: tuple[str, int]
    admin: tuple[str, int]
    has_tls: bool = False

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports by name, as the ports file has them."""
        return {"http": self.http[1], "grpc": self.grpc[1], "admin": self.admin[1]}

    @property
    def urls(self) -> Mapping[str, str]:
        """What clients write, by the name of the service."""
        http, grpc = ("https://", "grpcs://") if self.has_tls else ("http://", "")
        return {
            "rest": http + join_address(*self.http),
            "grpc": grpc + join_address(*self.grpc),
            "admin": http + join_address(*self.admin),
        }

    def describe(self) -> str:
        """Three lines for people."""
        urls = self.urls
        return f"  REST   {urls['rest']}\n  gRPC   {urls['grpc']}\n  admin  {urls['admin']}\n"


def join_address(host: str, port: int) -> str:
    """Host and port as URLs have them: an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listeners:
    """Owns the servers of the three ports.

    Args:
        sources: who gave each setting, for the message when a port cannot be bound.
        budget: of the bytes of requests in hand, over all three; one for each when left out.
    """

    def __init__(
        self,
        config: WorkerConfig,
        sources: Mapping[str, str],
        clock: Clock,
        *,
        grpc: GrpcServices,
        rest: Callable[[Exchange], None],
        admin: Callable[[Exchange], None],
        budget: BytesInHand | None = None,
    ) -> None:
        self._config = config
        self._sources = sources
        limits = HttpLimits(
            max_body_bytes=config.http.max_body_bytes,
            grpc_hint="this is the REST port; gRPC is served on port"
            f" {config.endpoints.grpc_port or 'that the server printed at its start'}",
        )
        timeouts = HttpTimeouts(
            header_timeout_s=config.http.header_timeout_s,
            body_timeout_s=config.http.body_timeout_s,
            idle_timeout_s=config.http.idle_timeout_s,
        )
        security = self._security = Security(config)
        self._following: asyncio.Task[None] | None = None
        self._rest = HttpServer(
            rest, limits, clock, timeouts, security.http_guard(scope_of_rest), budget
        )
        self._admin = HttpServer(
            admin,
            HttpLimits(max_body_bytes=1 << 20),
            clock,
            timeouts,
            security.http_guard(scope_of_admin),
            budget,
        )
        self._grpc = GrpcServer(
            grpc.methods,
            GrpcLimits(
                max_recv_msg_bytes=config.grpc.max_recv_msg_bytes,
                max_send_msg_bytes=config.grpc.max_send_msg_bytes,
            ),
            clock,
            streams=grpc.streams,
            guard=security.grpc_guard,
            budget=budget,
        )

    async def start(self) -> Addresses:
        """Bind all three.

        Raises:
            ConfigProblem: a port cannot be bound, or must not be; tokens or certificates cannot be
                read. Ports that were bound before are closed again.
        """
        require_safe_address(self._config, self._sources)
        tls = await asyncio.to_thread(self._security.open)
        try:
            addresses = Addresses(
                http=await self._bind(self._rest, "http_port", tls.rest if tls else None),
                grpc=await self._bind(self._grpc, "grpc_port", tls.grpc if tls else None),
                admin=await self._bind(self._admin, "admin_port", tls.admin if tls else None),
                has_tls=tls is not None,
            )
        except ConfigProblem:
            self.close()
            raise
        if self._security.is_on:
            self._following = asyncio.create_task(self._follow_files())
        return addresses

    async def look_at_files(self) -> None:
        """Take up tokens and certificates whose files have changed; done every second."""
        renewal = await asyncio.to_thread(self._security.look)
        self._security.apply(renewal)
        tls = renewal.contexts
        if tls is not None:
            await self._rest.renew(tls.rest)
            await self._grpc.renew(tls.grpc)
            await self._admin.renew(tls.admin)

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look_at_files()
            except Exception as error:  # noqa: BLE001  # the edge of a task: the next look may work
                log_event(log, "files_not_followed", level=logging.ERROR, error=error)

    async def _bind(
        self, server: HttpServer | GrpcServer, setting: str, tls: ssl.SSLContext | None
    ) -> tuple[str, int]:
        host, port = self._config.endpoints.host, getattr(self._config.endpoints, setting)
        try:
            return await server.start(host, port, tls)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigProblem(
                self._sources.get(f"endpoints.{setting}", "default"),
                f"endpoints.{setting}",
                f"cannot listen on {host} port {port}: {reason};"
                f" choose another with --{setting.replace('_', '-')}, or 0 for any free port",
            ) from error

    def post(self, function: Callable[..., object], /, *arguments: Any) -> None:
        """Run a function that answers requests on the loop thread, all its answers in few writes.

        Threading: any thread.
        """
        self._grpc.post(function, *arguments)

    def soon(self, function: Callable[..., object], /, *arguments: Any) -> None:
        """The same from the loop thread, once it has read what has arrived."""
        self._grpc.soon(function, *arguments)

    async def drain(self, grace_s: float) -> None:
        """Take no new connections, finish what is in flight, cut off what is left after `grace_s`.

        The admin port stays open, so that readiness can be watched to the end.
        """
        await asyncio.gather(self._grpc.drain(grace_s), self._rest.drain(grace_s))

    def close(self) -> None:
        """Close everything at once. Idempotent."""
        if self._following is not None:
            self._following.cancel()
        self._rest.close()
        self._grpc.close()
        self._admin.close()


def write_ports_file(path: Path, addresses: Addresses) -> None:
    """Write ``{"http":..., "grpc":..., "admin":...}``, so that a reader sees all of it or nothing.

    Raises:
        ConfigProblem: the file cannot be written.
    """
    if not path.name:
        raise ConfigProblem("--ports-file", repr(str(path)), "names no file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        temporary.write_text(json.dumps(addresses.ports) + "\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigProblem("--ports-file", str(path), error.strerror or str(error)) from error
