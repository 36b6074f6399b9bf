"""The three ports: bound together, told of, closed."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hloserve.config import load
from hloserve.core.clock import SystemClock
from hloserve.core.errors import ConfigProblem
from hloserve.server.grpc_services import GrpcServices
from hloserve.server.listeners import Addresses, Listeners, write_ports_file
from hloserve.server.rest_transport import Exchange

_ADDRESSES = Addresses(http=("127.0.0.1", 1), grpc=("::1", 2), admin=("127.0.0.1", 3))


def _on_ports(
    test: Callable[[Listeners], Awaitable[None]],
    rest: Callable[[Exchange], None] = Exchange.reply,  # type: ignore[assignment]  # never called
    **ports: int,
) -> None:
    async def main() -> None:
        settings = {"http_port": 0, "grpc_port": 0, "admin_port": 0, **ports}
        loaded = load(None, {}, {f"endpoints.{name}": port for name, port in settings.items()})
        listeners = Listeners(
            loaded.config,
            loaded.sources,
            SystemClock(),
            grpc=GrpcServices({}, {}),
            rest=rest,
            admin=lambda exchange: exchange.reply(200, b"admin"),
        )
        try:
            await test(listeners)
        finally:
            listeners.close()
            await asyncio.sleep(0)  # let the transports report their end
            await asyncio.sleep(0)

    asyncio.run(main())


async def _get(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer


def test_every_port_is_its_own() -> None:
    """The system picks three, and each answers for its service."""

    async def test(listeners: Listeners) -> None:
        addresses = await listeners.start()
        assert len(set(addresses.ports.values())) == 3
        assert (await _get(addresses.admin)).endswith(b"admin")
        assert (await _get(addresses.http)).endswith(b"rest")

    _on_ports(test, lambda exchange: exchange.reply(200, b"rest"))


def test_answer_that_is_put_off_leaves_without_any_grpc_traffic() -> None:
    """REST requests share what runs soon with gRPC, and need no other traffic to be answered."""
    made: list[Listeners] = []

    async def test(listeners: Listeners) -> None:
        made.append(listeners)
        addresses = await listeners.start()
        assert (await _get(addresses.http)).endswith(b"soon")

    _on_ports(test, lambda exchange: made[0].soon(exchange.reply, 200, b"soon"))


def test_answer_from_another_thread_leaves_at_once() -> None:
    """`post` is how the dispatch thread answers."""
    made: list[Listeners] = []

    def answer(exchange: Exchange) -> None:
        asyncio.get_running_loop().run_in_executor(
            None, made[0].post, exchange.reply, 200, b"posted"
        )

    async def test(listeners: Listeners) -> None:
        made.append(listeners)
        addresses = await listeners.start()
        assert (await _get(addresses.http)).endswith(b"posted")

    _on_ports(test, answer)


@pytest.mark.parametrize("setting", ["http_port", "grpc_port", "admin_port"])
def test_port_that_is_taken_is_named_and_the_others_are_closed(setting: str) -> None:
    """The message says which setting to change."""

    async def test(listeners: Listeners) -> None:
        with pytest.raises(ConfigProblem, match=f"endpoints.{setting}.*--{setting[:4]}"):
            await listeners.start()

    with socket.create_server(("127.0.0.1", 0)) as other:
        _on_ports(test, **{setting: other.getsockname()[1]})


def test_drain_leaves_the_admin_port_open() -> None:
    """Readiness can be watched to the end."""

    async def test(listeners: Listeners) -> None:
        addresses = await listeners.start()
        await listeners.drain(1)
        assert (await _get(addresses.admin)).endswith(b"admin")
        with pytest.raises(ConnectionRefusedError):
            await _get(addresses.http)

    _on_ports(test)


def test_addresses_are_told_to_people() -> None:
    """Those of IPv6 in brackets."""
    assert "http://127.0.0.1:1\n" in _ADDRESSES.describe()
    assert "[::1]:2\n" in _ADDRESSES.describe()


def test_ports_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """It replaces an older one; a directory that is not there is told."""
    path = tmp_path / "ports.json"
    path.write_text("old")

    write_ports_file(path, _ADDRESSES)

    assert json.loads(path.read_text()) == {"http": 1, "grpc": 2, "admin": 3}
    assert [path] == list(tmp_path.iterdir())
    with pytest.raises(ConfigProblem, match="--ports-file"):
        write_ports_file(tmp_path / "no" / "ports.json", _ADDRESSES)
