"""ModelStreamInfer through the clients that people use, on the fake device."""

import asyncio
import gc
import os
import queue
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from support.conformance_worker import Asker, rpc_tensor
from support.server_worker import RunningWorker, rows, running_worker, write_scale
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend
from hloserve.server.grpc_connection import Connection
from hloserve.server.grpc_stream import StreamingRpc

_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def _request(
    number: int, model: str = "f32", parameters: Mapping[str, int] | None = None
) -> service_pb2.ModelInferRequest:
    request = rpc_tensor(model, "FP32", [1, 3], np.full(3, number, np.float32).tobytes())
    request.id = str(number)
    for key, value in (parameters or {}).items():
        request.parameters[key].int64_param = value
    return request


def _value(answer: service_pb2.ModelStreamInferResponse) -> float:
    return float(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0])


class _Feed:
    """Requests of a stream, given one at a time from the test."""

    def __init__(self) -> None:
        self._queue: queue.Queue[service_pb2.ModelInferRequest | None] = queue.Queue()

    def put(self, request: service_pb2.ModelInferRequest | None) -> None:
        """Give one; None ends it."""
        self._queue.put(request)

    def __iter__(self) -> Iterator[service_pb2.ModelInferRequest]:
        return iter(self._queue.get, None)


def test_grpcio_streams_and_answers_are_those_of_a_call(asker: Asker) -> None:
    """Beyond ModelInfer's answer there is `triton_final_response`."""
    (streamed,) = asker.stub.ModelStreamInfer(iter([_request(5)]), timeout=20)
    _, unary = asker.rpc(_request(5))

    assert streamed.error_message == ""
    assert streamed.infer_response.parameters["triton_final_response"].bool_param
    del streamed.infer_response.parameters["triton_final_response"]
    assert unary == streamed.infer_response


def test_faults_are_told_per_request(asker: Asker) -> None:
    """In their places, with ids, in the words of ModelInfer; what is good is answered."""
    requests = [_request(number) for number in range(6)]
    requests[1].model_name = "never"
    requests[2].inputs[0].shape[1] = 4
    requests[3].model_version = "7"
    requests[4].inputs[0].name = "z"

    answers = list(asker.stub.ModelStreamInfer(iter(requests), timeout=20))
    texts = [asker.rpc(request)[1] for request in requests[1:5]]

    assert list("012345") == [answer.infer_response.id for answer in answers]
    assert ["", *texts, ""] == [answer.error_message for answer in answers]
    assert (0, 5) == (_value(answers[0]), _value(answers[5]))


def test_hostile_messages_do_not_end_the_stream(asker: Asker) -> None:
    """Bytes that are no request are answered in their places."""
    bodies = [b"\xff" * 9, b"", _request(1).SerializeToString(), b"\x0a\xff\xff\xff\xff\x0f"]
    with grpc.insecure_channel(asker.grpc_address) as channel:
        call = channel.stream_stream(
            _STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )(iter(bodies), timeout=20)
        answers = list(call)

    assert [True, True, False, True] == [bool(answer.error_message) for answer in answers]
    assert call.code() is grpc.StatusCode.OK


def test_stream_without_requests_ends_well(asker: Asker) -> None:
    """Half-close alone is OK."""
    assert list(asker.stub.ModelStreamInfer(iter([]), timeout=20)) == []


def test_the_asyncio_client_streams_both_ways(asker: Asker) -> None:
    """Writes and reads of grpc.aio alternate on one call."""

    async def run() -> list[float]:
        values = []
        async with grpc.aio.insecure_channel(asker.grpc_address) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(timeout=20)
            for number in range(50):
                await call.write(_request(number))
                values.append(_value(await call.read()))
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        return values

    assert list(range(50)) == asyncio.run(run())


@contextmanager
def _triton_stream(
    address: str, timeout_s: float | None = None
) -> Iterator[tuple[Any, "queue.Queue[tuple[Any, Any]]"]]:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address) as client:
        client.start_stream(
            lambda result, error: got.put((result, error)), stream_timeout=timeout_s
        )
        yield client, got
        client.stop_stream()


def _triton_input(array: Array, name: str = "x") -> Any:
    tensor = tritonclient.grpc.InferInput(name, array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def test_ten_thousand_requests_over_one_stream_are_answered_right(tmp_path: Path) -> None:
    """Of random rows, every hundredth to a model that is not there; in order."""
    write_scale(tmp_path)
    random = np.random.default_rng(5)
    sizes = random.integers(1, 20, 10_000)
    arrays = [random.random((size, 4), np.float32) for size in sizes]
    with (
        running_worker(tmp_path) as worker,
        _triton_stream("{}:{}".format(*worker.addresses.grpc)) as (client, got),
    ):
        for number, array in enumerate(arrays):
            model = "scale" if number % 100 else "never"
            client.async_stream_infer(model, [_triton_input(array)], request_id=str(number))
        for number, array in enumerate(arrays):
            result, error = got.get(timeout=30)
            if number % 100 == 0:
                assert "'never'" in str(error)
                continue
            assert error is None
            assert str(number) == result.get_response().id
            np.testing.assert_array_equal(array * 2, result.as_numpy("y"))
        assert worker.on_loop(lambda: worker.worker.inference.in_flight) == 0


def test_tritonclient_asks_for_empty_last_answers(asker: Asker) -> None:
    """There are none, since each answer is the last one already."""
    with _triton_stream(asker.grpc_address) as (client, got):
        array = np.ones((1, 3), np.float32)
        client.async_stream_infer("f32", [_triton_input(array)], enable_empty_final_response=True)
        result, error = got.get(timeout=20)

    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param
    np.testing.assert_array_equal(array, result.as_numpy("y"))
    assert got.empty()


def test_triton_aio_client_streams(asker: Asker) -> None:
    """`stream_infer` of an asynchronous generator."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(20):
            array = np.full((1, 3), number, np.float32)
            yield {"model_name": "f32", "inputs": [_triton_input(array)], "request_id": f"{number}"}

    async def run() -> list[tuple[str, float]]:
        async with tritonclient.grpc.aio.InferenceServerClient(asker.grpc_address) as client:
            return [
                (result.get_response().id, float(result.as_numpy("y")[0, 0]))
                async for result, error in client.stream_infer(requests())
                if error is None
            ]

    assert [(str(number), float(number)) for number in range(20)] == asyncio.run(run())


def test_strings_and_classes_come_over_streams(asker: Asker) -> None:
    """As over ModelInfer."""
    text = rpc_tensor("text", "BYTES", [1, 2], b"\x02\0\0\0ab\x01\0\0\0c", "text")
    classes = _request(1, "labelled")
    classes.outputs.add(name="y").parameters["classification"].int64_param = 2

    answers = asker.stub.ModelStreamInfer(iter([text, classes]), timeout=20)
    unary = [asker.rpc(request)[1].raw_output_contents for request in (text, classes)]

    assert unary == [answer.infer_response.raw_output_contents for answer in answers]


def test_shared_memory_works_over_streams(tmp_path: Path) -> None:
    """Input and output both lie there."""
    write_scale(tmp_path)
    region = shared_memory.SharedMemory(create=True, size=32)
    try:
        assert region.buf is not None
        region.buf[:16] = rows(3).tobytes()
        with running_worker(tmp_path, settings={"shared_memory.enabled": True}) as worker:
            address = "{}:{}".format(*worker.addresses.grpc)
            with _triton_stream(address) as (client, got):
                client.register_system_shared_memory("r", region.name, 32)
                tensor = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
                tensor.set_shared_memory("r", 16)
                output = tritonclient.grpc.InferRequestedOutput("y")
                output.set_shared_memory("r", 16, 16)
                client.async_stream_infer("scale", [tensor], outputs=[output])
                _, error = got.get(timeout=20)
                client.unregister_system_shared_memory("r")
            assert error is None
            assert rows(6).tobytes() == bytes(region.buf[16:])
    finally:
        region.close()
        region.unlink()


class _Busy:
    """A worker whose device waits with a first request, and a stream to it."""

    def __init__(self, worker: RunningWorker, stub: Any) -> None:
        self.worker, self.stub, self.feed = worker, stub, _Feed()
        self.has_left = False

    def leave(self) -> None:
        """Let the worker drain."""
        self.has_left = True
        self.worker.stop()

    def begin(self, *requests: service_pb2.ModelInferRequest, timeout: float = 30) -> Any:
        """A stream with some requests; returns when all are in flight."""
        before = self.in_flight
        for request in requests:
            self.feed.put(request)
        call = self.stub.ModelStreamInfer(iter(self.feed), timeout=timeout)
        self.wait_for(before + len(requests))
        return call

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        count: int = self.worker.on_loop(lambda: self.worker.worker.inference.in_flight)
        return count

    def wait_for(self, count: int) -> None:
        """Until so many are in flight."""
        while self.in_flight != count:
            pass


@contextmanager
def _busy(tmp_path: Path, values: list[float]) -> Iterator[tuple[_Busy, FakeBackend]]:
    def note(arguments: Any) -> bool:
        values.append(float(arguments[0][0, 0]))
        return False

    write_scale(tmp_path, sizes=(1,))
    backend = FakeBackend(fail_when=note)
    worker = RunningWorker(tmp_path, backend, {})
    values.clear()
    backend.gate.close()
    before = backend.gate.arrivals
    with grpc.insecure_channel("{}:{}".format(*worker.addresses.grpc)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        first = stub.ModelInfer.future(_scale(0), timeout=60)
        backend.gate.wait_for_arrivals(before + 1)
        busy = _Busy(worker, stub)
        try:
            yield busy, backend
        finally:
            busy.feed.put(None)
            backend.gate.open()
            if not busy.has_left:
                busy.leave()
        assert first.result(20).model_name == "scale"
    worker.join()


def _scale(number: int, **parameters: int) -> service_pb2.ModelInferRequest:
    request = rpc_tensor("scale", "FP32", [1, 4], rows(number).tobytes())
    request.id = str(number)
    for key, value in parameters.items():
        request.parameters[key].int64_param = value
    return request


def test_cancelled_stream_withdraws_what_is_queued(tmp_path: Path) -> None:
    """Nothing of it runs."""
    values: list[float] = []
    with _busy(tmp_path, values) as (busy, _):
        call = busy.begin(*map(_scale, range(1, 20)))
        call.cancel()
        busy.wait_for(1)

    assert values == [0]


def test_deadline_of_a_stream_ends_it_with_its_requests(tmp_path: Path) -> None:
    """The client gets the status, the server keeps nothing."""
    values: list[float] = []
    with _busy(tmp_path, values) as (busy, _):
        busy.feed.put(_scale(1))
        call = busy.stub.ModelStreamInfer(iter(busy.feed), timeout=0.2)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        busy.wait_for(1)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert values == [0]


def test_budget_of_a_request_ends_it_alone(tmp_path: Path) -> None:
    """Its error comes at its time; the others of the stream are served."""
    values: list[float] = []
    with _busy(tmp_path, values) as (busy, backend):
        call = busy.begin(_scale(1, timeout=200_000), _scale(2))
        assert "deadline" in next(call).error_message
        backend.gate.open()
        assert next(call).infer_response.id == "2"

    assert values == [0, 2]


def test_priorities_change_what_runs_first_and_not_the_order_of_answers(tmp_path: Path) -> None:
    """A high one passes the others in the queue."""
    values: list[float] = []
    with _busy(tmp_path, values) as (busy, backend):
        call = busy.begin(_scale(1), _scale(2), _scale(3, priority=1))
        backend.gate.open()
        busy.feed.put(None)
        assert list("123") == [answer.infer_response.id for answer in call]

    assert values == [0, 3, 1, 2]


def test_leaving_server_answers_what_a_stream_has_in_flight(tmp_path: Path) -> None:
    """Then the stream ends UNAVAILABLE."""
    with _busy(tmp_path, []) as (busy, backend):
        call = busy.begin(_scale(1), _scale(2))
        busy.leave()
        busy.worker.on_loop(lambda: None)
        backend.gate.open()
        assert ["1", "2"] == [next(call).infer_response.id for _ in range(2)]
        with pytest.raises(grpc.RpcError) as caught:
            next(call)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


_KILLED = """
import sys
import grpc, numpy as np
channel = grpc.insecure_channel(sys.argv[1])
call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
request = sys.stdin.buffer.read()
answers = call(iter([b""] + [request] * 300))
next(answers)
print("streaming", flush=True)
next(answers)
"""


@contextmanager
def _streaming_processes(address: str, count: int) -> Iterator[None]:
    """Clients that stream many requests, and are killed at the end."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _KILLED, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(_scale(9).SerializeToString())
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"streaming\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(20)
            assert process.stdout is not None
            process.stdout.close()


def test_killed_clients_leave_nothing_in_flight(tmp_path: Path) -> None:
    """The system closes their sockets, and their queued work is withdrawn."""
    values: list[float] = []
    with _busy(tmp_path, values) as (busy, _):
        address = "{}:{}".format(*busy.worker.addresses.grpc)
        with _streaming_processes(address, 3):
            busy.wait_for(1 + 3 * 256)  # as many as a stream may have
        busy.wait_for(1)

    assert values == [0]


def test_streams_that_have_ended_are_let_go_at_once(asker: Asker) -> None:
    """What had come of their next message does not wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            call = asker.stub.ModelStreamInfer(iter([_request(1)]), timeout=20)
            assert _value(next(call)) == 1
            list(call)
            feed = _Feed()
            call = asker.stub.ModelStreamInfer(iter(feed), timeout=20)
            feed.put(_request(2))
            assert _value(next(call)) == 2
            call.cancel()
            feed.put(None)
        asker.rpc(_request(3))
        left = sum(type(each) is StreamingRpc for each in gc.get_objects())
    finally:
        gc.enable()

    assert left <= 1, "more than the last"


def test_connections_that_were_lost_are_let_go_at_once(asker: Asker) -> None:
    """With what they had not sent, and what had come of a message."""
    asker.rpc(_request(0))
    gc.collect()
    before = sum(type(each) is Connection for each in gc.get_objects())
    gc.disable()
    try:
        for _ in range(5):
            with grpc.insecure_channel(
                asker.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                assert stub.ModelInfer(_request(1), timeout=20)
        asker.rpc(_request(2))
        after = sum(type(each) is Connection for each in gc.get_objects())
    finally:
        gc.enable()

    assert after - before <= 2, "more than those whose end is not noticed yet"
