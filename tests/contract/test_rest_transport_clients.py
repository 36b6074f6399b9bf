"""Published V2 clients against the transport and the JSON codec, without a model behind them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import uvloop
from support.rest_server import RawClient, run_with_server
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from hloserve.core.errors import HloserveError
from hloserve.core.requests import NEVER_NS, InferResponse, ServerMetadata
from hloserve.core.tensors import Array
from hloserve.server.rest_transport import Exchange, HttpServer
from hloserve.wire import v2_json as codec

Connect = Callable[[], Awaitable[RawClient]]


def identity(exchange: Exchange) -> None:
    """A model whose outputs are its inputs, under their own names."""
    try:
        if exchange.method == "GET":
            metadata = ServerMetadata("identity", "1", ())
            exchange.reply(200, codec.encode_server_metadata(metadata))
            return
        request, forms = codec.decode_infer_request(
            exchange.segments[2],
            "",
            exchange.body,
            exchange.header(b"inference-header-content-length"),
            0,
            NEVER_NS,
        )
        names = request.outputs or tuple(request.inputs)
        outputs = {name: request.inputs[name] for name in names}
        response = InferResponse(request.model, outputs, request.id)
        body, content_type, length = codec.encode_infer_response(response, forms)
        headers = () if length is None else ((codec.LENGTH_HEADER, str(length)),)
        exchange.reply(200, body, content_type, headers)
    except HloserveError as error:
        exchange.fail(error)


def against_server(ask: Callable[[str], None]) -> None:
    """Run a blocking client, given the server's address, while the server serves."""

    async def client(server: HttpServer, connect: Connect) -> None:
        raw = await connect()
        host, port = raw.writer.get_extra_info("peername")[:2]
        await asyncio.to_thread(ask, f"{host}:{port}")

    run_with_server(uvloop.new_event_loop, identity, client)


DTYPES = [
    ("FP16", np.float16),
    ("FP32", np.float32),
    ("FP64", np.float64),
    ("INT8", np.int8),
    ("INT16", np.int16),
    ("INT32", np.int32),
    ("INT64", np.int64),
    ("UINT8", np.uint8),
    ("UINT16", np.uint16),
    ("UINT32", np.uint32),
    ("UINT64", np.uint64),
    ("BOOL", np.bool_),
]


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_its_tensors_back(compression: str | None) -> None:
    """Every datatype in every mix of binary and JSON, plain and compressed."""

    def ask(url: str) -> None:
        client = triton.InferenceServerClient(url)
        assert client.get_server_metadata()["name"] == "identity"
        for datatype, dtype in DTYPES:
            array: Array = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
            for binary_in in (True, False):
                if datatype == "FP16" and not binary_in:
                    continue  # the client itself refuses FP16 in JSON
                tensor = triton.InferInput("a b/é", [2, 3], datatype)
                tensor.set_data_from_numpy(array, binary_data=binary_in)
                for binary_out in (True, False):
                    output = triton.InferRequestedOutput("a b/é", binary_data=binary_out)
                    answer = client.infer(
                        "m",
                        [tensor],
                        outputs=[output],
                        request_id="7",
                        request_compression_algorithm=compression,
                    )
                    got: Any = answer.as_numpy("a b/é")
                    assert got.dtype == dtype
                    assert got.tolist() == array.tolist()
                    assert answer.get_response()["id"] == "7"
        client.close()

    against_server(ask)


def test_tritonclient_shows_our_error_text() -> None:
    """The text of a refusal reaches the user of the client."""

    def ask(url: str) -> None:
        client = triton.InferenceServerClient(url)
        tensor = triton.InferInput("x", [2, 2], "FP32")
        tensor.set_data_from_numpy(np.zeros((2, 2), np.float32))
        tensor.set_shape([2, 3])
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [tensor])
        assert "'x'" in str(caught.value)
        assert "expected 24" in str(caught.value)
        client.close()

    against_server(ask)


def test_large_tensors_pass_both_ways() -> None:
    """Tens of megabytes cross in one request and one answer, bit for bit."""

    def ask(url: str) -> None:
        client = triton.InferenceServerClient(url)
        array = np.random.default_rng(0).standard_normal((4, 2**20)).astype(np.float32)
        tensor = triton.InferInput("x", array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        for _ in range(2):
            got: Any = client.infer("m", [tensor]).as_numpy("x")
            assert got.tobytes() == array.tobytes()
        client.close()

    against_server(ask)
