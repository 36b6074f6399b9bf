"""From a source to its programs: one trace where it works, refined to every size.

What lives here: the choice between one symbolic trace and a trace per size, and the checks that all
traces are of one model. What does not: the cleaning (`hloserve.export.artifact`), the refining
(`hloserve.engine.programs.mlir`) and what outputs are called (`hloserve.export.interface`). One
thread.
"""

from dataclasses import dataclass, field

from hloserve.core.dtypes import by_numpy
from hloserve.core.errors import ExportProblem, ProgramProblem
from hloserve.engine.programs.mlir import MlirProgram, refine_program
from hloserve.engine.programs.signature import TensorType
from hloserve.export.artifact import clean_program, tidy_program
from hloserve.export.settings import BATCH, Settings
from hloserve.export.source import NamedArrays, Source, SymbolicTraceFailed, Traced

__all__ = ["ProgramSet", "SizedProgram", "trace_programs"]


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """A program for one variant and batch size.

    Attributes:
        variant: index of the set of shapes.
        size: batch size; 0 without a batch axis.
        program: static types.
        is_refined: it comes of a symbolic trace.
    """

    variant: int
    size: int
    program: MlirProgram
    is_refined: bool = False


@dataclass(slots=True)
class ProgramSet:
    """Everything that was traced.

    Attributes:
        weights: in argument order; the same for all programs.
        output_names: the frontend's.
        programs: per variant and size; what a dynamic batch is declared and proved by.
        open_programs: per variant, with an open batch axis; for a dynamic batch only.
        probes: programs of sizes that nobody asked for: they tell which axes follow the batch.
        tracing: how it was traced, in words.
        notes: of the frontend.
    """

    weights: NamedArrays = ()
    output_names: tuple[str, ...] = ()
    programs: list[SizedProgram] = field(default_factory=list)
    open_programs: list[MlirProgram] = field(default_factory=list)
    probes: list[SizedProgram] = field(default_factory=list)
    tracing: str = ""
    notes: tuple[str, ...] = ()


def trace_programs(source: Source, settings: Settings, why_per_size: str = "") -> ProgramSet:
    """Trace a source for every variant and size.

    Args:
        source: the model.
        settings: of the export.
        why_per_size: not empty when a trace with an open batch is known not to do, and why.

    Raises:
        ExportProblem: the model cannot or must not be exported, or two traces of it differ.
    """
    return _Tracer(source, settings, why_per_size).trace_all()


class _Tracer:
    """Traces one source; its `made` grows with each trace."""

    def __init__(self, source: Source, settings: Settings, why_per_size: str) -> None:
        self._source, self._settings = source, settings
        self._traces = 0
        self._why_per_size = why_per_size
        self.made = ProgramSet()

    def trace_all(self) -> ProgramSet:
        variants = self._settings.variants
        for variant in range(variants):
            if not self._settings.batch_sizes:
                self._trace_size(variant, 0)
            elif self._why_per_size or not self._trace_symbolic(variant):
                self._trace_sizes(variant)
        self.made.tracing = self._describe()
        return self.made

    def _describe(self) -> str:
        if self._why_per_size:
            return f"per size ({self._traces} traces): {self._why_per_size}"
        times = "once" if self._traces == 1 else f"{self._traces} times, once per variant"
        return f"{times}, batch open" if self._settings.batch_sizes else times

    def _trace_symbolic(self, variant: int) -> bool:
        """Trace with an open batch and refine; False when that does not work."""
        try:
            program = self._trace(variant, BATCH)
            sized = [self._refine(program, variant, size) for size in self._settings.batch_sizes]
            probe = None
            if len(sized) == 1:
                probe = self._refine(program, variant, sized[0].size + 1)
        except SymbolicTraceFailed as failure:
            if self._settings.is_dynamic:
                raise ExportProblem(
                    self._settings.name,
                    'batch_sizes="dynamic" needs a model that can be traced with an open batch'
                    f" axis, and this one cannot: {failure}; list the sizes, such as [1, 8, 32]",
                ) from failure
            self._why_per_size = str(failure)
            return False
        self.made.programs += sized
        self.made.probes += [] if probe is None else [probe]
        if self._settings.is_dynamic:
            self.made.open_programs.append(program)
        return True

    def _trace_sizes(self, variant: int) -> None:
        sizes = self._settings.batch_sizes
        for size in sizes:
            self._trace_size(variant, size)
        if len(sizes) == 1 and self._settings.output_batch_axes is None:
            try:
                probe = self._trace(variant, sizes[0] + 1)
            except ExportProblem:
                return  # a model of one size; its outputs are declared by that alone
            self.made.probes.append(SizedProgram(variant, sizes[0] + 1, probe))

    def _trace_size(self, variant: int, size: int) -> None:
        program = self._trace(variant, size)
        self.made.programs.append(SizedProgram(variant, size, program))

    def _trace(self, variant: int, batch: int | str) -> MlirProgram:
        settings = self._settings
        at = f" at batch size {batch}" if isinstance(batch, int) and batch else ""
        total = settings.variants * (len(settings.batch_sizes) if self._why_per_size else 1)
        settings.progress.step(f"tracing{at}", min(self._traces, total - 1), total)
        traced = self._source.trace([each.shape(variant, batch) for each in settings.inputs])
        self._traces += 1
        self._accept(traced)
        program = clean_program(traced.artifact, settings.name)
        _check_arguments(program, settings, traced, variant)
        return program

    def _accept(self, traced: Traced) -> None:
        """Take weights and names over from the first trace; the others must have the same."""
        made, model = self.made, self._settings.name
        if self._traces == 1:
            made.weights, made.output_names = traced.weights, traced.output_names
        elif [name for name, _ in traced.weights] != [name for name, _ in made.weights]:
            raise ExportProblem(
                model,
                "the weights of two traces differ in name or order, so one weights file cannot"
                " serve both; build the model the same way for every batch size and shape",
            )
        elif len(traced.output_names) != len(made.output_names):
            raise ExportProblem(
                model,
                f"the model returns {len(made.output_names)} results in one trace and"
                f" {len(traced.output_names)} in another; return the same for every shape",
            )
        made.notes = tuple(dict.fromkeys((*made.notes, *traced.notes)))

    def _refine(self, program: MlirProgram, variant: int, size: int) -> SizedProgram:
        settings = self._settings
        done = sum(other < size for other in settings.batch_sizes)  # all of them for a probe
        total = max(done + 1, len(settings.batch_sizes))
        settings.progress.step(f"refining to batch size {size}", done, total)
        types = _argument_types(settings, self.made.weights, variant, size)
        try:
            refined = tidy_program(refine_program(program, types), settings.name)
        except ProgramProblem as problem:
            raise SymbolicTraceFailed("; ".join(problem.findings)) from problem
        is_open = any(None in kind.shape for kind in refined.signature.outputs)
        if is_open or refined.custom_calls:
            raise SymbolicTraceFailed(f"some shapes stay open at batch size {size}")
        return SizedProgram(variant, size, refined, is_refined=True)


def _argument_types(
    settings: Settings, weights: NamedArrays, variant: int, size: int
) -> list[TensorType]:
    shapes = [each.shape(variant, size) for each in settings.inputs]
    types = [
        TensorType(each.dtype, tuple(int(extent) for extent in shape))
        for each, shape in zip(settings.inputs, shapes, strict=True)
    ]
    return types + [TensorType(by_numpy(array.dtype), array.shape) for _, array in weights]


def _check_arguments(
    program: MlirProgram, settings: Settings, traced: Traced, variant: int
) -> None:
    """The arguments are the inputs and the weights, each and in order."""
    names = [f"input {each.name!r}" for each in settings.inputs]
    names += [f"weight {name!r}" for name, _ in traced.weights]
    got = program.signature.inputs
    if len(got) != len(names):
        raise ExportProblem(settings.name, _arity_finding(len(got), settings, traced))
    findings = []
    wanted = _argument_types(settings, traced.weights, variant, 1)
    for name, want, have in zip(names, wanted, got, strict=True):
        fits = len(want.shape) == len(have.shape)
        if want.dtype is not have.dtype or not fits:
            findings.append(
                f"{name} is {have} in the traced program, and {want} in the model; keep its dtype"
                " and rank when it is traced"
            )
    if findings:
        raise ExportProblem(settings.name, findings)


def _arity_finding(got: int, settings: Settings, traced: Traced) -> str:
    inputs, weights = len(settings.inputs), len(traced.weights)
    expected = inputs + weights
    cause = (
        "unused arguments were dropped when it was traced: keep them (keep_unused=True)"
        if got < expected
        else "a value was lifted out of the model's closure, such as random state: pass it as a"
        " weight, or take it out"
    )
    return (
        f"the traced program takes {got} arguments, the model has {inputs} inputs and {weights}"
        f" weights, which makes {expected}: {cause}"
    )
