"""The run over an export list: one model after the other, and none stops the others.

What lives here: what to do with each model, doing it, and its outcome. What does not: the list
(`hloserve.export.lists.export_list`) and the report (`hloserve.export.lists.report`). One thread.

Rules.
1. A bundle is replaced in one step, by a new one that is proved. What fails leaves the old one.
2. Whatever the code of a model raises, the next model is exported. Only an interruption ends the
   run; the outcomes so far are kept.
"""

import gc
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hloserve.bundle.active_weights import open_bundle_weights
from hloserve.bundle.layout import find_programs
from hloserve.bundle.manifest import MANIFEST_FILE, Manifest, load_manifest
from hloserve.core.errors import BundleProblem, ExportProblem
from hloserve.export.lists.error_text import short_error
from hloserve.export.lists.export_list import ExportList, ListedModel
from hloserve.export.lists.handler import (
    HandlerContext,
    NotExportable,
    generic_handler,
    handler_context,
    load_handler,
)
from hloserve.export.lists.target import (
    DeferredExport,
    checked_export,
    forget_files,
    importing_from,
    load_target,
    translating_faults,
)
from hloserve.export.options import ExportProgress
from hloserve.export.report import ExportReport

__all__ = ["ListRun", "Outcome", "RunListener", "Task", "plan_run", "run_deferred"]

Verdict: TypeAlias = Literal["success", "partial", "failed", "skipped"]
Action: TypeAlias = Literal["export", "replace", "skip", "remove"]


@dataclass(frozen=True, slots=True)
class Task:
    """What to do with one model, and why, when it is not to be exported."""

    model: ListedModel
    out_dir: Path
    action: Action
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model.

    Attributes:
        model: its name.
        verdict: partial when only batch size 1 could be exported.
        reason: why it is not a success.
        batch_sizes: of the bundle.
        seconds: what it took.
        report: of the exporter, when it came to that.
    """

    model: str
    verdict: Verdict
    reason: str = ""
    batch_sizes: tuple[int, ...] = ()
    seconds: float = 0.0
    report: ExportReport | None = None


class RunListener(ExportProgress):
    """Hears how a run goes; override what is of interest."""

    def model_started(self, model: str, number: int, models: int) -> None:
        """A model is about to be exported, the one of this number, counted from 1."""

    def model_ended(self, outcome: Outcome) -> None:
        """What became of it."""

    def ended(self) -> None:
        """Nothing more is to be heard, be it for an error."""


def plan_run(
    listed: ExportList, only: Collection[str] = (), *, force: bool = False
) -> tuple[Task, ...]:
    """Decide what to do with each model, by looking at what is there; runs nobody's code.

    Args:
        listed: the list.
        only: when not empty, the models to take.
        force: export also what is there already.
    """
    models = [model for model in listed.models if not only or model.name in only]
    return tuple(_plan(model, listed.output_root / model.name, force) for model in models)


def _plan(model: ListedModel, out_dir: Path, force: bool) -> Task:
    if model.exclusion is not None:
        is_there = (out_dir / MANIFEST_FILE).is_file()
        remove = model.exclusion.remove_existing and is_there
        return Task(model, out_dir, "remove" if remove else "skip", model.exclusion.reason)
    if not (out_dir / MANIFEST_FILE).exists():
        return Task(model, out_dir, "export")
    try:
        check_complete(out_dir)
    except BundleProblem as problem:
        return Task(model, out_dir, "replace", short_error("\n".join(problem.findings)))
    if force:
        return Task(model, out_dir, "replace", "it is there, and replaced by force")
    return Task(model, out_dir, "skip", "it is there already")


def check_complete(bundle: Path) -> Manifest:
    """Read the manifest of a bundle, and see that its programs and weights are there.

    Raises:
        BundleProblem: something is missing or broken.
    """
    manifest = load_manifest(bundle)
    find_programs(bundle, manifest)
    if not manifest.is_meta:
        with open_bundle_weights(bundle, manifest):
            pass
    return manifest


@dataclass
class ListRun:
    """Does the tasks of a list in order. Each may end it by an interruption.

    Attributes:
        listed: the list.
        tasks: what to do.
        listener: hears how it goes.
        outcomes: of the tasks so far.
    """

    listed: ExportList
    tasks: Sequence[Task]
    listener: RunListener
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> None:
        """Do the tasks.

        Raises:
            KeyboardInterrupt: as it came; `outcomes` holds what was done.
        """
        for number, task in enumerate(self.tasks, start=1):
            start = time.monotonic()
            self.listener.model_started(task.model.name, number, len(self.tasks))
            verdict, reason, report = self._try_task(task)
            sizes: tuple[int, ...] = ()
            if verdict in ("success", "partial"):
                try:
                    sizes = check_complete(task.out_dir).compiled_batch_sizes
                except BundleProblem as problem:
                    verdict = "failed"
                    reason = f"no whole bundle was left: {'; '.join(problem.findings)}"
            seconds = time.monotonic() - start
            outcome = Outcome(task.model.name, verdict, reason, sizes, seconds, report)
            self.outcomes.append(outcome)
            self.listener.model_ended(outcome)
            _release_memory()

    def _try_task(self, task: Task) -> tuple[Verdict, str, ExportReport | None]:
        try:
            if task.action == "remove":
                _remove(task.out_dir)
                return "skipped", f"{task.reason}; its bundle was removed", None
            if task.action == "skip":
                return "skipped", task.reason, None
            return self._export(task)
        except NotExportable as reason:
            return "skipped", str(reason), None
        # A model's code may raise anything: that is the edge of one model, and the report has it.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return "failed", short_error(error), None

    def _export(self, task: Task) -> tuple[Verdict, str, ExportReport | None]:
        model, overwrite = task.model, task.action == "replace"
        handler_dirs = [model.handler.parent] if model.handler else []
        with importing_from(*handler_dirs, self.listed.base):
            if model.target is not None:
                export: DeferredExport | None = load_target(
                    model.target, self.listed.base, model.name
                )
            else:
                context = handler_context(
                    model, task.out_dir, overwrite=overwrite, progress=self.listener
                )
                export = _ask_handler(context, model.handler)
            if export is None:
                return "success", "", None
            options = {
                **(model.options if model.target is not None else {}),
                "dir": task.out_dir,
                "name": model.name,
                "overwrite": overwrite,
                "progress": self.listener,
            }
            return _export_or_one(export, options, model.name)


def _ask_handler(context: HandlerContext, file: Path | None) -> DeferredExport | None:
    """What the handler wants exported; None when it wrote the bundle itself."""
    if file is None:
        return generic_handler(context)
    handler = load_handler(file, context.model)
    who = f"handler {str(file)!r}"
    with translating_faults(context.model, who):
        returned = handler(context)
    if isinstance(returned, list | tuple):
        return None
    return checked_export(returned, context.model, who)


def _export_or_one(
    export: DeferredExport, options: Mapping[str, Any], model: str
) -> tuple[Verdict, str, ExportReport | None]:
    """Export with all batch sizes, else with size 1 alone."""
    try:
        return "success", "", run_deferred(export, options, model)
    except ExportProblem as problem:
        if _is_single(export, options):
            raise
        reason = short_error(problem)
    try:
        report = run_deferred(export, {**options, "batch_sizes": [1]}, model)
    except ExportProblem as problem:
        alone = short_error(problem)
        reason = reason if reason == alone else f"{reason}\nand with batch size 1: {alone}"
        raise ExportProblem(model, reason) from problem
    return "partial", f"only batch size 1: {reason}", report


def _is_single(export: DeferredExport, options: Mapping[str, Any]) -> bool:
    """True when nothing is left to be tried with fewer batch sizes."""
    own: Mapping[str, Any] = getattr(export, "keywords", {})
    sizes = {**own, **options}.get("batch_sizes")
    return sizes is None or (sizes != "dynamic" and list(sizes) == [1])


def run_deferred(export: DeferredExport, options: Mapping[str, Any], model: str) -> ExportReport:
    """Call a deferred export with the options that were missing.

    Raises:
        ExportProblem: the export failed, or it is none.
    """
    with translating_faults(model, "the export"):
        report = export(**options)
    if not isinstance(report, ExportReport):
        kind = type(report).__qualname__
        raise ExportProblem(
            model, f"the export returned a value of type {kind}, expected the exporter's report"
        )
    return report


def _remove(bundle: Path) -> None:
    if bundle.is_symlink():
        bundle.unlink()
    else:
        shutil.rmtree(bundle)


def _release_memory() -> None:
    """Forget the model before the next one: compilers keep what they compiled."""
    forget_files()
    gc.collect()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
