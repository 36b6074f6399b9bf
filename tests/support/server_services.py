"""The services of a worker without sockets, loop or asyncio: the test is the loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engine_models import Engine
from support.server_repository import Heard
from support.server_worker import write_scale

from hloserve.config import load
from hloserve.config.schema import MetasConfig
from hloserve.engine.fake_backend import FakeBackend
from hloserve.models.loader import load_model
from hloserve.models.model import Model
from hloserve.models.progress import NoProgress
from hloserve.models.registry import Registry
from hloserve.models.task_threads import TaskThreads
from hloserve.server.catalog import Catalog
from hloserve.server.inference import InferenceService
from hloserve.server.loading import BundleLoader
from hloserve.server.metas import build_meta_threads
from hloserve.server.metrics import RequestMetrics
from hloserve.server.operations import build_operations
from hloserve.server.repository import Repository
from hloserve.server.repository_control import RepositoryControl
from hloserve.server.repository_events import RepositorySettings
from hloserve.server.shared_memory import SharedMemory


class Services:
    """What answers requests about one model, "scale": y = 2x on rows of four."""

    def __init__(self, directory: Path, mode: str = "explicit") -> None:
        self.backend = FakeBackend()
        self.model: Model = load_model(write_scale(directory), self.backend)
        self.engine = Engine(self.backend, self.model.device)
        self.hook_threads = TaskThreads(1, self.engine.loop.post)
        self.meta_threads = build_meta_threads(MetasConfig(), 1, self.engine.loop.post)
        self.registry = Registry()
        self.registry.set_ready(self.model)
        self.catalog = Catalog(self.registry)
        self.metrics = RequestMetrics()
        self.events = Heard()
        self.repository = Repository(
            self.registry,
            self.engine.scheduler,
            self.engine.clock,
            threads=TaskThreads(1, self.engine.loop.post, name="load"),
            post=self.engine.loop.post,
            later=lambda delay, callback, *arguments: None,
            events=self.events,
            settings=RepositorySettings(
                quiet_s=0, gone_s=0, is_watched=False, is_followed=False, makes_room=False
            ),
        )
        flags = {"model_dirs": [str(directory)], "model_control_mode": mode}
        self.config = load(None, {}, flags).config
        self.repository.begin(BundleLoader(self.backend, self.config, NoProgress()), {})
        self.operations = build_operations(
            self.config, self.registry, self.engine.scheduler, self.metrics, self.engine.clock
        )
        self._look_threads = TaskThreads(1, self.engine.loop.post, name="look")
        self.control = RepositoryControl(
            self.repository, [directory], self.config, self._look_threads
        )
        self.shared_memory = SharedMemory(
            self.config.shared_memory, self.engine.clock, self.engine.loop.post
        )
        self.inference = InferenceService(
            registry=self.registry,
            scheduler=self.engine.scheduler,
            hook_threads=self.hook_threads,
            meta_threads=self.meta_threads,
            metrics=self.metrics,
            shared_memory=self.shared_memory,
            clock=self.engine.clock,
            max_in_flight=0,
        )

    def deliver(self) -> None:
        """Wait for a dispatch, and go on with the requests that it answers."""
        self.engine.loop.run_one()

    def close(self) -> None:
        """End the threads, and free what still serves."""
        self.repository.close()
        self._look_threads.close()
        self.hook_threads.close()
        self.meta_threads.close()
        for model in self.registry.models():
            model.free()


@contextmanager
def running_services(directory: Path, mode: str = "explicit") -> Iterator[Services]:
    """Such services with a dispatch thread, for the length of the block."""
    services = Services(directory, mode)
    try:
        with services.engine:
            yield services
    finally:
        services.close()
