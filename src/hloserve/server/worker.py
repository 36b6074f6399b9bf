"""The objects of one worker, and the order of their lives.

What lives here: wiring them once; listen, load, serve, drain. What does not: the process around it
(`server.serving`), loading a bundle (`models.loader`), the start-up set (`server.startup`), what is
answered (`server.inference`).

Rules.
1. The ports are up before anything is compiled: live at once, ready when the start-up set is known.
2. The first SIGTERM or SIGINT drains: not ready, no new connections, everything in flight answered
   until `drain_timeout_s`. Another one, a second later or more, ends the process at once.
3. The exit status is 0 after a drain, 1 when the worker could not do its work.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hloserve import __version__
from hloserve.config.loading import LoadedConfig
from hloserve.config.resolving import (
    resolve_hook_threads,
    resolve_load_threads,
)
from hloserve.config.schema import WorkerConfig
from hloserve.core.clock import SystemClock
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.programs.program_probe import ProgramProbe
from hloserve.engine.residency.placement import DeviceWeights
from hloserve.engine.scheduling.building import build_scheduler
from hloserve.models.progress import Progress
from hloserve.models.registry import Registry
from hloserve.models.repository_look import Look
from hloserve.models.task_threads import TaskThreads
from hloserve.server.admin import AdminService
from hloserve.server.catalog import Catalog
from hloserve.server.collector import spare_the_collector
from hloserve.server.device import build_dispatcher, open_weights, watch_executions
from hloserve.server.grpc_services import build_grpc_services
from hloserve.server.inference import InferenceService
from hloserve.server.listeners import Addresses, Listeners, write_ports_file
from hloserve.server.loading import BundleLoader
from hloserve.server.machine_memory import build_budget
from hloserve.server.metas import build_meta_threads
from hloserve.server.metrics import Exposition, RequestMetrics
from hloserve.server.model_events import ModelEvents
from hloserve.server.operations import build_operations
from hloserve.server.progress import build_progress, keep_drawing
from hloserve.server.repository import Repository
from hloserve.server.repository_control import RepositoryControl
from hloserve.server.repository_events import RepositorySettings
from hloserve.server.rest_service import RestInferenceService
from hloserve.server.shared_memory import SharedMemory
from hloserve.server.startup import (
    BackendFactory,
    Startup,
    repository_roots,
    startup_set,
    warn_of_settings_without_model,
)
from hloserve.server.watcher import Watcher, build_watcher
from hloserve.server.worker_figures import WorkerFigures

__all__ = ["Worker"]

log = logging.getLogger(__name__)

_SAME_SIGNAL_NS = 1_000_000_000
"""Wrappers like `timeout` and terminals send a signal twice; that is not impatience."""


class Worker:
    """The objects of one worker process. Loop thread only.

    Args:
        loaded: checked settings.
        pages: static HTML pages of the REST port, by path.
        on_decided: called once every bundle of the start-up set is loaded or has failed.
    """

    def __init__(
        self, loaded: LoadedConfig, pages: Mapping[str, Path], *, on_decided: Callable[[], None]
    ) -> None:
        config: WorkerConfig = loaded.config
        self.config = config
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._on_decided = on_decided
        self._stop = asyncio.Event()
        self._stopped_ns = 0
        self._status = 0
        post = self._loop.call_soon_threadsafe
        cpus = len(os.sched_getaffinity(0))
        self.registry = Registry()
        self.request_metrics = RequestMetrics()
        self._scheduler = build_scheduler(config.scheduler, self._clock)
        hook_threads = resolve_hook_threads(config.hooks, cpus=cpus).value
        self._hook_threads = TaskThreads(hook_threads, post)
        self._meta_threads = build_meta_threads(config.metas, hook_threads, post)
        self.shared_memory = SharedMemory(config.shared_memory, self._clock, self._loop.call_soon)
        self.inference = InferenceService(
            registry=self.registry,
            scheduler=self._scheduler,
            hook_threads=self._hook_threads,
            meta_threads=self._meta_threads,
            metrics=self.request_metrics,
            shared_memory=self.shared_memory,
            clock=self._clock,
            max_in_flight=self.config.endpoints.max_concurrent_requests,
        )
        self.model_events = ModelEvents(self.request_metrics, self._startup_done)
        self.repository = self._build_repository(cpus)
        self._look_threads = TaskThreads(1, post, name="look")
        exposed = config.metas.exposed_models
        self._catalog = Catalog(self.registry, self.shared_memory.extensions, exposed)
        self._listeners = self._build_listeners(loaded, pages)
        self._dispatcher: Dispatcher | None = None
        self._weights: DeviceWeights | None = None
        self._startup: Startup | None = None
        self._watcher: Watcher | None = None
        self._progress: Progress
        self._probe: ProgramProbe | None = None

    def _build_repository(self, cpus: int) -> Repository:
        config, post = self.config, self._loop.call_soon_threadsafe
        load_threads = resolve_load_threads(config.runtime, cpus=cpus).value
        return Repository(
            self.registry,
            self._scheduler,
            self._clock,
            threads=TaskThreads(load_threads, post, name="load", max_waiting=sys.maxsize),
            post=post,
            later=self._loop.call_later,
            events=self.model_events,
            settings=RepositorySettings(
                quiet_s=config.model_settle_seconds,
                gone_s=config.model_removal_seconds,
                is_watched=config.model_control_mode != "static",
                is_followed=config.model_control_mode == "dynamic",
                makes_room=config.runtime.reload_without_room == "unload_first",
                exposed_models=config.metas.exposed_models,
            ),
        )

    def _build_listeners(self, loaded: LoadedConfig, pages: Mapping[str, Path]) -> Listeners:
        clock, inference, catalog = self._clock, self.inference, self._catalog
        roots = repository_roots(self.config)
        control = RepositoryControl(self.repository, roots, self.config, self._look_threads)
        registry, metrics = self.registry, self.request_metrics
        operations = build_operations(self.config, registry, self._scheduler, metrics, clock)
        self._control = operations.control
        budget = build_budget(self.config.endpoints)
        figures = WorkerFigures(
            self.config, registry, self._scheduler, inference, metrics, self.model_events,
            self._control, budget,
        )  # fmt: skip
        return Listeners(
            self.config,
            loaded.sources,
            clock,
            grpc=build_grpc_services(inference, catalog, control, operations, clock, registry),
            rest=RestInferenceService(inference, catalog, control, operations, clock, pages),
            admin=AdminService(catalog, Exposition(figures)),
            budget=budget,
        )

    @property
    def is_ready(self) -> bool:
        """True while requests are served: see `server.catalog`."""
        return self._catalog.is_ready

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT stop the worker. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            log_event(log, "draining", signal=number.name, in_flight=self.inference.in_flight)
            self.stop()
        elif self._clock.now_ns() - self._stopped_ns > _SAME_SIGNAL_NS:
            log_event(log, "stopped_at_once", level=logging.WARNING, signal=number.name)
            os._exit(128 + number)

    def stop(self) -> None:
        """Ask for the drain; `wait_stopped` returns."""
        self._stopped_ns = self._clock.now_ns()
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Wait until somebody asks for the drain."""
        await self._stop.wait()

    async def listen(self, ports_file: Path | None) -> Addresses:
        """Bind the ports and tell where they are.

        Raises:
            ConfigProblem: a port cannot be bound, or the ports file cannot be written.
        """
        addresses = await self._listeners.start()
        if ports_file is not None:
            write_ports_file(ports_file, addresses)
        log_event(
            log,
            "listening",
            version=__version__,
            rest=addresses.urls["rest"],
            grpc=addresses.urls["grpc"],
            admin=addresses.urls["admin"],
        )
        return addresses

    def load(
        self,
        open_device: BackendFactory,
        *,
        show_progress: bool,
        probe: ProgramProbe | None = None,
    ) -> None:
        """Begin with names and device on a thread of their own; loading follows."""
        self._probe = probe
        self._progress = build_progress(self._loop.call_soon_threadsafe, is_shown=show_progress)
        keep_drawing(self._progress, self._loop.call_later)
        self._startup = Startup(
            self.config,
            post=self._loop.call_soon_threadsafe,
            open_device=open_device,
            events=self,
            probe=probe,
        )
        self.registry.is_discovering = True
        self._startup.start()

    # What the start-up thread reports, on the loop thread.

    def bundles_found(self, look: Look) -> None:
        """The names are known: whoever asks for one of them is told that it is loading."""
        at_start = startup_set(self.config, look)
        for name in look.bundles:
            if name in at_start:
                self.registry.set_loading(name)
            else:
                self.registry.set_unloaded(name, "not loaded")

    def device_opened(self, backend: Backend, look: Look) -> None:
        """The device is there: start the thread that will own it, and load."""
        self.registry.is_discovering = False
        log_event(log, "device_opened", platform=backend.platform, kind=backend.device_kind)
        weights = open_weights(self.config, backend, self._scheduler, self._clock)
        self._control.residency = self._weights = weights
        listeners, on_end = self._listeners, self._dispatch_ended
        self._dispatcher = build_dispatcher(
            self.config, backend, weights, self._scheduler, self._clock, listeners, on_end
        )
        self._dispatcher.start()
        watch_executions(self.config, self._dispatcher, self._clock, self._loop.call_later)
        bundles = startup_set(self.config, look)
        self._progress.bundles_found(len(bundles))
        post = self._loop.call_soon_threadsafe
        loader = BundleLoader(backend, self.config, self._progress, self._probe, weights, post)
        self.repository.begin(loader, bundles)
        if self.config.model_control_mode != "static":
            self._watcher = build_watcher(self.config, post, self.repository.observed)
            self.repository.look_soon = self._watcher.look_now
            self._watcher.start(look)

    def _dispatch_ended(self, fault: Exception | None) -> None:
        if fault is not None:
            self._catalog.is_live = False
            self._end(1)  # whoever supervises the process starts another

    def _startup_done(self, loaded: int, failed: int) -> None:
        """The start-up set is decided."""
        logging.getLogger("hloserve.server.model_events").setLevel(logging.NOTSET)
        spare_the_collector()
        warn_of_settings_without_model(self.config, self.registry.knows)
        log_event(log, "startup_done", models_loaded=loaded, models_failed=failed)
        if failed and self.config.strict_startup:
            log_event(log, "strict_startup", level=logging.ERROR, models_failed=failed)
            self._end(1)
        self._on_decided()

    def startup_failed(self, error: Exception) -> None:
        """Nothing can be served: no device, or no repository."""
        log_event(log, "startup_failed", level=logging.ERROR, reason=str(error))
        self._end(1)

    def _end(self, status: int) -> None:
        self._status = status
        self.stop()

    async def drain(self) -> int:
        """Finish what is in flight and close everything; returns the exit status."""
        self._catalog.is_draining = True
        self._scheduler.hold_nothing()
        self.repository.close()
        if self._watcher is not None:
            self._watcher.stop()
        await self._listeners.drain(self.config.drain_timeout_s)
        self._scheduler.stop()
        if await self._end_dispatching() and self._weights is not None:
            await asyncio.to_thread(self._weights.close)
        for threads in (self._hook_threads, self._meta_threads, self._look_threads):
            threads.close()
        self.registry.close()
        self._listeners.close()
        self.shared_memory.close()
        log_event(log, "stopped", status=self._status)
        return self._status

    async def _end_dispatching(self) -> bool:
        """Wait for the last dispatch; False when it goes on, so that its weights are in use."""
        if self._dispatcher is None:
            return True
        timeout_s = 0.0 if self._dispatcher.is_given_up else self.config.drain_timeout_s
        return await asyncio.to_thread(self._dispatcher.join, timeout_s)

    @property
    def is_busy(self) -> bool:
        """True while a thread opens the device, loads or executes: nothing can interrupt that."""
        is_starting = self._startup is not None and self._startup.is_running
        is_executing = self._dispatcher is not None and self._dispatcher.is_running
        return is_starting or is_executing or self.repository.is_loading
