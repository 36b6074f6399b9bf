"""Listeners with TLS on both event loops: contexts that change, handshakes that do not end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from support.certificates import Authority, Pair, client_context

from hloserve.server.listening import Listener

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class _Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]  # uvloop's is a Transport by behaviour


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> LoopFactory:
    """Both event loops."""
    factory: LoopFactory = request.param
    return factory


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))


def _context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def _run(
    loop: LoopFactory,
    tls: ssl.SSLContext,
    test: Callable[[Listener], Awaitable[None]],
    handshake_timeout_s: float = 20.0,
    host: str = "127.0.0.1",
) -> None:
    async def main() -> None:
        listener = await Listener.open(
            _Echo, (host, 0), tls, backlog=100, handshake_timeout_s=handshake_timeout_s
        )
        try:
            await asyncio.wait_for(test(listener), 60)
        finally:
            listener.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


class _Peer:
    """A TLS client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, listener: Listener, context: ssl.SSLContext) -> "_Peer":
        return cls(*await asyncio.open_connection(*listener.address, ssl=context))

    @property
    def serial(self) -> int:
        """Of the certificate that the server showed."""
        found = self._writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        return int(found, 16)

    async def echo(self, data: bytes) -> bytes:
        """Send and receive."""
        self._writer.write(data)
        return await self._reader.readexactly(len(data))

    async def close(self) -> None:
        """Say goodbye."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def test_new_handshakes_use_the_new_context_and_old_connections_go_on(
    loop: LoopFactory, authority: Authority
) -> None:
    """Nobody is disconnected by a renewal, however often it happens."""
    pairs = [authority.issue(f"number{n}") for n in range(3)]
    client = client_context(authority)

    async def test(listener: Listener) -> None:
        peers = [await _Peer.connect(listener, client)]
        for pair in pairs[1:]:
            await listener.renew(_context(pair))
            peers.append(await _Peer.connect(listener, client))
        assert [pair.serial for pair in pairs] == [peer.serial for peer in peers]
        for peer in peers:
            assert b"x" * 100_000 == await peer.echo(b"x" * 100_000)
            await peer.close()

    _run(loop, _context(pairs[0]), test)


def test_no_connection_is_lost_while_contexts_change(authority: Authority) -> None:
    """Clients that connect all the time never notice.

    On uvloop, which workers use: asyncio's own loop may lose a connection between accepting it and
    the closing of its server.
    """
    pairs = [authority.issue(f"turn{n}") for n in range(2)]
    client = client_context(authority)

    async def test(listener: Listener) -> None:
        async def connect() -> None:
            for _ in range(15):
                peer = await _Peer.connect(listener, client)
                assert b"hello" == await peer.echo(b"hello")
                await peer.close()

        callers = [asyncio.create_task(connect()) for _ in range(4)]
        for turn in range(20):
            await listener.renew(_context(pairs[turn % 2]))
            await asyncio.sleep(0)
        await asyncio.gather(*callers)

    _run(uvloop.new_event_loop, _context(pairs[0]), test)


def test_every_address_of_a_name_gets_the_new_context(
    loop: LoopFactory, authority: Authority
) -> None:
    """A name may stand for several sockets."""
    pairs = [authority.issue(f"name{n}") for n in range(2)]
    client = client_context(authority)

    async def test(listener: Listener) -> None:
        await listener.renew(_context(pairs[1]))
        peer = await _Peer.connect(listener, client)
        assert pairs[1].serial == peer.serial
        await peer.close()

    _run(loop, _context(pairs[0]), test, host="localhost")


def test_a_closed_listener_stays_closed(loop: LoopFactory, authority: Authority) -> None:
    """A renewal that comes too late opens nothing."""
    pair = authority.issue("late")

    async def test(listener: Listener) -> None:
        listener.close()
        await listener.renew(_context(pair))
        with pytest.raises(OSError, match=r"."):
            await _Peer.connect(listener, client_context(authority))

    _run(loop, _context(pair), test)


def test_a_session_of_the_old_context_is_not_resumed(
    loop: LoopFactory, authority: Authority
) -> None:
    """Who was trusted under old authorities must show a certificate again."""
    pairs = [authority.issue(f"session{n}") for n in range(2)]
    client = client_context(authority)

    async def test(listener: Listener) -> None:
        first = await asyncio.to_thread(_handshake, listener.address, client, None)
        again = await asyncio.to_thread(_handshake, listener.address, client, first[0])
        await listener.renew(_context(pairs[1]))
        after = await asyncio.to_thread(_handshake, listener.address, client, first[0])
        assert [False, True, False] == [first[1], again[1], after[1]]

    _run(loop, _context(pairs[0]), test)


def _handshake(
    address: tuple[str, int], context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession, bool]:
    with (
        socket.create_connection(address, 20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as peer,
    ):
        peer.sendall(b"x")
        assert b"x" == peer.recv(1)
        assert peer.session is not None
        return peer.session, bool(peer.session_reused)


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_end_is_cut_off(
    loop: LoopFactory, authority: Authority, start: bytes
) -> None:
    """Half-open connections, silent or in the middle of a hello, do not stay."""

    async def test(listener: Listener) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            assert b"" == await reader.read()
        writer.close()

    _run(loop, _context(authority.issue("slow")), test, handshake_timeout_s=0.2)


def test_half_open_handshakes_keep_nobody_out(loop: LoopFactory, authority: Authority) -> None:
    """Hundreds of them wait, and others are served."""

    async def test(listener: Listener) -> None:
        silent = [await asyncio.open_connection(*listener.address) for _ in range(300)]
        peer = await _Peer.connect(listener, client_context(authority))
        assert b"hello" == await peer.echo(b"hello")
        await peer.close()
        for _, writer in silent:
            writer.transport.abort()
        await asyncio.sleep(0)

    _run(loop, _context(authority.issue("flood")), test)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 300]
)
def test_what_is_no_tls_closes_the_connection(
    loop: LoopFactory, authority: Authority, data: bytes
) -> None:
    """A peer that speaks plainly gets no plain answer, and an end."""

    async def test(listener: Listener) -> None:
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await reader.read()
        writer.close()

    _run(loop, _context(authority.issue("plain")), test)
