"""The transport alone: hloserve's HTTP transport with a handler that returns the body."""

import asyncio

import uvloop

from hloserve.server.rest_transport import Exchange, HttpServer


def echo(exchange: Exchange) -> None:
    """Return what came."""
    exchange.reply(200, bytes(exchange.body))


async def main() -> None:
    """Serve until killed."""
    server = HttpServer(echo)
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
