"""The proof that a row's answer is its own, as servers take it to be.

What lives here: which runs show it, and what is said when they do not. What does not: the batches
and the comparison (`hloserve.models.row_check`, whose rules say what passes). One thread.

Rule: besides, the source's answer to one row alone is that of the program to the row in its batch;
a model that divides by the number of rows passes every other comparison. Sources that take no other
number of rows are not asked.
"""

import numpy as np

from hloserve.core.errors import ExportProblem, HloserveError
from hloserve.engine.backend import Executable
from hloserve.engine.programs.differences import compare, epsilon, is_float, row_signal
from hloserve.export.proof.bench import Bench, Candidate, Run
from hloserve.models.row_check import Batch, allowed_share, find_influences

__all__ = ["check_rows"]

_LAST_BITS = 4

_WAYS_OUT = (
    "servers merge rows of several requests into one batch and fill it up with zeros, so clients"
    " would get wrong numbers. Compute each row from itself; or give output_batch_axes with None"
    " for such an output: requests are then neither merged nor padded, and must have exactly a"
    " compiled number of rows; or leave batch_sizes out"
)


def check_rows(bench: Bench, candidate: Candidate, executable: Executable, run: Run) -> None:
    """Refuse a program whose rows are not independent.

    Args:
        bench: all its inputs and outputs have a batch axis.
        candidate: of more than one row.
        executable: of the candidate.
        run: of it; what it got is compared with.

    Raises:
        ExportProblem: one finding per output. Not `ProofFailed`: the program is the model's, and
            another trace of it would be no better.
    """
    axes = [spec.batch_axis or 0 for spec in bench.inputs]
    influenced = find_influences(
        lambda inputs: bench.execute(candidate, executable, inputs),
        Batch(run.inputs, bench.draw(candidate), axes, run.got),
        bench.outputs,
        allowed_share((*bench.dtypes, *(array.dtype for array in run.got))),
        bench.settings.tolerance or 0.0,
    )
    findings = [f"{candidate.file}: {each}" for each in influenced]
    findings = findings or _compare_alone(bench, candidate, run)
    if findings:
        raise ExportProblem(bench.settings.model, [*findings, _WAYS_OUT])


def _compare_alone(bench: Bench, candidate: Candidate, run: Run) -> list[str]:
    """Compare the program's first row with what the source makes of that row alone."""
    alone = [
        np.ascontiguousarray(np.take(array, [0], spec.batch_axis or 0))
        for array, spec in zip(run.inputs, bench.inputs, strict=True)
    ]
    try:
        results = bench.run_source(candidate, alone)
    except HloserveError:
        return []  # a model of one size
    findings = []
    for spec, result, got in zip(bench.outputs, results, run.got, strict=False):
        axis = spec.batch_axis or 0
        want = np.take(got, [0], axis)
        if not is_float(got.dtype) or (result.dtype, result.shape) != (want.dtype, want.shape):
            continue
        compared, signal = compare(result, want), row_signal(got, axis)
        allowed = max(
            bench.tolerance(got) * signal, _LAST_BITS * epsilon(got.dtype) * compared.scale
        )
        if compared.error > allowed or compared.misplaced:
            findings.append(
                f"{candidate.file}: output {spec.name!r}: the answer to a row depends on how many"
                f" rows its batch has: it is off by {compared.error:.2g} from what the model makes"
                f" of the row alone, and moves by {signal:.2g} from one row to the next"
            )
    return findings
