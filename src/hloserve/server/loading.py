"""Loading one bundle as a worker is configured, on a load thread.

What lives here: a load between two looks at the bundle's files, so that nothing half-written is
served. What does not: reading and compiling (`hloserve.models.loader`), what a load leads to
(`hloserve.server.repository`).
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hloserve.bundle.fingerprint import CACHE_DIRECTORY, take_fingerprint
from hloserve.bundle.migration import migrate_bundle
from hloserve.config.schema import WorkerConfig
from hloserve.core.errors import BundleProblem, HloserveError
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend, Executable
from hloserve.engine.dispatcher import Post
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.engine.programs.program_probe import ProgramProbe
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.placement import WeightsPlacement
from hloserve.models.loader import LoadOptions, load_model
from hloserve.models.model import Model
from hloserve.models.progress import Progress
from hloserve.models.repository_look import Found

__all__ = ["BundleChanged", "BundleLoader", "Loaded"]

log = logging.getLogger(__name__)


class BundleChanged(HloserveError):
    """The files of a bundle changed while they were read; a later look finds what they became."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load that went well.

    Attributes:
        found: the state of the files that were read.
        model: warm, not yet scheduled.
        seconds: what the load took.
    """

    found: Found
    model: Model
    seconds: float


class BundleLoader:
    """Loads bundles for one device.

    Args:
        backend: the device.
        config: whose settings for single models apply.
        progress: hears the details.
        probe: reads programs before this process does; None trusts the files that far.
        placement: takes charge of the weights; None has them on the device, for good.
        post: brings what hook processes answer to the loop; None runs all hooks on threads.

    Threading: load threads call it, several at once.
    """

    def __init__(
        self,
        backend: Backend,
        config: WorkerConfig,
        progress: Progress,
        probe: ProgramProbe | None = None,
        placement: WeightsPlacement | None = None,
        post: Post | None = None,
    ) -> None:
        self.backend = backend
        self._config = config
        if config.runtime.executable_cache_dir:
            with suppress(OSError):  # told of when something is to be kept there
                Path(config.runtime.executable_cache_dir).mkdir(parents=True, exist_ok=True)
        self._progress = progress
        self._probe = probe
        self._post = post
        self._placement = placement

    def prepare(self) -> None:
        """Start what the next load will need, because there will be one soon."""
        if self._probe is not None:
            self._probe.start()

    def rest(self) -> None:
        """End what no load needs."""
        if self._probe is not None:
            self._probe.close()

    def renamed(self, model: Model, command: Callable[[Callable[[], None]], object]) -> None:
        """Let what is configured for a model's new name hold for its weights.

        Args:
            model: under its new name.
            command: runs something on the dispatch thread.

        Threading: loop thread.
        """
        placement, floor = self._placement, self._floor_of(model.name)

        def run() -> None:
            assert placement is not None, "only a placement has floors"
            try:
                placement.renamed(model.device, floor)
            except HloserveError as error:
                log_event(
                    log, "floor_not_applied", level=logging.WARNING, model=model.name,
                    reason=str(error), hint="its weights are kept as they were under the old name",
                )  # fmt: skip

        if placement is not None and not model.is_meta:
            command(run)

    def __call__(self, found: Found, known: Mapping[str, Executable] | None = None) -> Loaded:
        """Load the bundle that was found.

        Args:
            found: where it is.
            known: programs that are compiled already, by key: those of the model before it.

        Raises:
            BundleProblem: it is wrong, or may not have its name.
            BundleChanged: its files did not stay as they were.
            DeviceMemoryFull, BackendFailed: the device cannot hold or run it.
        """
        bundle = found.path
        if found.problem:
            raise BundleProblem(bundle, found.problem)
        started = time.monotonic()
        self._migrate_weights(bundle)
        before = take_fingerprint(bundle)  # what the migration changed is no redeployment
        if before is None:
            raise BundleProblem(bundle, "the directory is gone")
        try:
            model = load_model(
                bundle,
                self.backend,
                self._options(bundle, known or {}),
                progress=self._progress,
            )
        except HloserveError as error:
            if take_fingerprint(bundle) != before:
                raise BundleChanged(f"its files changed while they were read ({error})") from error
            raise
        if take_fingerprint(bundle) != before:
            model.free()
            raise BundleChanged("its files changed while they were read")
        return Loaded(Found(bundle, before), model, time.monotonic() - started)

    def _migrate_weights(self, bundle: Path) -> None:
        """Bring legacy weights into program order, if that is wanted; a failure is logged only."""
        mode = self._config.runtime.weights_migration
        if mode == "off":
            return
        result = migrate_bundle(
            bundle,
            mode,
            on_step=lambda step: log_event(log, "migrating_weights", model=bundle.name, step=step),
        )
        if result.outcome == "failed":
            log_event(
                log, "weights_not_migrated", level=logging.WARNING, model=bundle.name, mode=mode,
                reason=result.reason, hint="the bundle loads as it was",
            )  # fmt: skip
        elif result.steps:
            seconds = round(result.seconds, 3)
            log_event(log, "weights_migrated", model=bundle.name, mode=mode, seconds=seconds)

    def _floor_of(self, name: str) -> Floor | None:
        settings = self._config.scheduler.models.get(name)
        return Floor(settings.residency) if settings and settings.residency else None

    def _options(self, bundle: Path, known: Mapping[str, Executable]) -> LoadOptions:
        runtime = self._config.runtime
        cache = None
        if runtime.executable_cache:
            elsewhere = runtime.executable_cache_dir
            directory = Path(elsewhere).absolute() if elsewhere else bundle / CACHE_DIRECTORY
            cache = ExecutableCache(directory, runtime.executable_cache_bytes)
        settings = self._config.scheduler.models.get(bundle.name)
        return LoadOptions(
            max_batch_size=settings.max_batch_size if settings else None,
            batch_sizes=settings.batch_sizes if settings else None,
            is_largest_only=runtime.batch_sizes == "largest",
            cache=cache,
            probe=self._probe,
            known=known,
            hook_timeout_s=self._config.hooks.load_timeout_seconds,
            post=self._post,
            max_hook_processes=self._config.hooks.max_processes,
            placement=self._placement,
            floor=self._floor_of(bundle.name),
        )
