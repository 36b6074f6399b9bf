"""Whether a bundle's programs take what the bundle has: its inputs, then its weights.

What lives here: the three numbers, read back out of the files, for bundles of any writer. What does
not: the rest of what a server checks at load (`hloserve check`). Needs jaxlib and no device; any
thread.

A bundle is served as ``program(inputs..., weights...)``. How many arguments the program wants is
in neither the manifest nor the weights file: it is inside of the artifact. A bundle whose numbers
disagree looks right in every part that a person can read, and fails every inference.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from hloserve.bundle.active_weights import open_bundle_weights
from hloserve.bundle.files import read_bounded
from hloserve.bundle.layout import ProgramFile, find_programs
from hloserve.bundle.manifest import Manifest, load_manifest
from hloserve.bundle.weights import WeightTensor
from hloserve.core.errors import ProgramProblem
from hloserve.engine.programs.mlir import read_program
from hloserve.engine.programs.program_check import check_signature, size_of_program
from hloserve.engine.programs.program_probe import MAX_PROGRAM_BYTES
from hloserve.engine.programs.signature import Signature

__all__ = [
    "BundleArity",
    "ModuleArity",
    "assert_bundle_arity",
    "bundle_arity_report",
    "bundle_entry_arity",
]


@dataclass(frozen=True, slots=True)
class ModuleArity:
    """One program file.

    Attributes:
        module_file: its name.
        entry_args: number of arguments that its `main` takes; None when it cannot be read.
        why: what does not fit, one sentence each: the number, dtypes and shapes of arguments.
    """

    module_file: str
    entry_args: int | None
    why: tuple[str, ...] = ()

    @property
    def servable(self) -> bool:
        """True when the program takes exactly what the bundle has."""
        return not self.why


@dataclass(frozen=True, slots=True)
class BundleArity:
    """The numbers of one bundle.

    Attributes:
        name: of the bundle.
        n_inputs: inputs that the manifest declares.
        n_weights: weights that the weights file lists in its argument order.
        modules: the programs; none for a meta model, which has no program to disagree with.
    """

    name: str
    n_inputs: int
    n_weights: int
    modules: tuple[ModuleArity, ...]

    @property
    def expected(self) -> int:
        """Arguments that every program must take."""
        return self.n_inputs + self.n_weights

    @property
    def servable(self) -> bool:
        """True when all programs are."""
        return all(module.servable for module in self.modules)


def bundle_entry_arity(mlir: str | os.PathLike[str] | bytes) -> int:
    """Count the arguments that a program takes.

    Args:
        mlir: a program file, or its content: a portable artifact, MLIR bytecode or text.

    Raises:
        ProgramProblem: it is none of these.
        OSError: the file cannot be read.

    Example:
        >>> bundle_entry_arity(b"func.func @main(%x: tensor<3xf32>, %w: tensor<3xf32>) {return}")
        2
    """
    if isinstance(mlir, bytes):
        return len(read_program(mlir, "program").signature.inputs)
    path = Path(mlir)
    return len(_read_signature(path).inputs)


def bundle_arity_report(directory: str | os.PathLike[str]) -> BundleArity:
    """Read the numbers of a bundle.

    A program that cannot be read, or takes something else than the bundle has, is told in the
    report and raises nothing, so that a directory of bundles can be looked through.

    Raises:
        ManifestProblem: the manifest is not valid.
        WeightsProblem: the weights file is missing or not valid.
        ProgramProblem: there are no programs, or their files contradict the manifest.
    """
    bundle = Path(directory)
    manifest = load_manifest(bundle)
    if manifest.is_meta:
        return BundleArity(manifest.name, 0, 0, ())
    with open_bundle_weights(bundle, manifest) as file:
        weights = file.arguments
    modules = [
        _check_module(program, manifest, weights) for program in find_programs(bundle, manifest)
    ]
    inputs = len(manifest.executable_inputs)
    return BundleArity(manifest.name, inputs, len(weights), tuple(modules))


def assert_bundle_arity(directory: str | os.PathLike[str]) -> BundleArity:
    """Read the numbers of a bundle, and raise when a server could not serve it.

    Raises:
        ProgramProblem: with what does not fit, for every program.
        BundleProblem: as `bundle_arity_report`.
    """
    report = bundle_arity_report(directory)
    if not report.servable:
        findings = [finding for module in report.modules for finding in module.why]
        raise ProgramProblem(report.name, findings)
    return report


def _check_module(
    program: ProgramFile, manifest: Manifest, weights: tuple[WeightTensor, ...]
) -> ModuleArity:
    file = program.path.name
    try:
        signature = _read_signature(program.path)
    except ProgramProblem as problem:
        return ModuleArity(file, None, tuple(f"{file}: {f}" for f in problem.findings))
    except OSError as error:
        return ModuleArity(file, None, (f"{file}: cannot be read: {error.strerror}",))
    size = program.size or size_of_program(signature, manifest.executable_inputs)
    if size is None:  # open: it is specialised to each of these
        size = next(iter(manifest.compiled_batch_sizes), 1)
    why = check_signature(
        file,
        signature,
        manifest.executable_inputs,
        manifest.executable_outputs,
        weights,
        size,
        {} if program.variant is None else manifest.input_shapes[program.variant],
    )
    return ModuleArity(file, len(signature.inputs), tuple(why))


def _read_signature(path: Path) -> Signature:
    return read_program(read_bounded(path, MAX_PROGRAM_BYTES), path.name).signature
