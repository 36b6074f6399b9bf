"""The services of a worker without sockets, loop or asyncio: the test is the loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engine_models import Engine
from support.server_worker import write_scale

from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.task_threads import TaskThreads
from hloserve.models.loader import load_model
from hloserve.models.model import Model
from hloserve.models.registry import Registry
from hloserve.server.catalog import Catalog
from hloserve.server.inference import InferenceService
from hloserve.server.metrics import RequestMetrics


class Services:
    """What answers requests about one model, "scale": y = 2x on rows of four."""

    def __init__(self, directory: Path) -> None:
        self.backend = FakeBackend()
        self.model: Model = load_model(write_scale(directory), self.backend)
        self.engine = Engine(self.backend, self.model.device)
        self.hook_threads = TaskThreads(1, self.engine.loop.post)
        self.registry = Registry()
        self.registry.set_ready(self.model)
        self.catalog = Catalog(self.registry)
        self.metrics = RequestMetrics()
        self.inference = InferenceService(
            registry=self.registry,
            scheduler=self.engine.scheduler,
            hook_threads=self.hook_threads,
            metrics=self.metrics,
            clock=self.engine.clock,
            max_in_flight=0,
        )

    def deliver(self) -> None:
        """Wait for a dispatch, and go on with the requests that it answers."""
        self.engine.loop.run_one()


@contextmanager
def running_services(directory: Path) -> Iterator[Services]:
    """Such services with a dispatch thread, for the length of the block."""
    services = Services(directory)
    try:
        with services.engine:
            yield services
    finally:
        services.hook_threads.close()
        services.model.free(services.backend)
