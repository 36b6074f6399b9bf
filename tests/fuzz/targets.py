"""What is fuzzed: `python targets.py TARGET [options of libFuzzer]`; see README.md.

Each target takes bytes as they come from a network and must raise nothing. The codecs go on from
there as the server does: the request is checked against a model, and its inputs are encoded as an
answer.
"""

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hloserve"]):
    from hloserve.bundle.manifest import parse_manifest
    from hloserve.bundle.safetensors import read_header
    from hloserve.core.dtypes import BYTES, DTYPES
    from hloserve.core.errors import BadRequest, BundleProblem, Code, HloserveError
    from hloserve.core.requests import InferRequest, InferResponse, Parameter
    from hloserve.core.tensors import Axis, AxisKind, TensorSpec
    from hloserve.server.classification import classify_outputs
    from hloserve.server.tensor_check import all_problems, check_inputs, check_output_names
    from hloserve.wire import (
        v2_json,
        v2_json_shared_memory,
        v2_protobuf,
        v2_protobuf_shared_memory,
        v2_shared_memory,
    )
    from hloserve.wire.grpc_events import MessageReceived, RpcPacked, RpcReceived
    from hloserve.wire.grpc_framing import MessageReader, PackedMessage
    from hloserve.wire.grpc_limits import GrpcLimits
    from hloserve.wire.grpc_server import GrpcServerConnection
    from hloserve.wire.http1_messages import HttpLimits, parse_target
    from hloserve.wire.http1_server import CommonHeaders, HttpServerConnection
    from hloserve.wire.shared_memory import open_region

import numpy as np
from support.grpc_frames import PREFACE, SETTINGS, frame, hpack, prefixed, request_fields

_WIRE = [dtype for dtype in (*DTYPES, BYTES) if dtype.kserve]
_AXES = (Axis("n", AxisKind.BATCH), Axis("k", AxisKind.VARIABLE))
_MODEL = [TensorSpec(dtype.token, dtype, _AXES) for dtype in _WIRE]
_METHODS = {b"/inference.GRPCInferenceService/ModelInfer": "infer", b"/s/Talk": "talk"}


def _go_on(request: InferRequest) -> InferResponse | None:
    """Check a decoded request against a model that has every datatype, and answer it."""
    specs = [spec for spec in _MODEL if spec.name in request.inputs] or _MODEL[:1]
    try:
        check_output_names(specs, request.outputs)
        check_inputs(specs, request.inputs)
    except BadRequest:
        text = str(all_problems(specs, request.inputs, specs, request.outputs))
        assert text, "a problem without a text"
        return None
    outputs = dict(request.inputs)
    classes = {name: n for name, n in (request.classes or {}).items() if name in outputs}
    numeric = {name: n for name, n in classes.items() if outputs[name].dtype != object}
    if numeric:
        outputs = classify_outputs(specs, outputs, numeric, dict.fromkeys(numeric, (b"a",)))
    return InferResponse(request.model, outputs, request.id, request.version)


def _refused(error: HloserveError) -> None:
    assert error.code is not Code.INTERNAL, f"INTERNAL: {error}"
    str(error).encode()


def fuzz_protobuf(data: bytes) -> None:
    """A ModelInferRequest."""
    try:
        response = _go_on(v2_protobuf.decode_infer_request(data, 0))
        if response is not None:
            v2_protobuf.decode_infer_response(v2_protobuf.encode_infer_response(response))
    except HloserveError as error:
        _refused(error)


def fuzz_json(data: bytes) -> None:
    """A REST body; its first byte says where the JSON ends."""
    length = None
    if data[:1] > b"\x80":
        head = data.find(b"}\n", 1)  # seeds mark the end of their JSON so
        length = str(head if head > 0 else data[0])
        data = data[1:]
    try:
        request, forms = v2_json.decode_infer_request("m", "", data, length, 0, 2**63 - 1)
        if forms.raw is not None:
            request.inputs = v2_json.decode_raw_input(forms.raw, _MODEL[:1])
        response = _go_on(request)
        if response is None:
            return
        body, _, json_bytes = v2_json.encode_infer_response(response, forms)
    except HloserveError as error:
        _refused(error)
        return
    json.loads(body[:json_bytes], parse_constant=_no_json)


def _no_json(name: str) -> float:
    raise AssertionError(f"{name} in an answer")


def fuzz_answers(data: bytes) -> None:
    """A ModelInferResponse, as a client reads it."""
    try:
        v2_protobuf.decode_infer_response(data)
    except HloserveError as error:
        _refused(error)


def fuzz_http1(data: bytes) -> None:
    """The bytes of a REST connection, cut in two; every request is answered."""
    http = HttpServerConnection(HttpLimits(max_body_bytes=2**16), CommonHeaders())
    cut = data[0] if data else 0
    for piece in (data[1 : 1 + cut], data[1 + cut :]):
        for request in http.receive(piece):
            try:
                parse_target(request.target)
            except HloserveError as error:
                _refused(error)
            http.respond(request, 200, b"{}", "application/json", ())
        http.take_output()


def fuzz_http2(data: bytes) -> None:
    """The bytes of a gRPC connection, cut in two; every call is answered."""
    limits = GrpcLimits(max_recv_msg_bytes=2**16, max_partial_bytes=2**17)
    server = GrpcServerConnection(_METHODS, limits, streaming={b"/s/Talk"})
    cut = data[0] if data else 0
    for piece in (data[1 : 1 + cut], data[1 + cut :]):
        for event in server.receive(piece):
            if isinstance(event, RpcReceived) and event.method == "infer":
                server.respond(event.stream_id, bytes(event.message))
        server.take_output()


def fuzz_frames(data: bytes) -> None:
    """A gRPC connection again, by frames that are well formed each, so that they get further.

    Four bytes say kind, flags, stream and length; what follows is the payload, or which of some
    heads it is. The first byte says what the server does with its calls.
    """
    limits = GrpcLimits(max_recv_msg_bytes=2**16, max_partial_bytes=2**17, max_unsent_bytes=2**12)
    server = GrpcServerConnection(_METHODS, limits, streaming={b"/s/Talk"})
    server.receive(PREFACE + frame(SETTINGS))
    act, position = data[0] if data else 0, 1
    while position + 4 <= len(data):
        kind, flags, stream, length = data[position : position + 4]
        payload = data[position + 4 : position + 4 + length]
        position += 4 + length
        if kind % 10 == 1 and payload:
            payload = _HEADS[payload[0] % len(_HEADS)] + payload[1:]
        _serve(server, frame(kind % 10, flags, stream % 8, payload), act)
    server.lose()
    assert not server.open_rpcs, "calls are left"
    assert not server._partial_bytes, "bytes are held for nobody"


def _serve(server: "GrpcServerConnection[str]", data: bytes, act: int) -> None:
    for event in server.receive(data):
        if isinstance(event, RpcPacked):
            event = event.rpc
        if isinstance(event, RpcReceived) and event.method == "infer":
            _answer(server, event, act)
        elif isinstance(event, RpcReceived) and act & 2:
            server.pause(event.stream_id)
        elif isinstance(event, MessageReceived):
            server.send(event.stream_id, bytes(event.message) * 50)
            if act & 4:
                server.finish(event.stream_id)
    if not act & 8:
        server.take_output(1000 if act & 16 else None)
    assert server.unread_bytes >= 0, "more is unread than there is"


def _answer(server: "GrpcServerConnection[str]", rpc: "RpcReceived[str]", act: int) -> None:
    try:
        message = rpc.message
        if isinstance(message, PackedMessage):
            message = message.unpack()
    except HloserveError as error:
        _refused(error)
        server.fail(rpc.stream_id, 3, str(error))
        return
    if act & 1:
        server.respond(rpc.stream_id, bytes(message) * 50)


def fuzz_messages(data: bytes) -> None:
    """The messages of one stream, which are the same however the bytes are cut."""
    cut = data[0] if data else 0
    whole = _read_messages([data[1:]])
    assert whole == _read_messages([data[1 : 1 + cut], data[1 + cut :]]), "a cut makes a difference"


def _read_messages(pieces: list[bytes]) -> list[bytes]:
    reader = MessageReader(2**16, has_coding=True, keeps_packed=True)
    messages: list[bytes] = []
    try:
        for piece in pieces:
            for message in reader.feed(piece):
                if isinstance(message, PackedMessage):
                    message = message.unpack()
                messages.append(bytes(message))
    except HloserveError as error:
        _refused(error)
        return []  # of one piece, none is given when a later one is wrong
    return messages


def fuzz_shared_memory(data: bytes) -> None:
    """What registers a region and what places a tensor in it."""
    place: dict[str, Parameter] = {}
    for decode in (
        v2_protobuf_shared_memory.decode_register_request,
        v2_protobuf_shared_memory.decode_status_request,
        v2_protobuf_shared_memory.decode_unregister_request,
        v2_json_shared_memory.decode_register,
    ):
        try:
            decode(data)
        except HloserveError as error:
            _refused(error)
    try:
        value = json.loads(data)
    except ValueError:
        return
    if isinstance(value, dict):
        place = {key: item for key, item in value.items() if isinstance(item, int | str | float)}
    try:
        placement = v2_shared_memory.placement_of("input 'x'", place)
        if placement is None:
            return
        region = open_region("r", placement.region, 0, 64, _SHARED)
        try:
            region.check_bounds("input 'x'", placement)
            region.read(placement.offset, np.empty(placement.byte_size, np.uint8))
        finally:
            region.close()
    except HloserveError as error:
        _refused(error)


def fuzz_safetensors(data: bytes) -> None:
    """A weights file."""
    fd = os.memfd_create("weights")
    try:
        os.write(fd, data)
        read_header(fd, "fuzzed")
    except BundleProblem as problem:
        str(problem).encode()
    finally:
        os.close(fd)


def fuzz_manifest(data: bytes) -> None:
    """A manifest; the first byte says whether a hook file lies beside it."""
    text = data[1:].decode("utf-8", "replace")
    try:
        parse_manifest(text, name="m", has_hook_file=data[:1] > b"\x7f", source="fuzzed")
    except BundleProblem as problem:
        str(problem).encode()


_HEADS = [
    hpack(request_fields(path, extra))
    for path in (*_METHODS, b"/nobody")
    for extra in ((), [(b"grpc-encoding", b"gzip")], [(b"grpc-timeout", b"1S")])
]
_SHARED = Path(tempfile.mkdtemp(prefix="fuzz-shared-"))
(_SHARED / "object").write_bytes(bytes(64))


def _json_seeds() -> Iterable[bytes]:
    for dtype in _WIRE:
        data = ["a", "ü"] if dtype is BYTES else [True, False] if dtype.token == "bool" else [1, 2]
        tensor = {"name": dtype.token, "shape": [1, 2], "datatype": dtype.kserve}
        asked = {"id": "1", "outputs": [{"name": dtype.token}], "parameters": {"timeout": 5}}
        yield json.dumps({"inputs": [{**tensor, "data": data}], **asked}).encode()
        raw = b"\1\0\0\0a\0\0\0\0" if dtype is BYTES else bytes(2 * dtype.itemsize)
        binary = {**tensor, "parameters": {"binary_data_size": len(raw)}}
        wanted = [{"name": dtype.token, "parameters": {"classification": 1, "binary_data": True}}]
        yield b"\xff" + json.dumps({"inputs": [binary], "outputs": wanted}).encode() + b"\n" + raw


def _protobuf_seeds() -> Iterable[bytes]:
    for dtype in _WIRE:
        array = (
            np.zeros((1, 2), dtype.numpy) if dtype is not BYTES else np.full((1, 2), b"a", object)
        )
        parameters: dict[str, Parameter] = {"timeout": 5, "priority": 2, "x": "y"}
        request = InferRequest("m", {dtype.token: array}, "1", "1", (dtype.token,), 5, parameters)
        yield v2_protobuf.encode_infer_request(request)
        yield v2_protobuf.encode_infer_response(InferResponse("m", request.inputs, "1"))


def _http1_seeds() -> Iterable[bytes]:
    yield b"\x20POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    chunked = b"Transfer-Encoding: chunked\r\nExpect: 100-continue"
    yield (
        b"\x60POST /v2/%41?a=b HTTP/1.1\r\nHost: a\r\n" + chunked + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    yield b"\0GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /v2 HTTP/1.1\r\nHost: b\r\n\r\n"


def _http2_seeds() -> Iterable[bytes]:
    from hloserve.wire.grpc_client import GrpcClientConnection

    client = GrpcClientConnection("localhost:1")
    client.start("/inference.GRPCInferenceService/ModelInfer", b"hello", 1.0, [("x-bin", b"\0")])
    client.start("/s/Talk", b"one", streaming=True)
    yield b"\x30" + client.take_output()


def _frames_seeds() -> Iterable[bytes]:
    packed = gzip.compress(bytes(range(256)) * 8)
    for head in range(len(_HEADS)):
        for body in (prefixed(b"hello"), prefixed(packed[:200], 1)):
            for act in (1, 2, 7, 25):
                data = bytes([0, 1, 1, len(body)]) + body
                yield bytes([act, 1, 4, 1, 1, head]) + data + bytes([3, 0, 1, 4, 0, 0, 0, 8])


def _messages_seeds() -> Iterable[bytes]:
    for text in (b"", b"hello", bytes(5000)):
        yield b"\3" + prefixed(text) + prefixed(gzip.compress(text), 1)


def _shared_memory_seeds() -> Iterable[bytes]:
    request = v2_protobuf_shared_memory.RegionRequest("r", "/object", 0, 64)
    yield v2_protobuf_shared_memory.encode_register_request(request)
    yield b'{"key": "/object", "offset": 0, "byte_size": 64}'
    yield (
        b'{"shared_memory_region": "/object", "shared_memory_offset": 1,'
        b' "shared_memory_byte_size": 8}'
    )


def _safetensors_seeds() -> Iterable[bytes]:
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    yield len(text).to_bytes(8, "little") + text + bytes(8)


def _manifest_seeds() -> Iterable[bytes]:
    demo = Path(__file__).parents[2] / "src/hloserve/demo_repository"
    for path in demo.glob("*/manifest.yaml"):
        yield b"\0" + path.read_bytes()


_TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterable[bytes]]]] = {
    "protobuf": (fuzz_protobuf, _protobuf_seeds),
    "json": (fuzz_json, _json_seeds),
    "answers": (fuzz_answers, _protobuf_seeds),
    "http1": (fuzz_http1, _http1_seeds),
    "http2": (fuzz_http2, _http2_seeds),
    "frames": (fuzz_frames, _frames_seeds),
    "messages": (fuzz_messages, _messages_seeds),
    "shared-memory": (fuzz_shared_memory, _shared_memory_seeds),
    "safetensors": (fuzz_safetensors, _safetensors_seeds),
    "manifest": (fuzz_manifest, _manifest_seeds),
}


def main() -> None:
    """Write the seeds and fuzz."""
    target, seeds = _TARGETS[sys.argv.pop(1)]
    corpus = next((Path(argument) for argument in sys.argv[1:] if Path(argument).is_dir()), None)
    if corpus is not None:
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
