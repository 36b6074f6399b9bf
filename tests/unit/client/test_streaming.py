"""Bulk work over one stream: results, errors, and streams that end early."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from support.client_servers import serve_with_ours, stream_answer, streamed

from hloserve.client import Client, InferStream
from hloserve.core.errors import (
    BadRequest,
    Code,
    DeadlineExceeded,
    HloserveError,
    ModelNotFound,
    NotPossibleNow,
    QueueFull,
    Unavailable,
)
from hloserve.core.requests import InferResponse
from hloserve.server.grpc_stream import StreamingRpc
from hloserve.wire import v2_protobuf as codec

_METHOD = "ModelStreamInfer"


def double(body: bytes) -> bytes:
    """Y = 2x; the models "full" and "none" fail."""
    request = codec.decode_infer_request(body, 0)
    if request.model == "full":
        raise QueueFull("full", 3)
    if request.model == "none":
        raise ModelNotFound("none")
    outputs = {"y": request.inputs["x"] * 2}
    return codec.encode_infer_response(InferResponse(request.model, outputs, request.id))


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a server that doubles."""
    with (
        serve_with_ours({"ModelInfer": double}, streams={_METHOD: streamed(double)}) as address,
        Client(address, timeout_s=20) as client,
    ):
        yield client


def _send(stream: InferStream, number: int, model: str = "m") -> str:
    return stream.send(model, {"x": np.full((1, 3), number, np.float32)})


def test_thousands_of_requests_have_their_results_in_order(client: Client) -> None:
    """Ids are numbers when none are given."""
    with client.stream() as stream:
        ids = [_send(stream, number) for number in range(5_000)]
        results = list(stream)

    assert ids == [result.request_id for result in results]
    assert ids[-1] == "4999"
    assert [2.0 * number for number in range(5_000)] == [
        float(result.outputs["y"][0, 0]) for result in results
    ]


def test_sending_and_iterating_alternate(client: Client) -> None:
    """Iteration ends when every request has its result; then more can be sent."""
    with client.stream() as stream:
        for number in range(3):
            stream.send("m", {"x": np.ones(2)}, request_id=f"a{number}")
            assert stream.unanswered == 1
            assert [f"a{number}"] == [result.request_id for result in stream]
        assert list(stream) == []


def test_large_requests_and_answers_cannot_block_each_other(client: Client) -> None:
    """A server that waits for its answers to be read is read from while sending."""
    array = np.arange(250_000, dtype=np.float32)
    with client.stream() as stream:
        for _ in range(60):
            stream.send("m", {"x": array})
        results = list(stream)

    assert all(np.array_equal(array * 2, result.outputs["y"]) for result in results)


def test_errors_are_results(client: Client) -> None:
    """Of the types that calls raise; the stream goes on."""
    with client.stream() as stream:
        for model in ("m", "none", "full", "m"):
            _send(stream, 1, model)
        good, missing, full, last = stream

    assert (good.error, last.error) == (None, None)
    assert isinstance(missing.error, ModelNotFound)
    assert full.error is not None
    assert (Code.RESOURCE_EXHAUSTED, True) == (full.error.code, full.error.retryable)
    with pytest.raises(ModelNotFound, match="'none'"):
        _ = missing.outputs


def test_what_this_client_refuses_is_not_sent(client: Client) -> None:
    """The stream goes on."""
    with client.stream() as stream:
        with pytest.raises(BadRequest):
            stream.send("m", {"x": np.array([1j])})
        _send(stream, 1)
        assert len(list(stream)) == 1


def test_connection_of_a_stream_serves_calls_afterwards(client: Client) -> None:
    """Whether it was iterated to its end or left early."""
    for has_read in (True, False):
        with client.stream() as stream:
            _send(stream, 1)
            if has_read:
                list(stream)
        outputs = client.infer("m", {"x": np.ones(2, np.float32)})
        assert outputs["y"].tolist() == [2, 2]


def test_closed_stream_takes_no_requests(client: Client) -> None:
    """The message says so."""
    with client.stream() as stream:
        pass
    stream.close()

    with pytest.raises(NotPossibleNow, match="closed"):
        _send(stream, 1)


def test_refused_stream_tells_why() -> None:
    """A server without streams, at the first result."""
    with (
        serve_with_ours({}) as address,
        Client(address) as client,
        client.stream() as stream,
    ):
        _send(stream, 1)
        with pytest.raises(HloserveError) as caught:
            list(stream)

    assert caught.value.code is Code.UNIMPLEMENTED


def test_leaving_server_ends_the_iteration() -> None:
    """What has a result keeps it; the rest may be sent again."""

    def begin(rpc: StreamingRpc) -> None:
        def answer(message: Any) -> None:
            rpc.send(stream_answer(double, bytes(message)))
            rpc.fail_with(Code.UNAVAILABLE, "the server is shutting down")

        rpc.on_message = answer

    with (
        serve_with_ours({}, streams={_METHOD: begin}) as address,
        Client(address) as client,
        client.stream() as stream,
    ):
        for number in range(2):
            _send(stream, number)
        results = iter(stream)
        assert next(results).outputs["y"][0, 0] == 0
        with pytest.raises(Unavailable, match="shutting down"):
            next(results)
        assert stream.unanswered == 1


@pytest.mark.parametrize(("timeout_s", "text"), [(0.1, "stream's time"), (None, "in time")])
def test_silent_server_does_not_hold_a_client(timeout_s: float | None, text: str) -> None:
    """By the stream's time, or by the client's without a sign of life; the call is given up."""
    has_left = threading.Event()

    def begin(rpc: StreamingRpc) -> None:
        rpc.on_cancel = has_left.set

    with (
        serve_with_ours({}, streams={_METHOD: begin}) as address,
        Client(address, timeout_s=0.2 if timeout_s is None else 20) as client,
    ):
        with client.stream(timeout_s=timeout_s) as stream:
            _send(stream, 1)
            with pytest.raises(DeadlineExceeded, match=text):
                list(stream)
        assert has_left.wait(10)


@pytest.mark.parametrize(
    "wrong", [b"\xff", stream_answer(double, b"")], ids=["not to be read", "nobody asked"]
)
def test_wrong_answers_are_the_servers_fault(wrong: bytes) -> None:
    """The message has its address."""

    def begin(rpc: StreamingRpc) -> None:
        def answer(message: Any) -> None:
            for _ in range(2):  # in one packet
                rpc.send(wrong)

        rpc.on_message = answer

    with (
        serve_with_ours({}, streams={_METHOD: begin}) as address,
        Client(address) as client,
        client.stream() as stream,
    ):
        _send(stream, 1)
        with pytest.raises(HloserveError, match=address):
            list(stream)


def test_streams_of_grpcio_servers_work() -> None:
    """The client is not made for our server alone."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no annotations
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, _: (stream_answer(double, request) for request in requests)
            )

    server = grpc.server(workers := ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}", timeout_s=20) as client, client.stream() as stream:
            for number in range(500):
                _send(stream, number, "none" if number % 7 == 0 else "m")
            for number, result in enumerate(stream):
                assert str(number) == result.request_id
                assert (result.error is None) == (number % 7 != 0)
    finally:
        server.stop(None).wait(10)
        workers.shutdown()
