"""Workers to talk to, on the fake device in this process.

What does not live here: real processes (`support.server_process`).
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from hloserve.bundle import IOSpec, write_bundle
from hloserve.config import load
from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend
from hloserve.server.listeners import Addresses
from hloserve.server.worker import Worker

_ANY_PORTS = {
    "endpoints.http_port": 0,
    "endpoints.grpc_port": 0,
    "endpoints.admin_port": 0,
}
_PATIENCE_S = 60.0


class RunningWorker:
    """A worker on a loop in a thread of this process.

    Attributes:
        addresses: its ports.
        worker: touch it on its own loop only, through `on_loop`.
        status: the exit status, once it has ended.
    """

    def __init__(
        self,
        repository: Path,
        backend: FakeBackend,
        settings: Mapping[str, object],
        *,
        wait: bool = True,
    ) -> None:
        flags = {"model_dirs": [str(repository)], **_ANY_PORTS, **settings}
        self._loaded = load(None, {}, flags)
        self._backend = backend
        self._is_listening = threading.Event()
        self._is_decided = threading.Event()
        self.status: int | None = None
        self.addresses: Addresses
        self.worker: Worker
        self._thread = threading.Thread(target=self._run, name="worker-under-test")
        self._thread.start()
        assert self._is_listening.wait(_PATIENCE_S), "the worker does not listen"
        if wait:
            self.wait_decided()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self.status = runner.run(self._serve())

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        self.worker = Worker(self._loaded, {}, on_decided=self._is_decided.set)
        self.addresses = await self.worker.listen(None)
        self._is_listening.set()
        self.worker.load(lambda _: self._backend, show_progress=False)
        await self.worker.wait_stopped()
        return await self.worker.drain()

    def wait_decided(self) -> None:
        """Wait until every bundle is loaded or has failed."""
        assert self._is_decided.wait(_PATIENCE_S), "the worker does not finish loading"

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Run a function on the worker's loop; its result."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_PATIENCE_S)

    def stop(self) -> None:
        """Drain, as SIGTERM does, without waiting."""
        self._loop.call_soon_threadsafe(self.worker.stop)

    def join(self) -> int | None:
        """Wait for the end; the exit status."""
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "the worker does not end"
        return self.status


def start_listening(settings: Mapping[str, object]) -> None:
    """Bind a worker's ports and close them again; raises what binding raises."""

    async def listen() -> None:
        worker = Worker(load(None, {}, {**_ANY_PORTS, **settings}), {}, on_decided=lambda: None)
        await worker.listen(None)
        await worker.drain()

    asyncio.run(listen())


def run_to_the_end(repository: Path, make_device: Callable[[], FakeBackend]) -> int:
    """Run a worker that ends by itself; its exit status."""

    async def run() -> int:
        flags = {"model_dirs": [str(repository)], **_ANY_PORTS}
        worker = Worker(load(None, {}, flags), {}, on_decided=lambda: None)
        await worker.listen(None)
        worker.load(lambda _: make_device(), show_progress=False)
        await worker.wait_stopped()
        return await worker.drain()

    return asyncio.run(run())


@contextmanager
def running_worker(
    repository: Path,
    backend: FakeBackend | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[RunningWorker]:
    """A worker on the fake device, ready; drained at the end."""
    worker = RunningWorker(repository, backend or FakeBackend(), settings or {})
    try:
        yield worker
    finally:
        worker.stop()
        worker.join()


def fake_program(function: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The text of a program of the fake device."""
    return json.dumps(
        {
            "function": function,
            "inputs": [f"tensor<{kind}>" for kind in inputs],
            "outputs": [f"tensor<{kind}>" for kind in outputs],
        }
    )


def write_scale(
    repository: Path,
    name: str = "scale",
    *,
    sizes: Sequence[int] = (1, 4, 8),
    function: str = "scale",
    files: Mapping[str, str] | None = None,
    **more: Any,
) -> Path:
    """Write y = 2x on float32 rows of four, for the fake device."""
    return write_bundle(
        repository / name,
        name,
        [IOSpec("x", "f32", (1, 4), batch_axis=0)],
        [IOSpec("y", "f32", (1, 4), batch_axis=0)],
        {n: fake_program(function, [f"{n}x4xf32", "4xf32"], [f"{n}x4xf32"]) for n in sizes},
        {"w": np.full(4, 2, np.float32)},
        files=files or {},
        **more,
    )


def rows(*values: float) -> Array:
    """Float32 rows of four, each filled with its value."""
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)
