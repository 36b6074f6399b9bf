"""Running each program of a bundle, on random inputs: does it compile, run, and stay finite.

What lives here: inputs, timing and counting what is not a number. What does not: which programs
there are (`hloserve.models.program_plan`), the batches that show whether rows influence each other
(`hloserve.models.row_check`), and what is done about it
(`hloserve.models.bundle_check`). One thread; the device is the caller's alone.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloserve.bundle.findings import Finding, errors_at, warnings_at
from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import BackendFailed, HloserveError, WeightsProblem
from hloserve.core.tensors import Array, TensorSpec
from hloserve.core.units import format_bytes
from hloserve.engine.arena import HostArena, load_weights
from hloserve.engine.backend import Backend, Buffer, Executable
from hloserve.engine.device_model import VariantKey
from hloserve.engine.programs.signature import TensorType
from hloserve.models.program_plan import PlannedProgram
from hloserve.models.row_check import Batch, Influenced, allowed_share, find_influences, merges_rows

__all__ = ["MAX_RUN_BYTES", "OutputFacts", "ProgramRun", "run_programs"]

MAX_RUN_BYTES = 4 * 1024**3
"""Inputs and outputs of one run: a shape in a hostile manifest must not exhaust the machine."""


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """How many elements of one output are not finite numbers."""

    name: str
    elements: int
    nan: int
    positive_infinite: int
    negative_infinite: int

    @property
    def is_finite(self) -> bool:
        """True when every element is a number."""
        return not (self.nan or self.positive_infinite or self.negative_infinite)


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One program that ran.

    Attributes:
        program: its file, and the batch size where one file serves several.
        compile_s: time to compile it.
        run_s: time of the one run, with transfers.
        input_bytes: of its inputs; weights are not counted.
        output_bytes: of its results.
        outputs: what came out.
    """

    program: str
    compile_s: float
    run_s: float
    input_bytes: int
    output_bytes: int
    outputs: tuple[OutputFacts, ...]


def run_programs(
    planned: Sequence[PlannedProgram],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: WeightsFile,
    backend: Backend,
    findings: list[Finding],
) -> list[ProgramRun]:
    """Compile and run each program once; the same inputs on every call.

    Args:
        planned: of static types.
        inputs: of the programs, without the weights.
        outputs: a spec per result, for their names.
        weights: open.
        backend: idle.
        findings: gets what does not compile, run or stay finite.

    Returns:
        The programs that ran.
    """
    try:
        arena = HostArena(HostArena.needed_bytes(tensor.nbytes for tensor in weights.arguments))
        arrays = load_weights(weights, arena)
        buffers = backend.to_device(arrays)
    except (HloserveError, OSError) as problem:
        texts = problem.findings if isinstance(problem, WeightsProblem) else [str(problem)]
        findings += errors_at(weights.path.name, texts)
        return []
    runs = []
    tried = _smallest_merged(planned, inputs, outputs)
    try:
        for plan in planned:
            axes = [spec.batch_axis or 0 for spec in inputs] if plan in tried else []
            run = _try_run(plan, axes, outputs, buffers, backend, findings)
            runs += [] if run is None else [run]
    finally:
        backend.free(buffers)
    if any(not output.is_finite for run in runs for output in run.outputs):
        findings += _weights_that_are_not_finite(weights, arrays)
    return runs


def _smallest_merged(
    planned: Sequence[PlannedProgram], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> list[PlannedProgram]:
    """Per variant, the smallest program whose rows servers merge; none where they merge none."""
    if any(plan.size == 0 for plan in planned):
        return []
    found: dict[VariantKey, PlannedProgram] = {}
    for plan in sorted(planned, key=lambda plan: plan.size):
        if merges_rows(inputs, outputs, plan.size):
            found.setdefault(plan.variant, plan)
    return list(found.values())


def _try_run(
    plan: PlannedProgram,
    batch_axes: Sequence[int],
    outputs: Sequence[TensorSpec],
    weights: Sequence[Buffer],
    backend: Backend,
    findings: list[Finding],
) -> ProgramRun | None:
    signature = plan.program.signature
    inputs = signature.inputs[: len(signature.inputs) - len(weights)]
    place = plan.name.split(" ")[0]
    needed_bytes = sum(map(_nbytes, (*inputs, *signature.outputs)))
    if needed_bytes > MAX_RUN_BYTES:
        text = (
            f"{plan.name} was not run: its inputs and outputs are {format_bytes(needed_bytes)},"
            f" more than {format_bytes(MAX_RUN_BYTES)}"
        )
        findings += warnings_at(place, [text])
        return None
    try:
        run, influenced = _run(plan, inputs, batch_axes, outputs, weights, backend)
    except HloserveError as error:
        reason = f"{plan.name}: {_reason(error)}"
        findings += errors_at(place, [reason])
        return None
    texts = [
        f"{plan.name}: output {output.name!r} of random inputs holds {_counts(output)} among"
        f" {output.elements} elements"
        for output in run.outputs
        if not output.is_finite
    ]
    texts += [
        f"{plan.name}: {each}; servers merge and pad rows, so clients would get other numbers;"
        " declare such an output without a batch axis"
        for each in influenced
    ]
    findings += warnings_at(place, texts)
    return run


def _reason(error: HloserveError) -> str:
    if isinstance(error, BackendFailed) and error.operation == "compiling":
        return f"XLA cannot compile it: {error.reason}"
    return f"it fails on random inputs: {error}"


def _run(
    plan: PlannedProgram,
    inputs: Sequence[TensorType],
    batch_axes: Sequence[int],
    outputs: Sequence[TensorSpec],
    weights: Sequence[Buffer],
    backend: Backend,
) -> tuple[ProgramRun, list[Influenced]]:
    """Run it once; with batch axes, twice more to see whether its rows influence each other."""
    started = time.monotonic()
    executable = backend.compile(plan.program, plan.name)
    compiled = time.monotonic()
    arrays = _random_inputs(inputs)
    began = time.monotonic()
    results = _execute(executable, arrays, weights, backend)
    ended = time.monotonic()
    run = ProgramRun(
        program=plan.name,
        compile_s=compiled - started,
        run_s=ended - began,
        input_bytes=sum(array.nbytes for array in arrays),
        output_bytes=sum(array.nbytes for array in results),
        outputs=tuple(
            _output_facts(spec.name, array) for spec, array in zip(outputs, results, strict=True)
        ),
    )
    if not batch_axes:
        return run, []
    kinds = (*plan.program.signature.inputs, *plan.program.signature.outputs)
    influenced = find_influences(
        lambda inputs: _execute(executable, inputs, weights, backend),
        Batch(arrays, _random_inputs(inputs, seed=1), batch_axes, results),
        outputs,
        allowed_share(kind.dtype.numpy for kind in kinds),
    )
    return run, influenced


def _execute(
    executable: Executable, inputs: Sequence[Array], weights: Sequence[Buffer], backend: Backend
) -> list[Array]:
    arguments = backend.to_device(inputs)
    results: Sequence[Buffer] = ()
    try:
        results = backend.execute(executable, [*arguments, *weights])
        return [np.array(array) for array in backend.to_host(results)]  # theirs dies with `free`
    finally:
        backend.free([*arguments, *results])


def _random_inputs(kinds: Sequence[TensorType], seed: int = 0) -> list[Array]:
    """Normal floats and small integers: indices, token ids and counts mostly allow these."""
    source = np.random.default_rng(seed)
    arrays = []
    for kind in kinds:
        shape, dtype = [extent or 0 for extent in kind.shape], kind.dtype.numpy
        if dtype.kind == "b":
            arrays.append(source.random(shape) < 0.5)
        elif dtype.kind in "iu":
            arrays.append(source.integers(0, 10, shape).astype(dtype))
        else:
            arrays.append(np.asarray(source.standard_normal(shape, np.float32)).astype(dtype))
    return [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]


def _output_facts(name: str, array: Array) -> OutputFacts:
    if array.dtype.kind in "biu":
        return OutputFacts(name, array.size, 0, 0, 0)
    values = array if array.dtype.kind == "f" else array.astype(np.float32)  # bfloat16, float8
    return OutputFacts(
        name,
        array.size,
        int(np.isnan(values).sum()),
        int(np.isposinf(values).sum()),
        int(np.isneginf(values).sum()),
    )


def _weights_that_are_not_finite(weights: WeightsFile, arrays: Sequence[Array]) -> list[Finding]:
    """The likeliest cause of outputs that are not finite."""
    facts = [
        _output_facts(tensor.name, array)
        for tensor, array in zip(weights.arguments, arrays, strict=True)
    ]
    texts = [f"weight {fact.name!r} holds {_counts(fact)}" for fact in facts if not fact.is_finite]
    return warnings_at(weights.path.name, texts)


def _counts(facts: OutputFacts) -> str:
    kinds = (
        (facts.nan, "NaN"),
        (facts.positive_infinite, "+inf"),
        (facts.negative_infinite, "-inf"),
    )
    return ", ".join(f"{count} {kind}" for count, kind in kinds if count)


def _nbytes(kind: TensorType) -> int:
    return math.prod(extent or 0 for extent in kind.shape) * kind.dtype.itemsize
