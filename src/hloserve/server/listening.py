"""Listening sockets, whose TLS context can be replaced while they listen.

What lives here: binding, and handing the sockets over to a new context. What does not: what the
contexts are made of (`hloserve.server.tls`) and what is spoken (`grpc_transport`,
`rest_transport`). Loop thread; on asyncio's own loop, which no worker uses, `renew` may lose a
connection that is accepted at that instant.

Rule: a context is never changed once it is used. A new one gets listeners of its own on the same
sockets, so that nobody who waits to be accepted is lost, connections keep what they began with, and
no session of the old one can be resumed under the new one.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self

__all__ = ["Listener", "allow_many_connections"]

_SHUTDOWN_S = 5.0
"""A peer that does not answer the goodbye of TLS is cut off."""


class Listener:
    """The sockets of one address. Made by `open`."""

    def __init__(
        self,
        server: asyncio.Server,
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        handshake_timeout_s: float,
    ) -> None:
        self._servers = [server]
        self._factory = factory
        self._backlog = backlog
        self._handshake_timeout_s = handshake_timeout_s
        host, port = server.sockets[0].getsockname()[:2]
        self.address: tuple[str, int] = str(host), int(port)
        self.is_closed = False

    @classmethod
    async def open(
        cls,
        factory: Callable[[], asyncio.BaseProtocol],
        where: tuple[str, int],
        tls: ssl.SSLContext | None,
        *,
        backlog: int,
        handshake_timeout_s: float,
    ) -> Self:
        """Bind and listen.

        Args:
            factory: makes the protocol of a connection.
            where: host and port; port 0 lets the system pick.
            tls: a server's context; None for plain TCP.
            backlog: connections that may wait to be accepted.
            handshake_timeout_s: a peer that has not finished TLS by then is cut off.

        Raises:
            OSError: the address cannot be bound.
        """
        server = await asyncio.get_running_loop().create_server(
            factory, *where, backlog=backlog, **_of_tls(tls, handshake_timeout_s)
        )
        return cls(server, factory, backlog, handshake_timeout_s)

    async def renew(self, tls: ssl.SSLContext) -> None:
        """Let new connections use another context; those that exist are left alone."""
        if self.is_closed:
            return
        old, new = self._servers, []
        for server in old:
            for listening in server.sockets:
                copy = socket.socket(fileno=os.dup(listening.fileno()))
                new.append(
                    await asyncio.get_running_loop().create_server(
                        self._factory,
                        sock=copy,
                        backlog=self._backlog,
                        **_of_tls(tls, self._handshake_timeout_s),
                    )
                )
        self._servers = new
        for server in old:
            server.close()
        self._close_if_told()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self.is_closed = True
        self._close_if_told()

    def _close_if_told(self) -> None:
        if self.is_closed:  # perhaps while a new context was taken up
            for server in self._servers:
                server.close()


def allow_many_connections() -> None:
    """Raise this process's limit of open files to what the system allows.

    Shells begin with 1,024, which protects programs that use select(); this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _of_tls(tls: ssl.SSLContext | None, handshake_timeout_s: float) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl": tls,
        "ssl_handshake_timeout": handshake_timeout_s,
        "ssl_shutdown_timeout": _SHUTDOWN_S,
    }
