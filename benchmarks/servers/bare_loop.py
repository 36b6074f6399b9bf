"""What transport and program allow when nothing is checked: the measure of the server's overhead.

Same transport, same program, upb's parser, one dispatch thread; no model lookup, no checks, no
errors, no deadlines, no metrics, one input, one row per request.
"""

import asyncio
import queue
import threading
from collections import deque
from typing import Any

import numpy as np
import uvloop

from benchmarks.mlp import SIZES, program_text, weights
from hloserve.core.clock import SystemClock
from hloserve.core.tensors import Array
from hloserve.engine.xla_backend import XlaBackend
from hloserve.server.grpc_transport import GrpcServer, Rpc
from hloserve.wire.grpc_limits import GrpcLimits
from hloserve.wire.protos import inference_pb2 as pb


class BareLoop:
    """The smallest batching server."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._backend = XlaBackend("cpu", 0)
        self._executables = {
            size: self._backend.compile(
                self._backend.read_program(program_text(size).encode(), f"b{size}"), "mlp"
            )
            for size in SIZES
        }
        self._weights = self._backend.to_device([array for _, array in weights()])
        self._waiting: deque[tuple[Rpc, str, Array]] = deque()
        self._is_busy = False
        self._work: queue.SimpleQueue[list[tuple[Rpc, str, Array]]] = queue.SimpleQueue()
        self._staging = {size: np.zeros((size, 64), "float32") for size in SIZES}
        for size in SIZES:
            self._run(self._staging[size])
        threading.Thread(target=self._dispatch, daemon=True).start()

    def infer(self, rpc: Rpc) -> None:
        """Take one request."""
        message = rpc.message
        request = pb.ModelInferRequest.FromString(
            message if isinstance(message, bytes) else bytes(message)
        )
        row = np.frombuffer(request.raw_input_contents[0], "float32").reshape(1, 64)
        self._waiting.append((rpc, request.id, row))
        if len(self._waiting) == 1 and not self._is_busy:
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        if not self._is_busy and self._waiting:
            self._is_busy = True
            rows = min(64, len(self._waiting))
            self._work.put([self._waiting.popleft() for _ in range(rows)])

    def _run(self, batch: Array) -> Array:
        backend = self._backend
        inputs = backend.to_device([batch])
        results = backend.execute(self._executables[len(batch)], [*inputs, *self._weights])
        return backend.to_host(results)[0]

    def _dispatch(self) -> None:
        while True:
            batch = self._work.get()
            size = next(size for size in SIZES if size >= len(batch))
            staging = self._staging[size]
            for place, (_, _, row) in enumerate(batch):
                staging[place] = row
            self._loop.call_soon_threadsafe(self._done, batch, self._run(staging))

    def _done(self, batch: list[tuple[Rpc, str, Array]], outputs: Array) -> None:
        self._is_busy = False
        self._kick()
        for place, (rpc, request_id, _) in enumerate(batch):
            row = outputs[place : place + 1]
            response = pb.ModelInferResponse(model_name="mlp", id=request_id)
            tensor = response.outputs.add(name="y", datatype="FP32")
            tensor.shape.extend(row.shape)
            response.raw_output_contents.append(row.tobytes())
            rpc.reply(response.SerializeToString())


async def main() -> None:
    """Serve until killed."""
    bare = BareLoop()
    methods: Any = {"/inference.GRPCInferenceService/ModelInfer": bare.infer}
    server = GrpcServer(methods, GrpcLimits(), SystemClock())
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
