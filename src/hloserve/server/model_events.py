"""What became of bundles, told to the log and to metrics.

What lives here: log events and counters of loads, renames and removals. What does not: making them
happen (`hloserve.server.repository`). Loop thread only, but for `model_loading`.
"""

import logging
from collections.abc import Callable, Mapping

from typing_extensions import override

from hloserve.core.logging import log_event
from hloserve.models.model import Model
from hloserve.server.metrics import RequestMetrics
from hloserve.server.repository_events import RepositoryEvents

__all__ = ["ModelEvents"]

log = logging.getLogger(__name__)


class ModelEvents(RepositoryEvents):
    """Logs and counts.

    Args:
        metrics: whose counters follow renamed models.
        on_startup_done: called with how many bundles of the start-up set were loaded and failed.

    Attributes:
        counts: what happened how often, by the word that the metric uses.
    """

    def __init__(
        self, metrics: RequestMetrics, on_startup_done: Callable[[int, int], object]
    ) -> None:
        self.counts = {"load": 0, "reload": 0, "fail": 0, "rename": 0, "remove": 0}
        self._metrics = metrics
        self._on_startup_done = on_startup_done

    @override
    def model_loading(self, name: str) -> None:
        # The last line of the log, if its hook file ends the process.
        log_event(log, "model_loading", model=name)

    @override
    def model_slow(self, name: str, seconds: float) -> None:
        log_event(
            log, "model_slow_to_load", level=logging.WARNING, model=name, seconds=seconds,
            hint="its programs take long to compile, or its model.py does not end",
        )  # fmt: skip

    @override
    def model_loaded(self, model: Model, seconds: float, *, is_reload: bool) -> None:
        self.counts["reload" if is_reload else "load"] += 1
        for warning in model.warnings:
            log_event(
                log, "model_warning", level=logging.WARNING, model=model.name, warning=warning
            )
        device = model.device
        log_event(
            log,
            "model_reloaded" if is_reload else "model_loaded",
            model=model.name,
            seconds=round(seconds, 3),
            inputs=[str(spec) for spec in model.inputs],
            outputs=[str(spec) for spec in model.outputs],
            sizes=sorted({size for sizes in device.executables.values() for size in sizes}),
            programs=sum(len(sizes) for sizes in device.executables.values()),
            restored=model.restored_programs,
            weights_bytes=model.weight_bytes,
            numerics=model.notes.numerics,
            rewrites=dict(model.notes.rewrites),
        )
        if model.notes.ungoverned:
            log_event(
                log, "numerics_ungoverned", model=model.name,
                operations=list(model.notes.ungoverned),
            )  # fmt: skip

    @override
    def model_failed(self, name: str, error: Exception, *, is_serving: bool) -> None:
        self.counts["fail"] += 1
        log_event(
            log,
            "model_failed",
            level=logging.ERROR,
            model=name,
            old_one_serves=is_serving,
            findings=getattr(error, "findings", [str(error)]),
        )

    @override
    def models_renamed(self, owners: Mapping[str, str]) -> None:
        self.counts["rename"] += len(owners)
        self._metrics.rename(owners)
        for new, old in owners.items():
            log_event(log, "model_renamed", model=new, old=old)

    @override
    def model_removed(self, name: str, reason: str) -> None:
        self.counts["remove"] += 1
        log_event(log, "model_removed", model=name, reason=reason)

    @override
    def sub_model_missing(self, meta: str, model: str, reason: str) -> None:
        log_event(
            log, "sub_model_missing", level=logging.WARNING, model=meta, calls=model, reason=reason,
            hint="calls to it fail; serve it under that name, or change meta.calls",
        )  # fmt: skip

    @override
    def startup_done(self, loaded: int, failed: int) -> None:
        self._on_startup_done(loaded, failed)
