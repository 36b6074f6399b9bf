"""The HTTP server on real sockets, on both event loops, against independent clients."""

import asyncio
import gzip
import http.client
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import httpx
import pytest
import uvloop
from support.rest_server import LoopFactory, RawClient, run_with_server
from support.rest_wire import chunked, post, request

from hloserve.server.rest_transport import Exchange, HttpServer
from hloserve.wire.http1_messages import HttpLimits

Connect = Callable[[], Awaitable[RawClient]]


@pytest.fixture(
    params=[asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def loop(request: pytest.FixtureRequest) -> LoopFactory:
    """Makes one of the event loops that the server runs on."""
    return request.param  # type: ignore[no-any-return]


def echo(exchange: Exchange) -> None:
    """Answer with method, path and body."""
    head = f"{exchange.method} {exchange.path} ".encode()
    exchange.reply(200, head + bytes(exchange.body), "text/plain")


def test_independent_clients_are_served(loop: LoopFactory) -> None:
    """httpx, http.client and curl get the same answers, on connections that persist."""

    def ask(port: int) -> None:
        base = f"http://127.0.0.1:{port}"
        big = bytes(range(256)) * 10_000
        with httpx.Client(base_url=base, trust_env=False) as client:
            assert client.get("/a%20b").text == "GET /a%20b "
            assert client.post("/p", content=big).content == b"POST /p " + big
            assert client.post("/p", content=iter([b"ab", b"cd"])).text == "POST /p abcd"
            assert client.head("/h").headers["content-length"] == str(len("HEAD /h "))
            zipped = client.post(
                "/z", content=gzip.compress(b"abc"), headers={"Content-Encoding": "gzip"}
            )
            assert zipped.text == "POST /z abc"
            assert "date" in zipped.headers
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(2):
            connection.request("PUT", "/x", body=b"1")
            assert connection.getresponse().read() == b"PUT /x 1"
        connection.close()
        if curl := shutil.which("curl"):
            arguments = [curl, "-sS", "--data-binary", "@-", "-H", "Expect: 100-continue", base]
            done = subprocess.run(arguments, input=big, capture_output=True, check=True)
            assert done.stdout == b"POST / " + big

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        port = raw.writer.get_extra_info("peername")[1]
        await asyncio.to_thread(ask, port)

    run_with_server(loop, echo, client)


def test_bytes_may_arrive_one_at_a_time(loop: LoopFactory) -> None:
    """A request that is dripped in is answered like any other."""

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        for byte in post(b"abc") + chunked(b"de", b"f"):
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
        assert [b"POST /p abc", b"POST /c def"] == [r.body for r in await raw.read(2)]

    run_with_server(loop, echo, client)


def test_end_at_any_offset_leaves_no_trace(loop: LoopFactory) -> None:
    """A peer that closes mid-request reaches no handler and keeps no connection."""
    served: list[str] = []
    data = post(b"abc", "X: y")

    def handler(exchange: Exchange) -> None:
        served.append(exchange.path)
        exchange.reply(200)

    async def client(server: HttpServer, connect: Connect) -> None:
        for cut in range(len(data)):
            raw = await connect()
            raw.writer.write(data[:cut])
            raw.writer.write_eof()
            assert await raw.read_end() == b""
            raw.writer.close()
        assert served == []
        raw = await connect()
        assert (await raw.send(data, 1))[0].status == 200
        assert server.connection_count == 1

    run_with_server(loop, handler, client)


def test_long_bodies_arrive_intact_among_pipelined_requests(loop: LoopFactory) -> None:
    """Bodies around every internal boundary are whole, and what follows them too."""
    sizes = [0, 1, 16_383, 16_384, 65_535, 65_536, 65_537, 2**20 - 1, 2**20, 2**20 + 1, 5_000_000]
    bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        for body in bodies:
            raw.writer.write(post(body) + chunked(body or b"x") + request())
        got = await raw.read(3 * len(bodies))
        for n, body in enumerate(bodies):
            assert got[3 * n].body == b"POST /p " + body
            assert got[3 * n + 1].body == b"POST /c " + (body or b"x")
            assert got[3 * n + 2].body == b"GET / "

    run_with_server(loop, echo, client)


def test_answers_keep_the_order_of_their_requests(loop: LoopFactory) -> None:
    """Answers given out of order leave in order."""
    held: list[Exchange] = []
    all_in = asyncio.Event()

    def handler(exchange: Exchange) -> None:
        held.append(exchange)
        if len(held) == 20:
            all_in.set()

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        await raw.send(b"".join(request("GET", f"/{n}") for n in range(20)))
        await all_in.wait()
        for exchange in reversed(held):
            exchange.reply(200, exchange.path.encode())
        assert [b"/%d" % n for n in range(20)] == [r.body for r in await raw.read(20)]

    run_with_server(loop, handler, client)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_departure_of_the_caller_is_noticed(loop: LoopFactory, how: str) -> None:
    """However a caller leaves, its unanswered request hears of it once."""
    arrived, departed = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    def handler(exchange: Exchange) -> None:
        def on_disconnect() -> None:
            told.append(exchange.path)
            departed.set()

        exchange.on_disconnect = on_disconnect
        arrived.set()

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        await raw.send(request("GET", "/slow"))
        await arrived.wait()
        if how == "close":
            raw.writer.close()
        else:
            raw.writer.transport.abort()
        await asyncio.wait_for(departed.wait(), 10)
        assert told == ["/slow"]

    run_with_server(loop, handler, client)


def test_slow_reader_gets_everything_and_holds_little(loop: LoopFactory) -> None:
    """A peer that does not read is not served further; when it reads, nothing is missing."""
    body = bytes(range(256)) * 2048
    served: list[None] = []

    def handler(exchange: Exchange) -> None:
        served.append(None)
        exchange.reply(200, body)

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        other = await connect()
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other
        for _ in range(100):
            raw.writer.write(request())
        for _ in range(5):
            await other.send(request(), 1)  # the loop turns; other clients are served
        assert len(served) - 5 < 75
        raw.reader._transport.resume_reading()  # type: ignore[attr-defined]
        got = await raw.read(100)
        assert all(r.body == body for r in got)

    run_with_server(loop, handler, client, limits=HttpLimits(max_pipelined=4))


def test_refused_upload_still_gets_its_answer(loop: LoopFactory) -> None:
    """A client that is refused while it uploads can read why, and is not reset."""

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        raw.writer.write(request("POST", "/", f"Content-Length: {2**28}") + bytes(3_000_000))
        [got] = await raw.read(1)
        assert got.status == 413
        assert not got.keep_alive
        await raw.writer.drain()
        assert await raw.read_end() == b""

    run_with_server(loop, echo, client, limits=HttpLimits(max_body_bytes=1000))


def test_half_closed_caller_gets_its_answer(loop: LoopFactory) -> None:
    """A caller that has only ended its side waits, however long its answer takes."""
    held: list[Exchange] = []
    told: list[str] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_disconnect = lambda: told.append(exchange.path)
        held.append(exchange)

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        await raw.send(request("GET", "/slow"))
        raw.writer.write_eof()
        probe = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert probe * 3 == await raw.reader.readexactly(3 * len(probe))
        held[0].reply(200, b"here")
        assert (await raw.read_end()).endswith(b"here")
        assert told == []

    run_with_server(loop, handler, client)


def test_half_closed_caller_of_http_1_0_gets_its_answer_alone(loop: LoopFactory) -> None:
    """Its protocol has no interim responses, so it is sent none (RFC 9110, 15.2)."""
    held: dict[str, Exchange] = {}

    def handler(exchange: Exchange) -> None:
        held[exchange.path] = exchange

    async def client(server: HttpServer, connect: Connect) -> None:
        old, new = await connect(), await connect()
        await old.send(request("GET", "/old", version="1.0"))
        old.writer.write_eof()
        await new.send(request("GET", "/new"))
        new.writer.write_eof()
        probe = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert probe * 3 == await new.reader.readexactly(3 * len(probe))
        for exchange in held.values():
            exchange.reply(200, b"here")
        answer = await old.read_end()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"here")

    run_with_server(loop, handler, client)


def test_drain_finishes_what_is_in_flight(loop: LoopFactory) -> None:
    """While draining, answers still go out, idle connections end, new ones are refused."""
    held: list[Exchange] = []
    arrived = asyncio.Event()

    def handler(exchange: Exchange) -> None:
        held.append(exchange)
        arrived.set()

    async def client(server: HttpServer, connect: Connect) -> None:
        idle, busy = await connect(), await connect()
        await busy.send(request())
        await arrived.wait()
        draining = asyncio.ensure_future(server.drain(20.0))
        assert await idle.read_end() == b""
        with pytest.raises(ConnectionError):
            await connect()
        held[0].reply(200, b"done")
        [got] = await busy.read(1)
        assert (got.body, got.keep_alive) == (b"done", False)
        assert await busy.read_end() == b""
        await asyncio.wait_for(draining, 10)
        assert server.connection_count == 0

    run_with_server(loop, handler, client)


def test_grpc_client_learns_where_the_grpc_port_is(loop: LoopFactory) -> None:
    """Grpcio's error on this port shows the hint."""

    def ask(port: int) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=10)
            return str(caught.value)

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        port = raw.writer.get_extra_info("peername")[1]
        error = await asyncio.to_thread(ask, port)
        assert "try port 8001" in error

    run_with_server(loop, echo, client, limits=HttpLimits(grpc_hint="try port 8001"))


def test_tls_serves_the_same(loop: LoopFactory, certificate: tuple[Path, Path]) -> None:
    """Over TLS small and large bodies, pipelining and refusals work alike."""
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(*certificate)
    client_side = ssl.create_default_context(cafile=str(certificate[0]))
    big = bytes(range(256)) * 10_000

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        got = await raw.send(request() + post(big) + chunked(big), 3)
        assert [b"GET / ", b"POST /p " + big, b"POST /c " + big] == [r.body for r in got]
        [refused] = await raw.send(b"BAD\r\n\r\n", 1)
        assert refused.status == 400
        assert await raw.read_end() == b""

    run_with_server(loop, echo, client, ssl=server_side, client_ssl=client_side)


def test_many_connections_are_served_at_once(loop: LoopFactory) -> None:
    """Hundreds of connections interleave without mixing their answers."""

    async def client(server: HttpServer, connect: Connect) -> None:
        clients = [await connect() for _ in range(200)]
        assert server.connection_count == 200

        async def talk(number: int, raw: RawClient) -> None:
            for turn in range(5):
                [got] = await raw.send(post(b"%d-%d" % (number, turn)), 1)
                assert got.body == b"POST /p %d-%d" % (number, turn)

        await asyncio.gather(*(talk(n, raw) for n, raw in enumerate(clients)))

    run_with_server(loop, echo, client)
