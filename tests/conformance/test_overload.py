"""Deadlines, priorities, departures and overload, over both transports, on a busy device."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.conformance_worker import Answer, Asker, rpc_tensor, tensor
from support.server_worker import RunningWorker, rows, running_worker, write_scale
from tritonclient.grpc import service_pb2

from hloserve.engine.fake_backend import FakeBackend


def body(parameters: Mapping[str, Any], value: float) -> dict[str, Any]:
    """A JSON request of one row."""
    return {**tensor("FP32", [1, 4], [value] * 4), "parameters": dict(parameters)}


class Held:
    """A worker whose device waits with a first request on it, so that others queue."""

    def __init__(
        self, worker: RunningWorker, pool: ThreadPoolExecutor, open_gate: Callable[[], None]
    ) -> None:
        self.worker, self._pool, self.open = worker, pool, open_gate
        self.asker = Asker(worker)
        self.asker.connect()

    def rest(self, parameters: Mapping[str, Any] | None = None, value: float = 1) -> Answer:
        """One request over REST."""
        return self.asker.infer("scale", body(parameters or {}, value))

    def rpc(
        self, parameters: Mapping[str, int] | None = None, value: float = 1
    ) -> tuple[grpc.StatusCode, Any]:
        """One request over gRPC."""
        request = rpc_tensor("scale", "FP32", [1, 4], rows(value).tobytes())
        for key, number in (parameters or {}).items():
            request.parameters[key].int64_param = number
        return self.asker.rpc(request)

    def begin(self, ask: Callable[[], Any]) -> "Future[Any]":
        """Ask from another thread; returns once the request is in flight."""
        before = self.in_flight
        future = self._pool.submit(ask)
        self.wait_for(before + 1)
        return future

    @property
    def in_flight(self) -> int:
        """Inference requests that have no answer."""
        count: int = self.worker.on_loop(lambda: self.worker.worker.inference.in_flight)
        return count

    def wait_for(self, count: int) -> None:
        """Wait until so many are in flight."""
        while self.in_flight != count:
            pass


@contextmanager
def held(tmp_path: Path, values: list[float], **settings: object) -> Iterator[Held]:
    """A worker that runs one row at a time and notes its value in `values`."""

    def note(arguments: Any) -> bool:
        values.append(float(arguments[0][0, 0]))
        return False

    write_scale(tmp_path, sizes=(1,))
    backend = FakeBackend(fail_when=note)
    with running_worker(tmp_path, backend, settings) as worker, ExitStack() as ends:
        values.clear()
        backend.gate.close()
        before = backend.gate.arrivals
        under_test = Held(worker, pool := ThreadPoolExecutor(20), backend.gate.open)
        ends.callback(under_test.asker.close)
        ends.callback(pool.shutdown)  # waits for all answers
        ends.callback(backend.gate.open)
        first = under_test.begin(lambda: under_test.rest(value=0))
        backend.gate.wait_for_arrivals(before + 1)
        yield under_test
        backend.gate.open()
        assert first.result(20).status == 200


@pytest.mark.parametrize("parameters", [{"timeout": 20_000}, {"reactant_timeout_ns": 20_000_000}])
def test_budgets_end_a_request_while_the_device_is_busy(
    tmp_path: Path, parameters: dict[str, int]
) -> None:
    """Over both transports; its work is withdrawn, and the others are served."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        answer = server.rest(parameters, 1)
        code, text = server.rpc(parameters, 2)
        assert server.in_flight == 1

    assert answer.status == 504
    assert "deadline" in answer.json["error"]
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "deadline" in text.lower()
    assert values == [0]


def test_deadline_of_a_call_and_its_budget_do_not_override_each_other(tmp_path: Path) -> None:
    """The earliest counts."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        request = rpc_tensor("scale", "FP32", [1, 4], rows(1).tobytes())
        request.parameters["timeout"].int64_param = 600_000_000
        with pytest.raises(grpc.RpcError) as caught:
            server.asker.stub.ModelInfer(request, timeout=0.05)
        server.wait_for(1)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert values == [0]


def test_smaller_priorities_go_first(tmp_path: Path) -> None:
    """Whichever transport they come by; without one, and with 0, a request has the usual one."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        waiting = [
            server.begin(lambda: server.rest(value=3)),
            server.begin(lambda: server.rpc({"priority": 90}, 5)),
            server.begin(lambda: server.rpc({"priority": 0}, 4)),
            server.begin(lambda: server.rest({"priority": 2}, 2)),
            server.begin(lambda: server.rpc({"priority": 1}, 1)),
        ]
    for each in waiting:
        assert each.result(20)[0] in (200, grpc.StatusCode.OK)

    assert values == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("priority", [-1, 101, 2**62])
def test_other_priorities_are_refused(tmp_path: Path, priority: int) -> None:
    """The range is in the message."""
    with held(tmp_path, []) as server:
        answer = server.rest({"priority": priority})
        code, text = server.rpc({"priority": priority})

    assert (answer.status, code) == (400, grpc.StatusCode.INVALID_ARGUMENT)
    assert "from 1" in answer.json["error"]
    assert "to 100" in text


def test_only_inference_is_capped(tmp_path: Path) -> None:
    """One more than the cap is told to come back; health and metadata are still answered."""
    with held(tmp_path, [], **{"endpoints.max_concurrent_requests": 2}) as server:
        second = server.begin(server.rest)
        answer = server.rest()
        code, _ = server.rpc()
        ready = server.asker.send("GET", "/v2/health/ready")
        metadata = server.asker.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="scale"))

    assert second.result(20).status == 200
    assert (answer.status, code) == (429, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert answer.headers["retry-after"] == "1"
    assert ready.status == 200
    assert metadata.name == "scale"


def test_full_queue_is_told(tmp_path: Path) -> None:
    """By its model, with the time to come back."""
    with held(tmp_path, [], **{"scheduler.max_queue_depth": 1}) as server:
        second = server.begin(server.rest)
        answer = server.rest({"priority": 1})
        code, text = server.rpc()

    assert second.result(20).status == 200
    assert (answer.status, code) == (429, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert answer.headers["retry-after"] == "1"
    assert "'scale'" in text


def test_requests_of_streams_count_like_others(tmp_path: Path) -> None:
    """Beyond the cap of all in flight each is refused by itself, and the stream goes on."""
    with held(tmp_path, [], **{"endpoints.max_concurrent_requests": 3}) as server:
        request = rpc_tensor("scale", "FP32", [1, 4], rows(1).tobytes())
        with ThreadPoolExecutor(3) as pool:
            streams = [
                pool.submit(
                    lambda: list(
                        server.asker.stub.ModelStreamInfer(iter([request] * 3), timeout=60)
                    )
                )
                for _ in range(2)
            ]
            server.wait_for(3)
            code, _ = server.rpc()
            server.open()
            answers = [answer for stream in streams for answer in stream.result(30)]

    codes = [answer.infer_response.parameters["grpc_status"].int64_param for answer in answers]
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 6 == len(codes)
    assert codes.count(0) >= 2
    assert set(codes) == {0, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}


def raw_request(server: Held) -> socket.socket:
    """A REST request on a socket of its own."""
    data = json.dumps(body({}, 1)).encode()
    head = f"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    peer = socket.create_connection(server.worker.addresses.http, timeout=20)
    peer.sendall(head.encode() + data)
    server.wait_for(2)
    return peer


def test_work_of_callers_that_leave_is_withdrawn(tmp_path: Path) -> None:
    """Over REST by closing, over gRPC by cancelling; nothing of it runs."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        raw_request(server).close()
        server.wait_for(1)
        call = server.asker.stub.ModelInfer.future(
            rpc_tensor("scale", "FP32", [1, 4], rows(1).tobytes())
        )
        server.wait_for(2)
        call.cancel()
        server.wait_for(1)

    assert values == [0]


def test_departure_behind_a_full_pipeline_is_noticed(tmp_path: Path) -> None:
    """Nothing is read of it then: its state tells, once a second."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        peer = raw_request(server)
        data = json.dumps(body({}, 1)).encode()
        head = "POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\n"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        peer.sendall(request * 80)
        server.wait_for(65)
        peer.close()
        server.wait_for(1)

    assert values == [0]


def test_caller_that_half_closes_gets_its_answer(tmp_path: Path) -> None:
    """It may have ended its side long before: the answer comes, and then the end."""
    values: list[float] = []
    with held(tmp_path, values) as server:
        peer = raw_request(server)
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
    with peer, peer.makefile("rb") as file:
        answer = file.read()

    assert b"HTTP/1.1 200 OK" in answer
    assert answer.endswith(b'"data":[2.0,2.0,2.0,2.0]}]}')
    assert values == [0, 1]
