"""From a source and its options to a bundle: the one way, whatever the framework.

What lives here: the order of things, and what goes into the provenance. What does not: each of the
things (`hloserve.export.settings`, `programs`, `interface`, `artifact`, `proof`, and
`hloserve.bundle.writing`).

Rules.
1. Nothing is written before the proof; a failure leaves neither file nor directory behind.
2. Nothing takes its place before it has passed the check of `hloserve check`, hooks included.
3. All that an author can mend is an `ExportProblem`. One thread.
"""

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import hloserve
from hloserve.bundle.findings import listing
from hloserve.bundle.layout import program_name
from hloserve.bundle.writing import write_bundle
from hloserve.core.errors import ExportProblem, ProofFailed
from hloserve.export.artifact import OLDEST_TARGET, Artifact, serialise_program
from hloserve.export.destination import check_space
from hloserve.export.interface import Interface, declare_interface
from hloserve.export.options import ExportOptions
from hloserve.export.programs import ProgramSet, trace_programs
from hloserve.export.proof.prove import Candidate, Proof, ProofSettings, prove
from hloserve.export.report import ExportReport, output_proofs
from hloserve.export.settings import Settings, resolve_settings
from hloserve.export.source import Source
from hloserve.models.bundle_check import check_bundle

__all__ = ["export_source"]


def export_source(source: Source, options: ExportOptions) -> ExportReport:
    """Export a model: trace, clean, prove, write.

    Args:
        source: the model.
        options: as the exporters take them.

    Raises:
        ExportProblem: the model cannot or must not be exported; all findings.
        ProofFailed: the programs do not compute what the model does.
        BundleProblem: the directory cannot be written.
    """
    settings = resolve_settings(source, options)
    clock = _PhaseClock()
    try:
        export = _export(source, settings, clock)
    except MemoryError as error:
        sizes = f"; its batch sizes are {listing(settings.batch_sizes)}"
        reason = "the memory of this machine does not hold the model's inputs and results"
        raise ExportProblem(settings.name, reason + sizes * bool(settings.batch_sizes)) from error
    with clock.phase("write"):
        _write(source, settings, export)
    return _report(source, settings, export, clock.seconds)


def _export(source: Source, settings: Settings, clock: "_PhaseClock") -> "_Export":
    try:
        return _trace_and_prove(source, settings, clock)
    except ProofFailed as failure:
        if settings.is_dynamic or not settings.batch_sizes:
            raise
        # A model that compares the batch size in Python is traced as if it were no particular one.
        why = f"one trace for all sizes does not do what the model does ({failure.findings[0]})"
        return _trace_and_prove(source, settings, clock, why)


@dataclass(frozen=True, slots=True)
class _Export:
    """What is ready to be written."""

    made: ProgramSet
    interface: Interface
    files: list["_ProgramFile"]
    proof: Proof


def _trace_and_prove(
    source: Source, settings: Settings, clock: "_PhaseClock", why_per_size: str = ""
) -> _Export:
    with clock.phase("trace"):
        made = trace_programs(source, settings, why_per_size)
        interface = declare_interface(settings, made)
        files = _program_files(settings, made, interface)
        _check_space(settings, made, files)
    with clock.phase("proof"):
        proof = prove(
            source,
            [file.candidate for file in files],
            made.weights,
            interface.input_specs,
            interface.output_specs,
            ProofSettings(
                model=settings.name,
                tolerance=settings.tolerance,
                every_size=settings.prove_every_size,
                sample_inputs=settings.sample_inputs,
                progress=settings.progress,
            ),
        )
    return _Export(made, interface, files, proof)


class _PhaseClock:
    """How long each phase took, in seconds, all times together."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


@dataclass(frozen=True, slots=True)
class _ProgramFile:
    """A program of the bundle, and where `write_bundle` wants it: several may be one file."""

    variant: int
    size: int
    candidate: Candidate
    why_newer: str


def _program_files(
    settings: Settings, made: ProgramSet, interface: Interface
) -> list[_ProgramFile]:
    """Serialise the programs; a dynamic one is proved at each of its sizes."""
    open_artifacts = [_serialise(settings, program) for program in made.open_programs]
    files = []
    for sized in made.programs:
        variant = sized.variant if interface.variant_sizes else None
        is_open = bool(open_artifacts)
        artifact = open_artifacts[sized.variant] if is_open else _serialise(settings, sized.program)
        candidate = Candidate(
            file=program_name(variant, 0 if is_open else sized.size),
            artifact=artifact.content,
            size=sized.size,
            variable=interface.variable(sized.variant),
            is_refined=sized.is_refined,
            target_version=artifact.target_version,
        )
        size = 0 if is_open else sized.size
        files.append(_ProgramFile(sized.variant, size, candidate, artifact.why_newer))
    return files


def _serialise(settings: Settings, program: Any) -> Artifact:
    return serialise_program(program, settings.target_version, settings.name)


def _write(source: Source, settings: Settings, export: _Export) -> None:
    interface = export.interface
    modules: dict[Any, Any] = {}
    for file in export.files:
        of_variant = modules
        if interface.variant_sizes:
            of_variant = modules.setdefault(interface.variant_sizes[file.variant], {})
        of_variant[file.size] = file.candidate.artifact
    settings.progress.step("writing", 0, 1)
    write_bundle(
        settings.directory,
        settings.name,
        interface.inputs,
        interface.outputs,
        modules,
        list(export.made.weights),
        client_inputs=settings.client_inputs,
        client_outputs=settings.client_outputs,
        input_shapes=interface.variant_sizes or None,
        provenance=_provenance(source, settings, export),
        description=settings.description,
        files=settings.files,
        labels=settings.labels,
        overwrite=settings.overwrite,
        check=partial(_check_written, settings),
        dynamic_sizes=settings.batch_sizes if settings.is_dynamic else None,
    )


def _check_space(settings: Settings, made: ProgramSet, files: list[_ProgramFile]) -> None:
    """Say that the disk is too small before the proof, when weights and programs are known."""
    needed = sum(array.nbytes for _, array in made.weights)
    needed += sum(len(content) for content in {file.candidate.artifact for file in files})
    needed += sum(map(len, settings.files.values()))
    findings = check_space(settings.directory, needed)
    if findings:
        raise ExportProblem(settings.name, findings)


def _check_written(settings: Settings, directory: Path) -> None:
    """Put the finished bundle through the check that a server's loader makes, hooks included."""
    errors = check_bundle(directory).errors
    findings = [
        (each.text if each.text.startswith(each.place) else f"{each.place}: {each.text}").replace(
            str(directory), str(settings.directory)
        )
        for each in errors
    ]
    if findings:
        reason = "no server can load this bundle, and nothing was written"
        raise ExportProblem(settings.name, [*dict.fromkeys(findings), reason])


def _provenance(source: Source, settings: Settings, export: _Export) -> Mapping[str, object]:
    """What is known of this export; the author's own entries win, and None takes one out."""
    base: dict[str, object] = {
        "source_framework": source.framework,
        "converter": "hloserve",
        "hloserve_version": hloserve.__version__,
        "python_version": platform.python_version(),
        "exported_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "stablehlo_version": max(file.candidate.target_version for file in export.files),
        **source.provenance,
    }
    if settings.matmul_precision is not None:
        base["matmul_precision"] = settings.matmul_precision
    if settings.compile_options:
        base["compile_options"] = dict(settings.compile_options)
    base["proof"] = output_proofs(export.proof.programs)
    merged = base | dict(settings.provenance)
    return {key: value for key, value in merged.items() if value is not None}


def _version_notes(files: list[_ProgramFile]) -> list[str]:
    newer = {file.candidate.target_version: file.why_newer for file in files if file.why_newer}
    return [
        f"written for StableHLO {version}, not {OLDEST_TARGET}: {why}; servers of older versions"
        " cannot read it"
        for version, why in newer.items()
    ]


def _report(
    source: Source, settings: Settings, export: _Export, seconds: Mapping[str, float]
) -> ExportReport:
    made, proof = export.made, export.proof
    versions = _version_notes(export.files)
    return ExportReport(
        name=settings.name,
        directory=settings.directory,
        framework=str(source.provenance.get("source_subframework", source.framework)),
        tracing=made.tracing,
        programs=proof.programs,
        weights=len(made.weights),
        weights_bytes=sum(array.nbytes for _, array in made.weights),
        bundle_bytes=sum(path.stat().st_size for path in settings.directory.iterdir()),
        seconds=seconds,
        unused_inputs=proof.unused_inputs,
        unused_weights=proof.unused_weights,
        notes=(*made.notes, *export.interface.notes, *versions, *proof.notes),
        warnings=proof.warnings,
    )
