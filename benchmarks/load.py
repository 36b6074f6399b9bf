"""Closed-loop load, from a process of its own: each stream sends its next request when answered.

    python -m benchmarks.load '{"kind": "grpc", "port": 8001, ...}'

Prints one JSON object. gRPC runs on the project's own client core, REST on its own HTTP/1.1 core,
because the generator shares two cores with the server: the cheaper it is, the less it hides.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import uvloop
from typing_extensions import override

from hloserve.wire.grpc_client import GrpcClientConnection
from hloserve.wire.grpc_events import RpcEnded
from hloserve.wire.http1_client import HttpClientConnection

__all__ = ["LoadPlan", "LoadResult", "run_load"]

_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send.

    Attributes:
        kind: ``grpc`` or ``rest``.
        port: of the server, on loopback.
        connections: how many.
        streams: requests in flight per connection; REST has one.
        seconds: measured time, after `warmup_s`.
        target: method path or URL path.
        bodies_hex: request messages or bodies; each connection sends one of them, in turn.
    """

    kind: str
    port: int
    connections: int
    streams: int
    seconds: float
    target: str
    bodies_hex: Sequence[str]
    warmup_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What came of it; latencies in seconds."""

    requests: int
    errors: int
    rate: float
    p50_s: float
    p99_s: float


class _Recorder:
    """Latencies of the requests that ended in the measured window."""

    def __init__(self) -> None:
        self.latencies_ns = array("q")
        self.errors = 0
        self.is_measuring = False
        self.is_over = False

    def ended(self, started_ns: int, now_ns: int, *, is_ok: bool) -> None:
        if self.is_measuring:
            if is_ok:
                self.latencies_ns.append(now_ns - started_ns)
            else:
                self.errors += 1


class _GrpcLoad(asyncio.Protocol):
    def __init__(self, plan: LoadPlan, body: bytes, recorder: _Recorder) -> None:
        self._plan, self._recorder = plan, recorder
        self._body = body
        self._http2 = GrpcClientConnection(f"{_HOST}:{plan.port}")
        self._started_ns: dict[int, int] = {}

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        now_ns = time.perf_counter_ns()
        for _ in range(self._plan.streams):
            self._start(now_ns)
        transport.write(self._http2.take_output())

    def _start(self, now_ns: int) -> None:
        stream = self._http2.start(self._plan.target, self._body)
        self._started_ns[stream] = now_ns

    @override
    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        recorder = self._recorder
        for event in self._http2.receive(data):
            if type(event) is RpcEnded:
                started_ns = self._started_ns.pop(event.stream_id)
                recorder.ended(started_ns, now_ns, is_ok=event.code == 0)
                if not recorder.is_over:
                    self._start(now_ns)
        output = self._http2.take_output()
        if output:
            self._transport.write(output)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._recorder.is_over:
            self._recorder.errors += 1


class _RestLoad(asyncio.Protocol):
    def __init__(self, plan: LoadPlan, body: bytes, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._http1 = HttpClientConnection(f"{_HOST}:{plan.port}")
        self._plan = plan
        self._body = body
        self._started_ns = 0

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._start(time.perf_counter_ns())

    def _start(self, now_ns: int) -> None:
        self._started_ns = now_ns
        headers = (("Content-Type", "application/json"),)
        self._transport.write(self._http1.request("POST", self._plan.target, headers, self._body))

    @override
    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        for response in self._http1.receive(data):
            self._recorder.ended(self._started_ns, now_ns, is_ok=response.status == 200)
            if not self._recorder.is_over:
                self._start(now_ns)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._recorder.is_over:
            self._recorder.errors += 1


async def run_load(plan: LoadPlan) -> LoadResult:
    """Send load and measure it."""
    loop = asyncio.get_running_loop()
    recorder = _Recorder()
    kind = _GrpcLoad if plan.kind == "grpc" else _RestLoad
    bodies = cycle(map(bytes.fromhex, plan.bodies_hex))
    transports = [
        (
            await loop.create_connection(
                lambda: kind(plan, next(bodies), recorder), _HOST, plan.port
            )
        )[0]
        for _ in range(plan.connections)
    ]
    await asyncio.sleep(plan.warmup_s)
    recorder.is_measuring = True
    began = time.perf_counter()
    await asyncio.sleep(plan.seconds)
    elapsed_s = time.perf_counter() - began
    recorder.is_measuring, recorder.is_over = False, True
    for transport in transports:
        transport.abort()
    latencies = np.frombuffer(recorder.latencies_ns, np.int64) * 1e-9
    p50_s, p99_s = np.percentile(latencies, (50, 99)) if latencies.size else (0.0, 0.0)
    return LoadResult(
        requests=latencies.size,
        errors=recorder.errors,
        rate=latencies.size / elapsed_s,
        p50_s=float(p50_s),
        p99_s=float(p99_s),
    )


def main() -> None:
    """Run the plan of the first argument."""
    plan = LoadPlan(**json.loads(sys.argv[1]))
    result = uvloop.run(run_load(plan))
    print(json.dumps({name: getattr(result, name) for name in LoadResult.__slots__}))


if __name__ == "__main__":
    main()
