"""What a start needs before anything can be loaded, on a thread of its own: names and the device.

What lives here: the first look at the repositories, and opening the device. What does not: loading
(`server.repository`).

Rule: only a missing device or repository ends the start. What is wrong with a bundle is its own.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hloserve.bundle.manifest import MANIFEST_FILE
from hloserve.config.schema import RuntimeConfig, WorkerConfig
from hloserve.core.errors import BundleProblem, ConfigProblem, HloserveError
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend
from hloserve.engine.programs.program_probe import ProgramProbe
from hloserve.models.repository_look import Found, Look, look_at

if TYPE_CHECKING:
    from hloserve.engine.programs.compiling import CompileSettings

__all__ = [
    "BackendFactory",
    "Startup",
    "StartupEvents",
    "open_backend",
    "repository_roots",
    "startup_set",
]

log = logging.getLogger(__name__)

BackendFactory: TypeAlias = Callable[[RuntimeConfig], Backend]


def open_backend(config: RuntimeConfig) -> Backend:
    """Open the configured device through PJRT.

    Raises:
        HloserveError: there is no such device, or the extra is not installed.
    """
    from hloserve.engine.xla_backend import XlaBackend  # costs half a second: after the ports

    compiling = _compile_settings(config)
    runs_ahead = config.dispatches_in_flight not in ("auto", 1)  # on the CPU it is a choice
    cpu_threads = None if config.cpu_threads == "auto" else config.cpu_threads
    open_xla = partial(
        XlaBackend, runs_ahead=runs_ahead, cpu_threads=cpu_threads, compiling=compiling
    )
    try:
        return open_xla(
            config.backend,
            config.device_ordinal,
            mem_fraction=config.mem_fraction,
            preallocate=config.preallocate,
        )
    except HloserveError as error:
        if config.backend == "cpu" or not config.allow_cpu_fallback or _is_of_settings(error):
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
        return open_xla("cpu", 0)


def _is_of_settings(error: HloserveError) -> bool:
    """True when the device is there, and cannot do what is asked of it: another would hide that."""
    return isinstance(error, ConfigProblem) and error.at in (
        "runtime.numerics",
        "runtime.compile_options",
    )


def _compile_settings(config: RuntimeConfig) -> "CompileSettings":
    from hloserve.engine.programs.compiling import CompileSettings  # as above

    cache = config.autotune_cache_dir if config.autotune_cache else ""
    if config.autotune_cache and not cache:
        log_event(
            logging.getLogger("hloserve.server"),
            "autotune_cache_off",
            level=logging.WARNING,
            reason="there is no directory for it",
            setting="runtime.autotune_cache_dir",
        )
    return CompileSettings(
        numerics=config.numerics,
        has_rewrites=config.program_rewrites,
        has_autotuning=config.autotune,
        autotune_cache_dir=cache,
        options=config.compile_options,
    )


class StartupEvents(Protocol):
    """Hears how the start goes. Every call is on the loop thread, in this order."""

    def bundles_found(self, look: Look) -> None:
        """The names are known."""
        ...

    def device_opened(self, backend: Backend, look: Look) -> None:
        """The device is there, so loading can begin."""
        ...

    def startup_failed(self, error: Exception) -> None:
        """Nothing can be served."""
        ...


class Startup:
    """Looks at the repositories and opens the device.

    Args:
        post: `loop.call_soon_threadsafe`.
        events: hears the outcome on the loop thread.
        probe: what loading will need, to be started early.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        post: Callable[..., object],
        open_device: BackendFactory,
        events: StartupEvents,
        probe: ProgramProbe | None = None,
    ) -> None:
        self._probe = probe
        self._config = config
        self._post_to_loop = post
        self._open_device = open_device
        self._events = events
        self._thread = threading.Thread(target=self._run, name="startup", daemon=True)

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True until the device is there or the start has failed."""
        return self._thread.is_alive()

    def _post(self, callback: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has closed: the process is ending
            self._post_to_loop(callback, *arguments)

    def _run(self) -> None:
        try:
            self._prepare()
        except HloserveError as error:
            self._post(self._events.startup_failed, error)
        except Exception as error:
            log.exception("startup_crashed")
            self._post(self._events.startup_failed, error)

    def _prepare(self) -> None:
        roots = repository_roots(self._config)
        look = look_at(roots, self._config.models_include)
        if look.unreadable:
            findings = [
                f"model repository {str(r)!r} cannot be read: {why}"
                for r, why in look.unreadable.items()
            ]
            raise BundleProblem(", ".join(map(str, roots)), findings)
        _warn_of_names(look, roots, self._config)
        self._post(self._events.bundles_found, look)
        if look.bundles and self._probe is not None:
            self._probe.start()  # it gets ready while the device does
        backend = self._open_device(self._config.runtime)
        self._post(self._events.device_opened, backend, look)


def repository_roots(config: WorkerConfig) -> list[Path]:
    """The repositories, absolute: a hook file may change the working directory."""
    return [Path(root).absolute() for root in config.model_dirs]


def startup_set(config: WorkerConfig, look: Look) -> Mapping[str, Found]:
    """The bundles to load at start."""
    names = config.startup_models
    if config.model_control_mode != "explicit" or "*" in names:
        return look.bundles
    return {name: found for name, found in look.bundles.items() if name in names}


def _warn_of_names(look: Look, roots: Sequence[Path], config: WorkerConfig) -> None:
    server_log = logging.getLogger("hloserve.server")  # also seen where the start is drawn
    wanted = {"models_include": config.models_include}
    if config.model_control_mode == "explicit":
        wanted["startup_models"] = tuple(name for name in config.startup_models if name != "*")
    for setting, names in wanted.items():
        missing = [name for name in names if name not in look.bundles]
        if missing:
            log_event(
                server_log, "models_missing", level=logging.WARNING, models=missing,
                setting=setting,
            )  # fmt: skip
    if not look.bundles:
        hint = "a bundle is a sub-directory with a manifest.yaml"
        for root in roots:
            if (root / MANIFEST_FILE).exists():
                parent = root.parent
                hint = f"{root} is a bundle itself: serve the directory that holds it, {parent}"
        log_event(
            server_log, "no_bundles", level=logging.WARNING,
            repositories=[str(root) for root in roots], hint=hint,
        )  # fmt: skip


def warn_of_settings_without_model(config: WorkerConfig, knows: Callable[[str], bool]) -> None:
    """Tell which settings are for names that no bundle has: misspelt, or of bundles to come.

    Args:
        config: the settings.
        knows: says whether a bundle of that name was found, loaded or not.
    """
    given = {
        "scheduler.models": config.scheduler.models,
        "metas.exposed_models": [name for name in config.metas.exposed_models if name != "*"],
    }
    for setting, names in given.items():
        if missing := sorted(name for name in names if not knows(name)):
            log_event(
                log, "settings_without_model", level=logging.WARNING, setting=setting,
                models=missing,
                hint="no bundle has these names: correct them, unless such bundles come later",
            )  # fmt: skip
