"""Everything that is wrong with a bundle, whoever wrote it, as findings.

What lives here: which checks are made, in which order, and what each could not look at. What does
not: the checks themselves, which are the loader's own (`hloserve.models.program_plan`,
`hloserve.models.hook_file`, `hloserve.bundle`), those beyond it (`hloserve.bundle.structure`,
`hloserve.engine.programs.portability`), and printing (`hloserve.cli.check`). One thread per bundle.

Rules.
1. What a loader would refuse is an error here, with the loader's words; the rest are warnings.
2. Nothing is raised for a bundle, however broken or hostile; what could not be checked is said.
3. Programs are run and hook files executed only when asked for: both are the author's code.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hloserve.bundle.active_weights import open_bundle_weights
from hloserve.bundle.findings import Finding, errors_at, warnings_at
from hloserve.bundle.labels import load_labels
from hloserve.bundle.layout import ProgramFile, find_programs, weights_path
from hloserve.bundle.manifest import HOOK_FILE, MANIFEST_FILE, Manifest, load_manifest
from hloserve.bundle.structure import (
    check_calls,
    check_files,
    check_name,
    check_provenance,
    check_version,
    misnamed_manifests,
)
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import (
    BundleProblem,
    HookProblem,
    ManifestProblem,
    MissingExtra,
    ProgramProblem,
    UntestedVersion,
    WeightsProblem,
)
from hloserve.engine.backend import Backend
from hloserve.models.bundle_run import ProgramRun, run_programs
from hloserve.models.hook_file import load_hooks, load_meta_hook, missing_hooks
from hloserve.models.program_plan import PlannedProgram, all_outputs, differing_results
from hloserve.models.program_reading import ProgramFacts, ProgramReading

__all__ = ["PARTS", "BundleReport", "check_bundle"]

PARTS = ("manifest", "files", "weights", "programs", "hooks", "run")
"""What is checked, in this order."""

_MANIFEST_FIRST = "the manifest has errors"


@dataclass
class BundleReport:
    """What a check found.

    Attributes:
        path: the bundle as it was given.
        findings: errors and warnings, in the order of `PARTS`.
        checked: the parts that were looked at.
        not_checked: parts that should have been, each with the reason why they were not.
        programs: what is known of the program files.
        weights_bytes: of all weight arguments; None when they could not be read.
        runs: the programs that were run.
    """

    path: Path
    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)
    programs: list[ProgramFacts] = field(default_factory=list)
    weights_bytes: int | None = None
    runs: list[ProgramRun] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """The findings that keep the bundle from being served as declared."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The other findings."""
        return [finding for finding in self.findings if finding.severity == "warning"]

    def __post_init__(self) -> None:
        self.path = Path(self.path)


@dataclass(frozen=True, slots=True)
class _Options:
    runs_hooks: bool
    open_backend: Callable[[], Backend] | None
    probe: Callable[[Path], str] | None


def check_bundle(
    bundle: str | Path,
    *,
    runs_hooks: bool = True,
    open_backend: Callable[[], Backend] | None = None,
    probe: Callable[[Path], str] | None = None,
) -> BundleReport:
    """Check a bundle directory.

    Args:
        bundle: the directory; whoever wrote it.
        runs_hooks: execute its hook file, as a server would.
        open_backend: opens the device on which each program is run once; None runs none.
        probe: says why a program file must not be read in this process, or nothing
            (`hloserve.engine.programs.program_probe`); None trusts the files that far.

    Returns:
        The report; nothing is raised for what is wrong with the bundle.
    """
    report = BundleReport(Path(bundle))
    report.findings += check_name(report.path)
    try:
        manifest = load_manifest(bundle)
    except ManifestProblem as problem:
        report.checked.append("manifest")
        report.findings += errors_at(MANIFEST_FILE, problem.findings)
        report.findings += misnamed_manifests(report.path)
        report.not_checked |= dict.fromkeys(PARTS[1:-1], _MANIFEST_FIRST)
        return report
    with ExitStack() as held:
        _check_parts(report, manifest, _Options(runs_hooks, open_backend, probe), held)
    return report


def _check_parts(
    report: BundleReport,
    manifest: Manifest,
    options: _Options,
    held: ExitStack,
) -> None:
    report.checked += ["manifest", "files"]
    report.findings += warnings_at(MANIFEST_FILE, manifest.warnings)
    report.findings += check_calls(report.path, manifest)
    report.findings += check_provenance(report.path, manifest)
    report.findings += _check_labels(report, manifest)
    files = _find_files(report, manifest)
    report.findings += check_files(report.path, manifest, files)
    weights = _open_weights(report, manifest)
    if weights is not None:
        held.callback(weights.close)
    report.findings += check_version(manifest, weights)
    planned = _check_programs(report, manifest, files, weights, options.probe)
    if options.runs_hooks:
        _check_hooks(report, manifest)
    if options.open_backend is not None and not manifest.is_meta:
        _run(report, manifest, planned, weights, options.open_backend)


def _find_files(report: BundleReport, manifest: Manifest) -> Sequence[ProgramFile]:
    try:
        return find_programs(report.path, manifest)
    except ProgramProblem as problem:
        report.findings += errors_at(".", problem.findings)
        return ()


def _check_labels(report: BundleReport, manifest: Manifest) -> list[Finding]:
    try:
        load_labels(report.path, manifest)
    except BundleProblem as problem:
        return errors_at(MANIFEST_FILE, problem.findings)
    return []


def _open_weights(report: BundleReport, manifest: Manifest) -> WeightsFile | None:
    path = weights_path(report.path, manifest)
    if manifest.is_meta and not path.exists():
        return None
    report.checked.append("weights")
    try:
        weights = open_bundle_weights(report.path, manifest)
    except WeightsProblem as problem:
        report.findings += errors_at(Path(problem.bundle).name, problem.findings)
        return None
    report.weights_bytes = weights.nbytes
    report.findings += warnings_at(weights.path.name, weights.warnings)
    return weights


def _check_programs(
    report: BundleReport,
    manifest: Manifest,
    files: Sequence[ProgramFile],
    weights: WeightsFile | None,
    probe: Callable[[Path], str] | None,
) -> list[PlannedProgram]:
    if manifest.is_meta:
        return []
    if not files:
        report.not_checked["programs"] = "there are none to be read"
        return []
    try:
        reading = ProgramReading(manifest, None if weights is None else weights.arguments)
    except (MissingExtra, UntestedVersion) as missing:
        report.not_checked["programs"] = str(missing)
        return []
    report.checked.append("programs")
    for file in files:
        why_not = probe(file.path) if probe else ""
        if why_not:
            report.findings += errors_at(file.path.name, [why_not])
        else:
            _guarded(report, file.path.name, partial(_read, report, reading, file))
    report.programs = reading.facts
    report.findings += errors_at(".", differing_results(reading.planned, manifest))
    _, warnings = all_outputs(manifest, reading.planned)
    report.findings += warnings_at(MANIFEST_FILE, warnings)
    return reading.planned


def _read(report: BundleReport, reading: ProgramReading, file: ProgramFile) -> None:
    report.findings += reading.read(file)


def _check_hooks(report: BundleReport, manifest: Manifest) -> None:
    report.checked.append("hooks")
    try:
        # What a hook file prints must not end up in the middle of a report.
        with redirect_stdout(sys.stderr):
            load = load_meta_hook if manifest.is_meta else load_hooks
            hooks = load(report.path, manifest.name)
    except HookProblem as problem:
        report.findings += errors_at(HOOK_FILE, problem.findings)
        return
    if not manifest.is_meta:
        report.findings += errors_at(MANIFEST_FILE, missing_hooks(manifest, hooks))
    if hooks is not None:
        hooks.close()


def _run(
    report: BundleReport,
    manifest: Manifest,
    planned: Sequence[PlannedProgram],
    weights: WeightsFile | None,
    open_backend: Callable[[], Backend],
) -> None:
    if weights is None or not planned or any(f.place != HOOK_FILE for f in report.errors):
        reason = report.not_checked.get("programs", "there are errors")
        report.not_checked["run"] = reason
        return
    try:
        backend = open_backend()
    except (MissingExtra, UntestedVersion) as missing:
        report.not_checked["run"] = str(missing)
        return
    report.checked.append("run")
    outputs, _ = all_outputs(manifest, planned)

    def run() -> None:
        inputs = manifest.executable_inputs
        report.runs = run_programs(planned, inputs, outputs, weights, backend, report.findings)

    _guarded(report, ".", run)


def _guarded(report: BundleReport, place: str, check: Callable[[], object]) -> None:
    """Run a check that a hostile file could exhaust."""
    try:
        check()
    except (RecursionError, MemoryError) as error:
        text = f"too large or too deeply nested to be read ({type(error).__name__})"
        report.findings += errors_at(place, [text])
    except BundleProblem as problem:
        report.findings += errors_at(place, problem.findings)
