"""Where a program runs beside its source: on the same random inputs, on the real CPU backend.

What lives here: drawing inputs, running both sides, and putting their failures into words. What
does not: which program runs on how much, and what its results say (`hloserve.export.proof.prove`).
One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hloserve.core.errors import HloserveError, ProofFailed
from hloserve.core.tensors import Array, TensorSpec
from hloserve.engine.backend import Buffer, Executable
from hloserve.engine.programs import mlir
from hloserve.engine.xla_backend import XlaBackend
from hloserve.export.callbacks import sample
from hloserve.export.options import ExportProgress
from hloserve.export.proof.figures import default_tolerance
from hloserve.export.proof.inputs import draw_like
from hloserve.export.source import NamedArrays, Source
from hloserve.models.row_check import merges_rows

__all__ = ["Bench", "Candidate", "ProofSettings", "Run"]

_DRAWS_PER_VARIANT = 16
"""`sample_inputs` does not know which variant is proved: it may give each in turn."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program as it will be written, at one batch size and variant.

    Attributes:
        file: its name in the bundle; several candidates share the file of a dynamic batch.
        artifact: the file's bytes; open extents are fixed here, for `size`.
        size: batch size; 0 without a batch axis.
        variable: extent per variable letter of the inputs; empty without variants.
        is_refined: it comes of a symbolic trace that other sizes share.
        target_version: StableHLO version of the artifact, for the report.
    """

    file: str
    artifact: bytes
    size: int
    variable: Mapping[str, int] = field(default_factory=dict)
    is_refined: bool = False
    target_version: str = ""


@dataclass(frozen=True, slots=True)
class ProofSettings:
    """How to prove.

    Attributes:
        model: its name, for messages.
        tolerance: largest error as a share of the signal; None for the default of the dtype.
        sample_inputs: as in `ExportOptions`.
        every_size: run every program; see rule 3 of `hloserve.export.proof.prove`.
        progress: hears of each program.
    """

    model: str
    tolerance: float | None = None
    sample_inputs: Callable[[Any, int], Sequence[Array]] | None = None
    every_size: bool = False
    progress: ExportProgress | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What source and program make of the same inputs."""

    inputs: list[Array]
    wanted: list[Array]
    got: list[Array]


class Bench:
    """Source and program side by side: the device, the weights on it, the random generator.

    Attributes:
        dtypes: of inputs and weights.
        constant: outputs that were found to ignore the inputs.
        warnings: for the report.
    """

    def __init__(  # the arguments of `prove`, once more
        self,
        source: Source,
        backend: XlaBackend,
        buffers: Sequence[Buffer],
        weights: NamedArrays,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        settings: ProofSettings,
    ) -> None:
        self.source, self.backend, self.settings = source, backend, settings
        self.inputs, self.outputs = inputs, outputs
        self._buffers = buffers
        self._generator = np.random.default_rng(0)  # the same export gives the same figures
        self.dtypes = [array.dtype for _, array in (*source.inputs, *weights)]
        self._checked: set[tuple[tuple[str, int], ...]] = set()
        self.constant: set[str] = set()
        self.warnings: list[str] = []

    def compile(self, candidate: Candidate, program: mlir.MlirProgram) -> Executable:
        try:
            return self.backend.compile(program, self.settings.model)
        except HloserveError as error:
            reason = f"{candidate.file}: XLA cannot compile it: {error}"
            raise ProofFailed(self.settings.model, reason) from error

    def run(self, candidate: Candidate, executable: Executable) -> Run:
        inputs = self.draw(candidate)
        wanted = self.run_source(candidate, inputs)
        got = self.execute(candidate, executable, inputs)
        self._check_types(candidate, wanted, got)
        return Run(inputs, wanted, got)

    def execute(
        self, candidate: Candidate, executable: Executable, inputs: Sequence[Array]
    ) -> list[Array]:
        """Run the program alone."""
        arguments = self.backend.to_device(inputs)
        results: Sequence[Buffer] = ()
        try:
            results = self.backend.execute(executable, [*arguments, *self._buffers])
            return [np.array(array) for array in self.backend.to_host(results)]
        except HloserveError as error:
            reason = f"{candidate.file}: the program fails on random inputs: {error}"
            raise ProofFailed(self.settings.model, reason) from error
        finally:
            self.backend.free([*arguments, *results])

    def run_source(self, candidate: Candidate, inputs: Sequence[Array]) -> list[Array]:
        try:
            # Copies, since a model may write into its inputs, and the program gets the same.
            copies = [array.copy() for array in inputs]
            return [np.array(array) for array in self.source.run(copies)]
        except HloserveError:
            raise
        except Exception as error:  # a framework may raise anything
            drawn = "sample_inputs" if self.settings.sample_inputs else "random inputs"
            raise ProofFailed(
                self.settings.model,
                f"{candidate.file}: the source model fails on {drawn}: {type(error).__name__}:"
                f" {error}; floats are drawn like the example's values, integers between its"
                " smallest and largest: give an example that is typical, or pass sample_inputs",
            ) from error

    def checks_rows(self, candidate: Candidate) -> bool:
        """Whether a candidate is the first of its variant whose rows servers merge."""
        variant = tuple(sorted(candidate.variable.items()))
        if variant in self._checked or not merges_rows(self.inputs, self.outputs, candidate.size):
            return False
        self._checked.add(variant)
        return True

    def tolerance(self, output: Array) -> float:
        given = self.settings.tolerance
        return default_tolerance(output, self.dtypes) if given is None else given

    def draw(self, candidate: Candidate) -> list[Array]:
        """The next random batch."""
        examples = [array for _, array in self.source.inputs]
        shapes = [spec.concrete_shape(candidate.size, candidate.variable) for spec in self.inputs]
        if self.settings.sample_inputs is not None:
            sampled = self._sampled(candidate, shapes, examples)
            if sampled is not None:
                return sampled
        return [
            draw_like(example, shape, self._generator)
            for example, shape in zip(examples, shapes, strict=True)
        ]

    def _sampled(
        self, candidate: Candidate, shapes: Sequence[tuple[int, ...]], examples: Sequence[Array]
    ) -> list[Array] | None:
        """The author's own inputs; None, and a warning, where they are for another variant."""
        wanted = [(e.dtype, shape) for e, shape in zip(examples, shapes, strict=True)]
        kinds = []
        for _ in range(_DRAWS_PER_VARIANT if candidate.variable else 1):
            sampled = self._sample_once(candidate)
            kinds = [(array.dtype, array.shape) for array in sampled]
            if kinds == wanted:
                return sampled
        text = (
            f"{candidate.file}: sample_inputs gave {_types(kinds)} for {candidate.size or 1} rows,"
            f" the program takes {_types(wanted)}"
        )
        if not candidate.variable:
            raise ProofFailed(self.settings.model, text)
        self.warnings.append(f"{text}; it was proved on values like the example's instead")
        return None

    def _sample_once(self, candidate: Candidate) -> list[Array]:
        assert self.settings.sample_inputs is not None
        try:
            return sample(self.settings.sample_inputs, self._generator, candidate.size or 1)
        except ValueError as error:
            raise ProofFailed(self.settings.model, f"{candidate.file}: {error}") from error

    def _check_types(
        self, candidate: Candidate, wanted: Sequence[Array], got: Sequence[Array]
    ) -> None:
        names = [spec.name for spec in self.outputs]
        if len(wanted) != len(got):
            reason = (
                f"{candidate.file}: the source returns {len(wanted)} results, the program"
                f" {len(got)} ({', '.join(names)})"
            )
            raise ProofFailed(self.settings.model, reason)
        findings = [
            f"{candidate.file}: output {name!r} is {_types([(g.dtype, g.shape)])} in the program,"
            f" the source returns {_types([(w.dtype, w.shape)])}"
            for name, w, g in zip(names, wanted, got, strict=True)
            if (w.dtype, w.shape) != (g.dtype, g.shape)
        ]
        if findings:
            raise ProofFailed(self.settings.model, findings)


def _types(kinds: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for dtype, shape in kinds)
