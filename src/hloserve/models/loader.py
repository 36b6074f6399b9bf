"""From a bundle directory to a model that serves.

What lives here: the order of a load, and giving everything back when it fails. What does not: each
step (`hloserve.bundle`, `hloserve.models.program_plan`, `hloserve.models.hook_file`) and where the
model goes (`hloserve.models.registry`). Runs on a loader thread.

Rules.
1. Everything that can be checked is checked before anything is compiled, and all findings are
   reported at once.
2. A load that fails leaves nothing behind: no device memory, no module, no file handle.
3. Nothing here touches other models.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from hloserve.bundle.active_weights import open_bundle_weights
from hloserve.bundle.labels import Labels, load_labels
from hloserve.bundle.manifest import Manifest, load_manifest
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import (
    BackendFailed,
    BundleProblem,
    HookProblem,
    ProgramProblem,
    WeightsProblem,
)
from hloserve.engine.arena import HostArena
from hloserve.engine.backend import Backend, Executable
from hloserve.engine.device_model import DeviceModel, VariantKey
from hloserve.engine.dispatcher import Post
from hloserve.engine.programs.executable_cache import Compiled, ExecutableCache, compile_cached
from hloserve.engine.programs.notes import merge_notes
from hloserve.engine.programs.program_probe import ProbedReader, ProgramProbe
from hloserve.engine.residency.floors import Floor
from hloserve.engine.residency.placement import AllOnDevice, WeightsPlacement
from hloserve.models.hook_file import Hooks, load_hooks, missing_hooks
from hloserve.models.hook_processes import HookProcesses
from hloserve.models.meta_loader import load_meta
from hloserve.models.model import Model, metadata_of
from hloserve.models.program_plan import PlannedProgram, all_outputs, plan_programs
from hloserve.models.progress import NoProgress, Progress
from hloserve.models.warm_up import warm_up

__all__ = ["LoadOptions", "load_model", "reason_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What an operator wants of a load.

    Attributes:
        max_batch_size: cap on coalesced rows; None for none.
        batch_sizes: the sizes to compile; None for those of the bundle.
        is_largest_only: of these, compile only the largest of each variant.
        cache: where compiled programs are kept; None keeps none.
        probe: reads programs before this process does; None trusts the files that far.
        known: programs that are compiled already, by key.
        hook_timeout_s: how long the hook file may run; None for as long as it likes.
        post: brings what hook processes answer to the loop; None runs all hooks on threads.
        max_hook_processes: most of them, whatever the bundle asks for.
        placement: takes charge of the weights; None has them on the device, for good.
        floor: the least to keep of the weights; None for what suits the device.
    """

    max_batch_size: int | None = None
    batch_sizes: Sequence[int] | None = None
    is_largest_only: bool = False
    cache: ExecutableCache | None = None
    probe: ProgramProbe | None = None
    known: Mapping[str, Executable] = field(default_factory=dict)
    hook_timeout_s: float | None = None
    post: Post | None = None
    max_hook_processes: int = 0
    placement: WeightsPlacement | None = None
    floor: Floor | None = None


def load_model(
    bundle: str | Path,
    backend: Backend,
    options: LoadOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Model:
    """Read, check, compile and warm up one bundle.

    Args:
        bundle: its directory; the basename is the model's name.
        backend: the device.
        options: what the operator wants of this load.
        progress: hears what is going on, also of a failure.

    Raises:
        ManifestProblem, WeightsProblem, ProgramProblem, HookProblem: the bundle is wrong; when
            several parts are, `BundleProblem` with all findings.
        DeviceMemoryFull, BackendFailed: the device cannot hold or run it.

    Threading: any thread, several bundles at once.
    """
    bundle = Path(bundle)
    hears = progress or NoProgress()
    name = Path(os.path.abspath(bundle)).name  # of a link, not of what it points to
    hears.bundle_started(name)
    started = time.monotonic()
    try:
        model = _load(bundle, backend, options or LoadOptions(), hears)
    except Exception as error:
        hears.bundle_failed(name, reason_of(error))
        raise
    hears.bundle_ready(name, time.monotonic() - started)
    return model


def reason_of(error: Exception) -> str:
    """What the repository index says of a load that failed: the findings, without the path."""
    return "; ".join(error.findings) if isinstance(error, BundleProblem) else str(error)


def _load(bundle: Path, backend: Backend, options: LoadOptions, hears: Progress) -> Model:
    manifest = load_manifest(bundle)
    if manifest.is_meta:
        for warning in manifest.warnings:
            hears.bundle_warning(manifest.name, warning)
        return load_meta(bundle, manifest, backend.platform, options.hook_timeout_s)
    with ExitStack() as held:
        weights, planned, hooks, labels = _read_parts(bundle, manifest, backend, options, held)
        outputs, warnings = all_outputs(manifest, planned)
        warnings = [*manifest.warnings, *weights.warnings, *warnings]
        for warning in warnings:
            hears.bundle_warning(manifest.name, warning)
        processes = _start_processes(bundle, manifest, hooks, options, held)
        hears.programs_found(manifest.name, len(planned))
        compiled = _compile(manifest.name, planned, backend, options, hears)
        device = DeviceModel(
            manifest.name,
            manifest.executable_inputs,
            outputs,
            _by_variant(compiled),
            max_batch_size=options.max_batch_size,
        )
        placement = options.placement or AllOnDevice(backend)
        held.callback(placement.discard, device)
        placement.admit(device, weights, options.floor)
        warm_up(device, compiled, backend, placement, options.cache, hears)
        held.pop_all()  # the model owns them now
    model = _assemble(bundle, manifest, device, hooks, backend.platform, tuple(warnings))
    return replace(
        model,
        hook_processes=processes,
        weight_bytes=HostArena.needed_bytes(tensor.nbytes for tensor in weights.arguments),
        placement=placement,
        restored_programs=sum(made.is_restored for made in compiled.values()),
        compiled={made.key: made.executable for made in compiled.values()},
        notes=merge_notes(made.executable.notes for made in compiled.values()),
        labels=labels,
    )


def _assemble(
    bundle: Path,
    manifest: Manifest,
    device: DeviceModel,
    hooks: Hooks | None,
    platform: str,
    warnings: tuple[str, ...],
) -> Model:
    client_outputs = manifest.outputs
    if manifest.client_outputs is None and (hooks is None or hooks.postprocess is None):
        client_outputs = device.outputs  # with the results that nobody declared
    return Model(
        name=manifest.name,
        bundle=bundle,
        manifest=manifest,
        inputs=manifest.inputs,
        outputs=client_outputs,
        hooks=hooks,
        device=device,
        metadata=metadata_of(
            manifest.name, platform, manifest.inputs, client_outputs, device.batch_sizes
        ),
        warnings=warnings,
    )


def _read_parts(
    bundle: Path,
    manifest: Manifest,
    backend: Backend,
    options: LoadOptions,
    held: ExitStack,
) -> tuple[WeightsFile, list[PlannedProgram], Hooks | None, Labels]:
    """Open weights, programs and hooks, and raise once with all that is wrong with them."""
    problems: list[BundleProblem] = []
    weights = _attempt(lambda: open_bundle_weights(bundle, manifest), problems)
    if weights is not None:
        held.callback(weights.close)
    findings: list[str] = []
    arguments = None if weights is None else weights.arguments
    reader = ProbedReader(backend, options.probe, options.cache) if options.probe else backend
    planned = plan_programs(bundle, manifest, arguments, reader, findings, options.batch_sizes)
    if options.is_largest_only:
        planned = _largest(planned)
    if findings:
        problems.append(ProgramProblem(bundle, findings))
    hooks = _attempt(lambda: load_hooks(bundle, manifest.name, options.hook_timeout_s), problems)
    if hooks is not None:
        held.callback(hooks.close)
    labels = _attempt(lambda: load_labels(bundle, manifest), problems) or {}
    missing = missing_hooks(manifest, hooks)
    if missing and not any(isinstance(problem, HookProblem) for problem in problems):
        problems.append(HookProblem(bundle, missing))
    if problems or weights is None:
        raise _merged(bundle, problems)
    return weights, planned, hooks, labels


def _start_processes(
    bundle: Path, manifest: Manifest, hooks: Hooks | None, options: LoadOptions, held: ExitStack
) -> HookProcesses | None:
    """Start the processes that the bundle asks for, as far as the operator lets it."""
    count = min(manifest.hook_processes, options.max_hook_processes)
    if hooks is None or options.post is None or not count:
        return None
    processes = HookProcesses(count, bundle, manifest.name, options.post)
    held.callback(processes.close)
    processes.start(options.hook_timeout_s)
    return processes


def _attempt(step: Callable[[], T], problems: list[BundleProblem]) -> T | None:
    try:
        return step()
    except WeightsProblem as problem:
        name = Path(problem.bundle).name
        problems.append(WeightsProblem(problem.bundle, [f"{name}: {f}" for f in problem.findings]))
    except BundleProblem as problem:
        problems.append(problem)
    return None


def _merged(bundle: Path, problems: Sequence[BundleProblem]) -> BundleProblem:
    kinds = {type(problem) for problem in problems}
    kind = kinds.pop() if len(kinds) == 1 else BundleProblem
    merged = kind(bundle, [finding for problem in problems for finding in problem.findings])
    merged.__cause__ = problems[0].__cause__ or problems[0]
    return merged


def _largest(planned: Sequence[PlannedProgram]) -> list[PlannedProgram]:
    """The program of the largest batch size of each variant."""
    largest: dict[VariantKey, PlannedProgram] = {}
    for plan in planned:
        if plan.variant not in largest or plan.size > largest[plan.variant].size:
            largest[plan.variant] = plan
    return list(largest.values())


def _compile(
    name: str,
    planned: Sequence[PlannedProgram],
    backend: Backend,
    options: LoadOptions,
    hears: Progress,
) -> dict[tuple[VariantKey, int], Compiled]:
    """Compile every program, or restore it; all failures at once."""
    compiled: dict[tuple[VariantKey, int], Compiled] = {}
    findings, cause = [], None
    for plan in planned:
        started = time.monotonic()
        try:
            made = compile_cached(backend, plan.program, name, options.cache, options.known)
        except BackendFailed as error:
            findings.append(f"{plan.name}: XLA cannot compile it: {error.reason}")
            cause = error
            continue
        except ProgramProblem as problem:
            findings += [f"{plan.name}: {finding}" for finding in problem.findings]
            continue
        compiled[plan.variant, plan.size] = made
        elapsed_s = time.monotonic() - started
        hears.program_compiled(name, plan.name, elapsed_s, is_restored=made.is_restored)
    if findings:
        raise ProgramProblem(name, findings) from cause
    return compiled


def _by_variant(
    compiled: Mapping[tuple[VariantKey, int], Compiled],
) -> dict[VariantKey, dict[int, Executable]]:
    executables: dict[VariantKey, dict[int, Executable]] = {}
    for (variant, size), made in compiled.items():
        executables.setdefault(variant, {})[size] = made.executable
    return executables
