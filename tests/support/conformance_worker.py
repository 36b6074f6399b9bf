"""A worker of identity models, one per datatype, and raw ways to ask it."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from support.server_worker import RunningWorker, fake_program
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.dtypes import DTYPES

MODELS = {dtype.token: dtype for dtype in DTYPES if dtype.kserve is not None}
"""Model names, which are the manifest's dtype tokens: ``f32`` returns float32 rows of three."""


def write_identities(repository: Path) -> None:
    """Write one model per wire datatype: x (n, 3) comes back as y. And `two`, of two inputs."""
    for token, dtype in MODELS.items():
        element = dtype.stablehlo
        write_bundle(
            repository / token,
            token,
            [IOSpec("x", token, (1, 3), batch_axis=0)],
            [IOSpec("y", token, (1, 3), batch_axis=0)],
            {
                n: fake_program("identity", [f"{n}x3x{element}"], [f"{n}x3x{element}"])
                for n in (1, 4)
            },
            {},
        )  # fmt: skip
    write_bundle(
        repository / "two",
        "two",
        [IOSpec("a", "f32", (1, 3), batch_axis=0), IOSpec("b", "f32", (1, 3), batch_axis=0)],
        [IOSpec("sum", "f32", (1, 3), batch_axis=0)],
        {n: fake_program("add", [f"{n}x3xf32", f"{n}x3xf32"], [f"{n}x3xf32"]) for n in (1, 4)},
        {},
    )
    write_bundle(
        repository / "mit Leerzeichen-é",
        "mit Leerzeichen-é",
        [IOSpec("x", "f32", (1, 3), batch_axis=0)],
        [IOSpec("y", "f32", (1, 3), batch_axis=0)],
        {1: fake_program("identity", ["1x3xf32"], ["1x3xf32"])},
        {},
    )
    write_bundle(
        repository / "scalar",
        "scalar",
        [IOSpec("x", "f32", ())],
        [IOSpec("y", "f32", ())],
        {0: fake_program("identity", ["f32"], ["f32"])},
        {},
    )


TEXT_HOOKS = """
import numpy as np

from hloserve import register_model


def preprocess(inputs):
    texts = inputs["text"]
    packed = np.zeros((*texts.shape, 32), np.uint8)
    for place, text in np.ndenumerate(texts):
        packed[place][: len(text) + 1] = [len(text), *text]
    return {"x": packed}


def postprocess(outputs):
    packed = outputs["y"]
    texts = np.empty(packed.shape[:-1], object)
    for place in np.ndindex(texts.shape):
        length, *text = packed[place].tolist()
        texts[place] = bytes(text[:length])
    return {"echo": texts}


register_model(preprocess=preprocess, postprocess=postprocess)
"""


def write_text_models(repository: Path) -> None:
    """Write `text`, whose clients get their (n, 2) short strings back, and `labelled`.

    `labelled` gives its (n, 3) numbers back, and the first two of its classes have labels.
    """
    write_bundle(
        repository / "text",
        "text",
        [IOSpec("x", "u8", (1, 2, 32), batch_axis=0)],
        [IOSpec("y", "u8", (1, 2, 32), batch_axis=0)],
        {n: fake_program("identity", [f"{n}x2x32xui8"], [f"{n}x2x32xui8"]) for n in (1, 4)},
        {},
        client_inputs=[IOSpec("text", "bytes", (1, 2), batch_axis=0)],
        client_outputs=[IOSpec("echo", "bytes", (1, 2), batch_axis=0)],
        files={"model.py": TEXT_HOOKS},
    )
    write_bundle(
        repository / "labelled",
        "labelled",
        [IOSpec("x", "f32", (1, 3), batch_axis=0)],
        [IOSpec("y", "f32", (1, 3), batch_axis=0)],
        {n: fake_program("identity", [f"{n}x3xf32"], [f"{n}x3xf32"]) for n in (1, 4)},
        {},
        labels={"y": "labels.txt"},
        files={"labels.txt": "Katze\nBär\n"},
    )


class Answer(NamedTuple):
    """An HTTP answer; `json` is None when the body is not JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    json: Any


class Asker:
    """Raw requests over both transports; nothing here is checked before it is sent."""

    def __init__(self, worker: RunningWorker) -> None:
        self._http = worker.addresses.http
        self.url = "http://{}:{}".format(*self._http)
        self.grpc_address = "{}:{}".format(*worker.addresses.grpc)
        self.http_address = "{}:{}".format(*worker.addresses.http)
        self._channel = grpc.insecure_channel(self.grpc_address)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def connect(self) -> None:
        """Open the gRPC channel, which is lazy otherwise."""
        self.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30)

    def close(self) -> None:
        """Close the gRPC channel."""
        self._channel.close()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One HTTP request on a connection of its own."""
        connection = http.client.HTTPConnection(*self._http, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            parsed = json.loads(content, parse_constant=_refuse_constant)
        except ValueError:
            parsed = None
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, lowered, content, parsed)

    def infer(self, model: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        """POST an infer request: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", f"/v2/models/{model}/infer", data, headers)

    def rpc(self, request: service_pb2.ModelInferRequest) -> tuple[grpc.StatusCode, Any]:
        """ModelInfer; the status and, for OK, the response, else the text."""
        try:
            return grpc.StatusCode.OK, self.stub.ModelInfer(request, timeout=30)
        except grpc.RpcError as error:
            return error.code(), error.details()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def tensor(
    datatype: str, shape: object, data: object, name: str = "x", **more: object
) -> dict[str, Any]:
    """A V2 JSON request of one input."""
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data, **more}]}


def rpc_tensor(
    model: str, datatype: str, shape: list[int], raw: bytes | None, name: str = "x"
) -> service_pb2.ModelInferRequest:
    """A ModelInferRequest of one input, with raw contents unless None."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype=datatype).shape.extend(shape)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request
