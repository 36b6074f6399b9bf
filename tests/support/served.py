"""The request path on the fake device: service, scheduler and threads, without sockets."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hloserve.config.schema import MetasConfig, SharedMemoryConfig
from hloserve.core.clock import SystemClock
from hloserve.core.requests import InferRequest, InferResponse
from hloserve.core.tensors import Tensors
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.models.loader import load_model
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.models.task_threads import TaskThreads
from hloserve.server.in_flight import InFlight
from hloserve.server.inference import InferenceService
from hloserve.server.metas import build_meta_threads
from hloserve.server.metrics import RequestMetrics
from hloserve.server.shared_memory import SharedMemory


class Served:
    """An inference service over bundles of a directory, inside a running loop."""

    def __init__(
        self,
        repository: Path,
        *,
        max_in_flight: int = 0,
        max_queue_depth: int = 1024,
        metas: MetasConfig | None = None,
        backend: FakeBackend | None = None,
    ) -> None:
        post = asyncio.get_running_loop().call_soon_threadsafe
        clock = SystemClock()
        self.backend = backend or FakeBackend()
        self.registry = Registry()
        self.metrics = RequestMetrics()
        self.scheduler = Scheduler(clock, Fifo(), max_queue_depth)
        self.hook_threads = TaskThreads(2, post)
        self.meta_threads = build_meta_threads(metas or MetasConfig(), 2, post)
        self.service = InferenceService(
            registry=self.registry,
            scheduler=self.scheduler,
            hook_threads=self.hook_threads,
            meta_threads=self.meta_threads,
            metrics=self.metrics,
            shared_memory=SharedMemory(SharedMemoryConfig(), clock, post),
            clock=clock,
            max_in_flight=max_in_flight,
        )
        for bundle in sorted(repository.iterdir()):
            self.load(bundle)
        self._warmed = len(self.backend.executed)
        self.dispatcher = Dispatcher(self.backend, self.scheduler, clock, post)
        self.dispatcher.start()
        self._held_from = 0

    def load(self, bundle: Path) -> Model:
        """Serve a bundle; what served under its name goes when nothing uses it any more."""
        model = load_model(bundle, self.backend)
        if not model.is_meta:
            self.scheduler.add(model.device)
        self.retire(self.registry.set_ready(model))
        return model

    def retire(self, model: Model | None) -> None:
        """Take a model out of service, after its last request."""
        if model is not None:
            model.uses.retire(lambda: self.scheduler.remove(model.device))

    def depth(self, name: str) -> int:
        """Requests that wait for a model."""
        return self.scheduler.depth(self.registry.get(name).device)

    def start(self, request: InferRequest) -> "tuple[asyncio.Future[InferResponse], InFlight]":
        """Begin a request; a future of its reply, and its handle."""
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def reply(response: InferResponse | None, error: Exception | None) -> None:
            assert not future.done(), "two replies to one request"
            if error is not None:
                future.set_exception(error)
            else:
                assert response is not None
                future.set_result(response)

        return future, self.service.start(request, reply)

    async def infer(self, model: str, inputs: Tensors, **more: Any) -> Tensors:
        """Serve one request."""
        future, _ = self.start(InferRequest(model, inputs, **more))
        return (await future).outputs

    @property
    def executed(self) -> list[tuple[int, ...]]:
        """Shape of the first argument of each execution for a request, in order."""
        return self.backend.executed[self._warmed :]

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop go round until something is so."""
        while not condition():  # noqa: ASYNC110  # other threads make it so, and tell nobody
            await asyncio.sleep(0)

    def hold(self) -> None:
        """Hold every execution from now on, at the gate."""
        self._held_from = self.backend.gate.arrivals
        self.backend.gate.close()

    async def wait_running(self) -> None:
        """Wait until an execution is held."""
        await asyncio.to_thread(self.backend.gate.wait_for_arrivals, self._held_from + 1)

    def close(self) -> None:
        """End the threads."""
        self.backend.gate.open()
        self.scheduler.stop()
        self.dispatcher.join(10)
        self.hook_threads.close()
        self.hook_threads.join(10)
        self.meta_threads.close()
        self.meta_threads.join(10)


Scenario = Callable[[Served], Coroutine[Any, Any, None]]


def serve(repository: Path, scenario: Scenario, **options: Any) -> None:
    """Run a scenario against the bundles of a directory; options as for `Served`."""

    async def run() -> None:
        served = Served(repository, **options)
        try:
            await scenario(served)
        finally:
            served.close()

    asyncio.run(run())
