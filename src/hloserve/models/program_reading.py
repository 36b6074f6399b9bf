"""Reading the programs of a bundle in order to judge them, without a device.

What lives here: each file against manifest and weights, and what ties it to a platform. What does
not: these rules (`hloserve.models.program_plan`, `hloserve.engine.programs.portability`). One
thread; needs jaxlib from the moment that a `ProgramReading` is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from hloserve.bundle.findings import Finding, errors_at, warnings_at
from hloserve.bundle.layout import ProgramFile
from hloserve.bundle.manifest import Manifest
from hloserve.engine.backend import Program, ProgramReader
from hloserve.engine.programs.program_check import WeightType
from hloserve.engine.programs.signature import TensorType
from hloserve.models.program_plan import PlannedProgram, plan_file

if TYPE_CHECKING:
    from hloserve.engine.programs.mlir import MlirProgram

__all__ = ["ProgramFacts", "ProgramReading"]


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What a program file says of itself.

    Attributes:
        file: its name.
        variant: index in `input_shapes`; None without variants.
        batch_sizes: sizes that it is compiled for; empty without a batch axis.
        nbytes: of the file.
        stablehlo_version: of the artifact; empty for text.
        jaxlib_version: the oldest that is known to read it; empty when none is.
        custom_calls: what it calls beyond StableHLO.
    """

    file: str
    variant: int | None
    batch_sizes: tuple[int, ...]
    nbytes: int
    stablehlo_version: str
    jaxlib_version: str
    custom_calls: tuple[str, ...]


class ProgramReading:
    """Reads program files one after the other.

    Args:
        manifest: of a regular model.
        weights: in argument order; None when they are unknown: then types are not checked.

    Attributes:
        planned: programs that are in order, so far.
        facts: of the files that could be read, so far.

    Raises:
        MissingExtra, UntestedVersion: this installation reads no programs.
    """

    def __init__(self, manifest: Manifest, weights: Sequence[WeightType] | None) -> None:
        self.planned: list[PlannedProgram] = []
        self.facts: list[ProgramFacts] = []
        self._manifest = manifest
        self._weights = weights
        self._reader = _KeepingReader()
        self._told: set[str] = set()

    def read(self, file: ProgramFile) -> list[Finding]:
        """Read and judge one file."""
        from hloserve.engine.programs.portability import check_portability, oldest_jaxlib

        texts: list[str] = []
        planned = plan_file(file, self._manifest, self._weights, self._reader, texts)
        findings = errors_at(file.path.name, texts)
        program = self._reader.take()
        if program is None:
            return findings
        self.planned += planned
        version = program.stablehlo_version
        self.facts.append(
            ProgramFacts(
                file=file.path.name,
                variant=file.variant,
                batch_sizes=tuple(plan.size for plan in planned if plan.size),
                nbytes=file.path.stat().st_size,
                stablehlo_version=version,
                jaxlib_version=oldest_jaxlib(version) if version else "",
                custom_calls=tuple(sorted(program.custom_calls)),
            )
        )
        return findings + check_portability(program) + self._ignored_inputs(program)

    def _ignored_inputs(self, program: "MlirProgram") -> list[Finding]:
        """Inputs that change nothing; each is told once, not again for every batch size."""
        from hloserve.engine.programs.mlir import unused_arguments

        inputs = self._manifest.executable_inputs
        names = [
            inputs[number].name for number in unused_arguments(program) if number < len(inputs)
        ]
        texts = [
            f"the program ignores input {name!r}: whatever clients send, the answer is the same"
            for name in names
            if name not in self._told
        ]
        self._told.update(names)
        return warnings_at(program.source, texts)


class _KeepingReader(ProgramReader):
    """Reads by `hloserve.engine.programs.mlir`, and keeps the last program for a second look."""

    def __init__(self) -> None:
        from hloserve.engine.programs import mlir

        self._mlir = mlir
        self._last: MlirProgram | None = None

    @override
    def read_program(self, artifact: bytes, source: str) -> Program:
        self._last = self._mlir.read_program(artifact, source)
        return self._last

    @override
    def specialise(self, program: Program, inputs: Sequence[TensorType]) -> Program:
        assert isinstance(program, self._mlir.MlirProgram), "a program of another reader"
        return self._mlir.refine_program(program, inputs)

    def take(self) -> "MlirProgram | None":
        """The last program; None when it could not be read."""
        last, self._last = self._last, None
        return last
