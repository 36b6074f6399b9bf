"""The start-up set: open the device, then load every bundle, on one thread of its own.

What lives here: which bundles, in which order, and what is reported of each. What does not: loading
one (`models.loader`) and what happens to its outcome (`server.worker`, on the loop thread).

Rule: one broken bundle never stops the others. Only a missing device or repository ends the start.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from hloserve.bundle.layout import discover_bundles
from hloserve.bundle.manifest import MANIFEST_FILE
from hloserve.config.schema import RuntimeConfig, WorkerConfig
from hloserve.core.errors import BackendFailed, HloserveError
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend
from hloserve.models.loader import load_model, reason_of
from hloserve.models.model import Model
from hloserve.models.progress import Progress

__all__ = ["BackendFactory", "Startup", "StartupEvents", "open_backend"]

log = logging.getLogger(__name__)

BackendFactory: TypeAlias = Callable[[RuntimeConfig], Backend]


def open_backend(config: RuntimeConfig) -> Backend:
    """Open the configured device through PJRT.

    Raises:
        HloserveError: there is no such device, or the extra is not installed.
    """
    from hloserve.engine.xla_backend import XlaBackend  # costs half a second: after the ports

    try:
        return XlaBackend(
            config.backend,
            config.device_ordinal,
            mem_fraction=config.mem_fraction,
            preallocate=config.preallocate,
        )
    except HloserveError as error:
        if config.backend == "cpu" or not config.allow_cpu_fallback:
            raise
        log_event(
            logging.getLogger("hloserve.server"),  # also seen where the start is drawn
            "device_fallback",
            level=logging.WARNING,
            wanted=config.backend,
            used="cpu",
            reason=str(error),
            setting="runtime.allow_cpu_fallback",
        )
        return XlaBackend("cpu", 0)


class StartupEvents(Protocol):
    """Hears how the start goes. Every call is on the loop thread, in this order of things."""

    def device_opened(self, backend: Backend) -> None:
        """The device is there."""
        ...

    def model_found(self, name: str) -> None:
        """A bundle of the start-up set; all are found before the first is loaded."""
        ...

    def model_loaded(self, model: Model) -> None:
        """A model that may serve from now on."""
        ...

    def model_failed(self, name: str, reason: str) -> None:
        """A bundle that cannot be served."""
        ...

    def startup_done(self, loaded: int, failed: int) -> None:
        """The start-up set is decided."""
        ...

    def startup_failed(self, error: Exception) -> None:
        """Nothing can be served."""
        ...


class Startup:
    """Loads the start-up set.

    Args:
        post: `loop.call_soon_threadsafe`.
        events: hears the outcomes on the loop thread.
        progress: hears the details, on the start-up thread.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        post: Callable[..., object],
        open_device: BackendFactory,
        progress: Progress,
        events: StartupEvents,
    ) -> None:
        self._config = config
        self._post_to_loop = post
        self._open_device = open_device
        self._progress = progress
        self._events = events
        self._thread = threading.Thread(target=self._run, name="startup", daemon=True)

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True until everything is loaded or has failed."""
        return self._thread.is_alive()

    def _post(self, callback: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has closed: the process is ending
            self._post_to_loop(callback, *arguments)

    def _run(self) -> None:
        try:
            self._load_all()
        except HloserveError as error:
            self._post(self._events.startup_failed, error)
        except Exception as error:
            log.exception("startup_crashed")
            self._post(self._events.startup_failed, error)

    def _load_all(self) -> None:
        # Absolute from the start: a hook file may change the working directory.
        roots = [Path(root).absolute() for root in self._config.model_dirs]
        bundles = [
            bundle
            for bundle in discover_bundles(roots, self._config.models_include)
            if self._has_sendable_name(bundle)
        ]
        if not bundles:
            _warn_of_no_bundles(roots)
        for bundle in bundles:
            self._post(self._events.model_found, bundle.name)
        backend = self._open_device(self._config.runtime)
        self._post(self._events.device_opened, backend)
        failed = sum(not self._load(bundle, backend) for bundle in bundles)
        self._post(self._events.startup_done, len(bundles) - failed, failed)

    def _has_sendable_name(self, bundle: Path) -> bool:
        """False for a name that no protocol can carry; it is listed with its bytes replaced."""
        name = os.fsencode(bundle.name).decode("utf-8", "replace")
        if name != bundle.name:
            reason = "the directory's name is not UTF-8, so no client could ask for it; rename it"
            self._post(self._events.model_failed, name, reason)
            log_event(log, "model_failed", level=logging.ERROR, model=name, findings=[reason])
        return name == bundle.name

    def _load(self, bundle: Path, backend: Backend) -> bool:
        started = time.monotonic()
        limits = self._config.scheduler.models.get(bundle.name)
        try:
            model = load_model(
                bundle,
                backend,
                max_batch_size=limits.max_batch_size if limits else None,
                batch_sizes=limits.batch_sizes if limits else None,
                progress=self._progress,
            )
        except Exception as error:
            if not isinstance(error, HloserveError):
                log.exception("load_crashed")
                error = BackendFailed("load", bundle.name, f"{type(error).__name__}: {error}")
            self._post(self._events.model_failed, bundle.name, reason_of(error))
            log_event(
                log,
                "model_failed",
                level=logging.ERROR,
                model=bundle.name,
                findings=getattr(error, "findings", [str(error)]),
            )
            return False
        self._post(self._events.model_loaded, model)
        _log_loaded(model, time.monotonic() - started)
        return True


def _warn_of_no_bundles(roots: Sequence[Path]) -> None:
    hint = "a bundle is a sub-directory with a manifest.yaml"
    for root in roots:
        if (root / MANIFEST_FILE).exists():
            hint = f"{root} is a bundle itself: serve the directory that holds it, {root.parent}"
    log_event(
        logging.getLogger("hloserve.server"),  # also seen where the start is drawn
        "no_bundles",
        level=logging.WARNING,
        repositories=[str(root) for root in roots],
        hint=hint,
    )


def _log_loaded(model: Model, seconds: float) -> None:
    for warning in model.warnings:
        log_event(log, "model_warning", level=logging.WARNING, model=model.name, warning=warning)
    device = model.device
    log_event(
        log,
        "model_loaded",
        model=model.name,
        seconds=round(seconds, 3),
        inputs=[str(spec) for spec in model.inputs],
        outputs=[str(spec) for spec in model.outputs],
        sizes=sorted({size for sizes in device.executables.values() for size in sizes}),
        weights_bytes=model.arena.capacity_bytes,
    )
