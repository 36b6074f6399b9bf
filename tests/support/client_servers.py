"""V2 servers with canned answers for the client's tests: our transport, and grpcio's.

A method is a function of the request's bytes that returns the answer's bytes or raises one of our
errors. Both servers run it the same way, so one test holds for both.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from hloserve.core.clock import SystemClock
from hloserve.core.errors import HloserveError
from hloserve.server.grpc_stream import StreamHandler, StreamingRpc
from hloserve.server.grpc_transport import GrpcServer, Handler, Rpc
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_stream as stream_codec
from hloserve.wire.grpc_framing import Message
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.status import grpc_code

__all__ = [
    "SERVERS",
    "Methods",
    "serve_with_grpcio",
    "serve_with_ours",
    "stream_answer",
    "streamed",
]

Method: TypeAlias = Callable[[bytes], bytes]
Methods: TypeAlias = Mapping[str, Method]

_SERVICE = "inference.GRPCInferenceService"
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


@contextmanager
def serve_with_ours(
    methods: Methods,
    handlers: Mapping[str, Handler] | None = None,
    limits: GrpcLimits | None = None,
    streams: Mapping[str, StreamHandler] | None = None,
) -> Iterator[str]:
    """Serve with `hloserve.server.grpc_transport` on a loop of its own thread; gives host:port.

    Args:
        methods: by name.
        handlers: by name, for tests that look at the call itself.
        limits: of the server's connections.
        streams: streaming handlers by name.
    """

    def handler(method: Method) -> Handler:
        def handle(rpc: Rpc) -> None:
            try:
                rpc.reply(method(bytes(rpc.message)))
            except HloserveError as error:
                rpc.fail(error)

        return handle

    table = {f"/{_SERVICE}/{name}": handler(method) for name, method in methods.items()}
    table |= {f"/{_SERVICE}/{name}": handle for name, handle in (handlers or {}).items()}
    paths = {f"/{_SERVICE}/{name}": handle for name, handle in (streams or {}).items()}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test server")
    thread.start()

    async def start() -> tuple[GrpcServer, int]:
        server = GrpcServer(table, limits or GrpcLimits(), SystemClock(), streams=paths)
        return server, (await server.start("127.0.0.1", 0))[1]

    async def stop(server: GrpcServer) -> None:
        server.close()
        await server.wait_closed()

    try:
        server, bound = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield f"127.0.0.1:{bound}"
        finally:
            asyncio.run_coroutine_threadsafe(stop(server), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def stream_answer(method: Method, body: bytes) -> bytes:
    """What a stream answers to a request, given the method that answers it alone."""
    try:
        response = codec.decode_infer_response(method(body))
    except HloserveError as error:
        names = stream_codec.names_of_request(body)
        return stream_codec.encode_stream_error(names, error.code, str(error))
    return stream_codec.encode_stream_answer(response)


def streamed(method: Method) -> StreamHandler:
    """ModelStreamInfer that answers each request at once, as a method does alone."""

    def begin(rpc: StreamingRpc) -> None:
        def answer(message: Message) -> None:
            rpc.send(stream_answer(method, bytes(message)))

        rpc.on_message = answer
        rpc.on_half_close = rpc.finish

    return begin


@contextmanager
def serve_with_grpcio(methods: Methods) -> Iterator[str]:
    """Serve with grpcio and a generic handler; gives host:port."""

    def handler(method: Method) -> Any:
        def handle(request: bytes, context: Any) -> bytes:
            try:
                return method(request)
            except HloserveError as error:
                context.abort(_STATUS[grpc_code(error.code)], str(error))
                raise AssertionError("abort raises") from error

        return grpc.unary_unary_rpc_method_handler(handle)

    workers = ThreadPoolExecutor(8)
    server = grpc.server(
        workers,
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )
    handlers = {name: handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    bound = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait(10)
        workers.shutdown()


SERVERS = {"ours": serve_with_ours, "grpcio": serve_with_grpcio}
