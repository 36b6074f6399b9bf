"""The proof: each program runs beside the model it was made of, on random inputs.

What lives here: which program runs on how many inputs, and what is said when one fails. What does
not: drawing inputs (`hloserve.export.proof.inputs`) and the arithmetic
(`hloserve.export.proof.figures`, whose rules say what passes). Called by the pipeline before
anything is written; one thread.

Rules.
1. The types of every program are compared with the specs and the weights before any of them runs.
2. A program runs on one batch when its rows are inputs enough: every output has a batch axis and
   differs from row to row. Else, as at batch size 1, it runs on two.
3. The first two sizes of a variant run, and every program that was traced for itself. What is
   refined from the trace of these differs in nothing but the extents, which are compared;
   `ProofSettings.every_size` runs it too.
4. At least one output of a program that runs must be proved; the others may be constant.
5. Of each variant, the smallest program of more than one row shows that its rows do not depend on
   each other (`hloserve.export.proof.rows`), where servers merge and pad them.
6. Before a program is called wrong it gets two more batches: where the model itself decides between
   values that are equal but for rounding, one batch may fail and the next will not. That is told.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloserve.core.dtypes import DType, by_numpy
from hloserve.core.errors import ProgramProblem, ProofFailed
from hloserve.core.tensors import TensorSpec
from hloserve.engine.backend import Executable
from hloserve.engine.programs import mlir
from hloserve.engine.programs.differences import compare, row_signal, signal_between
from hloserve.engine.programs.program_check import argument_types, check_signature
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export.proof.bench import Bench, Candidate, ProofSettings, Run
from hloserve.export.proof.figures import judge
from hloserve.export.proof.hints import (
    explain_failure,
    explain_nothing_proved,
    is_narrow,
    near_notes,
    value_notes,
)
from hloserve.export.proof.inputs import nudge
from hloserve.export.proof.rows import check_rows
from hloserve.export.report import OutputProof, ProgramReport
from hloserve.export.source import NamedArrays, Source

__all__ = ["Candidate", "Proof", "ProofSettings", "prove"]

_SIZES_RUN = 2
_MORE_BATCHES = 2
_REPEATABLE = 1e-3


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found: one report per candidate, in order, and sentences for the export's report."""

    programs: tuple[ProgramReport, ...]
    unused_inputs: tuple[str, ...] = ()
    unused_weights: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def prove(
    source: Source,
    candidates: Sequence[Candidate],
    weights: NamedArrays,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    settings: ProofSettings,
) -> Proof:
    """Run the candidates beside the source and compare the results.

    Args:
        source: the model.
        candidates: its programs, smaller sizes first.
        weights: in argument order.
        inputs: specs of the executable inputs.
        outputs: specs of the results.
        settings: how.

    Raises:
        ProofFailed: a program has the wrong types, fails to run, or computes something else than
            the source; or nothing is proved because the outputs ignore the inputs. All findings.
        ExportProblem: rows influence each other.
    """
    backend = XlaBackend("cpu")
    programs = _read(candidates, weights, inputs, outputs, backend, settings.model)
    buffers = backend.to_device([array for _, array in weights])
    bench = Bench(source, backend, buffers, weights, inputs, outputs, settings)
    to_run = _indexes_to_run(candidates, settings.every_size)
    reports = [_unproved(candidate) for candidate in candidates]
    try:
        for done, index in enumerate(to_run):
            if settings.progress is not None:
                settings.progress.step(f"proving {candidates[index].file}", done, len(to_run))
            reports[index] = _prove_one(bench, candidates[index], programs[index])
    finally:
        backend.free(buffers)
    unused = [set(mlir.unused_arguments(program)) for program in programs]
    unused_by_all = set.intersection(*unused) if unused else set()
    names = [*(spec.name for spec in inputs), *(name for name, _ in weights)]
    unused_names = [name for number, name in enumerate(names) if number in unused_by_all]
    unused_inputs = sum(number < len(inputs) for number in unused_by_all)
    return Proof(
        tuple(reports),
        tuple(unused_names[:unused_inputs]),
        tuple(unused_names[unused_inputs:]),
        (*value_notes(inputs, source.inputs, weights), *near_notes(reports)),
        tuple(dict.fromkeys(bench.warnings)),
    )


@dataclass(frozen=True, slots=True)
class _WeightType:
    name: str
    dtype: DType
    shape: tuple[int, ...]


def _read(
    candidates: Sequence[Candidate],
    weights: NamedArrays,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    backend: XlaBackend,
    model: str,
) -> list[mlir.MlirProgram]:
    """Read the programs, fix their open extents and check them; all findings at once."""
    types = [_WeightType(name, by_numpy(array.dtype), array.shape) for name, array in weights]
    findings: list[str] = []
    programs = []
    for candidate in candidates:
        file, size, variable = candidate.file, candidate.size, candidate.variable
        try:
            program = backend.read_program(candidate.artifact, file)
            found = check_signature(file, program.signature, inputs, outputs, types, size, variable)
            if not found and _is_open(program):
                program = backend.specialise(program, argument_types(inputs, types, size, variable))
                found = check_signature(
                    file, program.signature, inputs, outputs, types, size, variable
                )
        except ProgramProblem as problem:
            findings += [f"{file}: {finding}" for finding in problem.findings]
            continue
        if len(program.signature.outputs) > len(outputs):
            found.append(
                f"{file}: the program returns {len(program.signature.outputs)} results for"
                f" {len(outputs)} outputs"
            )
        findings += [finding for finding in found if finding not in findings]
        programs.append(program)
    if findings:
        raise ProofFailed(model, findings)
    return programs


def _is_open(program: mlir.MlirProgram) -> bool:
    signature = program.signature
    return any(None in kind.shape for kind in (*signature.inputs, *signature.outputs))


def _indexes_to_run(candidates: Sequence[Candidate], every_size: bool) -> list[int]:
    """Which candidates run, by rule 3."""
    run: list[int] = []
    seen: dict[tuple[tuple[str, int], ...], int] = {}
    for index, candidate in enumerate(candidates):
        variant = tuple(sorted(candidate.variable.items()))
        seen[variant] = seen.get(variant, 0) + 1
        if every_size or not candidate.is_refined or seen[variant] <= _SIZES_RUN:
            run.append(index)
    return run


def _unproved(candidate: Candidate) -> ProgramReport:
    return ProgramReport(
        candidate.file,
        candidate.size,
        len(candidate.artifact),
        dict(candidate.variable),
        candidate.target_version,
    )


def _prove_one(bench: Bench, candidate: Candidate, program: mlir.MlirProgram) -> ProgramReport:
    started = time.monotonic()
    executable = bench.compile(candidate, program)
    runs = [bench.run(candidate, executable)]
    verdicts = _judge(bench, runs) if candidate.size > 1 else []
    if not verdicts or not _is_settled(bench, verdicts):
        runs.append(bench.run(candidate, executable))
        verdicts = _judge(bench, runs)
    if not all(passes for _, passes in verdicts):
        runs, verdicts = _prove_again(bench, candidate, executable, runs, verdicts)
    if bench.checks_rows(candidate):
        check_rows(bench, candidate, executable, runs[0])
    proofs = [proof for proof, _ in verdicts]
    if not any(proof.is_proved for proof in proofs):
        reason = explain_nothing_proved(candidate.file, proofs, bench.inputs, bench.source.inputs)
        raise ProofFailed(bench.settings.model, reason)
    bench.constant |= {proof.name for proof in proofs if not proof.is_proved}
    return replace(
        _unproved(candidate),
        inputs_run=len(runs),
        outputs=tuple(proofs),
        seconds=time.monotonic() - started,
    )


def _judge(bench: Bench, runs: Sequence[Run]) -> list[tuple[OutputProof, bool]]:
    """Judge every output over one run, whose rows are compared, or over two."""
    verdicts = []
    for number, spec in enumerate(bench.outputs):
        wanted = [run.wanted[number] for run in runs]
        comparisons = [compare(run.wanted[number], run.got[number]) for run in runs]
        if len(runs) > 1:
            signal = signal_between(wanted[0], wanted[1])
        elif spec.batch_axis is not None:
            signal = row_signal(wanted[0], spec.batch_axis)
        else:
            signal = 0.0
        tolerance = bench.tolerance(wanted[0])
        verdicts.append(judge(spec.name, wanted[0], comparisons, signal, tolerance))
    return verdicts


def _is_settled(bench: Bench, verdicts: Sequence[tuple[OutputProof, bool]]) -> bool:
    """Whether one run says as much as two would: every output was proved, or cannot be."""
    return all(
        passes and (proof.is_proved or proof.name in bench.constant) for proof, passes in verdicts
    )


def _prove_again(
    bench: Bench,
    candidate: Candidate,
    executable: Executable,
    runs: Sequence[Run],
    verdicts: Sequence[tuple[OutputProof, bool]],
) -> tuple[list[Run], list[tuple[OutputProof, bool]]]:
    """Tell a near tie, which the next inputs do not have, from a program that is wrong."""
    again = [bench.run(candidate, executable) for _ in range(_MORE_BATCHES)]
    second = _judge(bench, again)
    failed = [proof for proof, passes in verdicts if not passes]
    if not all(passes for _, passes in second):
        _check_repeatable(bench, candidate, runs[0])
        hints = _noise(bench, candidate, runs[0], failed)
        reasons = explain_failure(candidate.file, verdicts, runs[0].wanted, runs[0].got, hints)
        raise ProofFailed(bench.settings.model, reasons)
    bench.warnings += [
        f"{candidate.file}: output {proof.name!r} was off by {proof.error:.1e} of a signal of"
        f" {proof.signal:.1e} on the first inputs and agreed on {_MORE_BATCHES} more: the model"
        " seems to decide between values that are equal but for rounding"
        for proof in failed
    ]
    return again, second


def _check_repeatable(bench: Bench, candidate: Candidate, run: Run) -> None:
    """Say it when it is the source that differs from itself."""
    again = bench.run_source(candidate, run.inputs)
    differences = [compare(*pair) for pair in zip(run.wanted, again, strict=True)]
    findings = [
        f"{candidate.file}: the source gives another {spec.name!r} for the same inputs: it draws"
        " random numbers or keeps state; put it into evaluation mode, and take dropout and"
        " sampling out"
        for spec, difference in zip(bench.outputs, differences, strict=True)
        if difference.error > _REPEATABLE * (difference.scale or 1)
    ]
    if findings:
        raise ProofFailed(bench.settings.model, findings)


def _noise(
    bench: Bench, candidate: Candidate, run: Run, failed: Sequence[OutputProof]
) -> dict[str, float]:
    """How far the source's own outputs move when its inputs change in their last bit."""
    nudged = [nudge(array) for array in run.inputs]
    if not is_narrow(failed) or all(a is b for a, b in zip(nudged, run.inputs, strict=True)):
        return {}
    moved = bench.run_source(candidate, nudged)
    return {
        spec.name: signal_between(before, after)
        for spec, before, after in zip(bench.outputs, run.wanted, moved, strict=True)
    }
