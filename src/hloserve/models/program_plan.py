"""Which programs of a bundle are compiled for which shape, and whether they fit.

What lives here: reading the program files, checking each against manifest and weights, fixing open
extents. What does not: compiling (`hloserve.models.loader`), the comparison itself
(`hloserve.engine.programs.program_check`). Called by the loader on its thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloserve.bundle.files import read_bounded
from hloserve.bundle.findings import listing
from hloserve.bundle.layout import ProgramFile, check_single_program, find_programs
from hloserve.bundle.manifest import Manifest
from hloserve.core.errors import BundleProblem, ProgramProblem
from hloserve.core.tensors import Axis, AxisKind, TensorSpec
from hloserve.engine.backend import Program, ProgramReader
from hloserve.engine.device_model import VariantKey, variant_key
from hloserve.engine.programs.program_check import (
    WeightType,
    argument_types,
    check_dynamic,
    check_signature,
    size_of_program,
)
from hloserve.engine.programs.program_probe import MAX_PROGRAM_BYTES

__all__ = [
    "PlannedProgram",
    "all_outputs",
    "differing_results",
    "plan_file",
    "plan_programs",
]


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """One program to compile.

    Attributes:
        name: its file, and the batch size where one file serves several.
        variant: key of the compiled shape.
        size: batch size; 0 without a batch axis.
        program: static types, checked.
    """

    name: str
    variant: VariantKey
    size: int
    program: Program


def plan_programs(
    bundle: Path,
    manifest: Manifest,
    weights: Sequence[WeightType] | None,
    reader: ProgramReader,
    findings: list[str],
    batch_sizes: Sequence[int] | None = None,
) -> list[PlannedProgram]:
    """Read and check every program of a bundle.

    Args:
        bundle: its directory.
        manifest: of a regular model.
        weights: in argument order; None when they are unknown: then types are not checked.
        reader: reads programs.
        findings: gets one sentence per disagreement.
        batch_sizes: what the operator wants compiled; None for what the bundle lists.

    Returns:
        The programs that are in order.
    """
    try:
        files = find_programs(bundle, manifest)
    except BundleProblem as problem:
        findings += problem.findings
        return []
    wanted = () if batch_sizes is None else tuple(sorted(set(batch_sizes)))
    planned = []
    for file in _choose_files(files, manifest, wanted, findings):
        planned += plan_file(file, manifest, weights, reader, findings, wanted)
    findings += differing_results(planned, manifest)
    return planned


def _choose_files(
    files: Sequence[ProgramFile], manifest: Manifest, wanted: Sequence[int], findings: list[str]
) -> Sequence[ProgramFile]:
    """Of programs for one size each, those that the operator wants; all when it does not say."""
    available = sorted({file.size for file in files})
    if not wanted or 0 in available:  # what a file without a size takes is in its types
        return files
    findings += _unavailable(manifest, wanted, available)
    return [file for file in files if file.size in wanted]


def _unavailable(
    manifest: Manifest, wanted: Sequence[int], available: Sequence[int]
) -> Sequence[str]:
    missing = [size for size in wanted if size not in available]
    if not missing:
        return ()
    return [
        f"{_setting(manifest)} asks for {listing(missing)}, but the bundle's programs are for"
        f" {listing(available)}; choose among these, or export it with a dynamic batch"
    ]


def _setting(manifest: Manifest) -> str:
    return f"scheduler.models.{manifest.name}.batch_sizes"


def plan_file(
    file: ProgramFile,
    manifest: Manifest,
    weights: Sequence[WeightType] | None,
    reader: ProgramReader,
    findings: list[str],
    wanted: Sequence[int] = (),
) -> list[PlannedProgram]:
    """Read and check one program file; `plan_programs` without what concerns several.

    Args:
        file: of the bundle.
        manifest: of a regular model.
        weights: in argument order; None when they are unknown: then types are not checked.
        reader: reads programs.
        findings: gets one sentence per disagreement, each once.
        wanted: batch sizes that the operator wants, ascending; empty for those of the bundle.
    """
    name = file.path.name
    try:
        program = reader.read_program(read_bounded(file.path, MAX_PROGRAM_BYTES), name)
    except ProgramProblem as problem:
        findings += [f"{name}: {finding}" for finding in problem.findings]
        return []
    except OSError as error:
        findings.append(f"{name}: cannot be read: {error.strerror}")
        return []
    if weights is None:
        return []
    variable = {} if file.variant is None else manifest.input_shapes[file.variant]
    if manifest.is_dynamic:
        findings += check_dynamic(name, program.signature, manifest.executable_inputs)
    planned = []
    for size in _sizes(file, program, manifest, findings, wanted):
        found, fixed = _fit(name, program, manifest, weights, size, variable, reader)
        findings += [finding for finding in found if finding not in findings]
        key = variant_key(manifest.executable_inputs, variable)
        label = name if file.size or not size else f"{name} at batch size {size}"
        planned.append(PlannedProgram(label, key, size, fixed))
    return planned


def _sizes(
    file: ProgramFile,
    program: Program,
    manifest: Manifest,
    findings: list[str],
    wanted: Sequence[int],
) -> Sequence[int]:
    """The batch sizes that one file is compiled for."""
    if not manifest.has_batch_axis:
        if wanted:
            findings.append(
                f"{_setting(manifest)} is set, but no executable input has a batch axis; remove the"
                " setting"
            )
        return (0,)
    if file.size:
        return (file.size,)
    size = size_of_program(program.signature, manifest.executable_inputs)
    if size is None and wanted:
        return wanted
    if size is None and not manifest.compiled_batch_sizes:
        findings.append(
            f"{file.path.name}: the program takes any batch size, but"
            " batching.compiled_batch_sizes is empty; list the sizes to compile, such as"
            f" [1, 8, 32], there or in {_setting(manifest)}"
        )
        return ()
    if size is None:
        return manifest.compiled_batch_sizes
    if size == 0:  # no such axis in the program: the comparison of types says it best
        return manifest.compiled_batch_sizes[:1] or (1,)
    if wanted:
        findings += _unavailable(manifest, wanted, (size,))
    elif not manifest.is_dynamic:  # there `check_dynamic` says it
        findings += check_single_program(manifest, size, False, file.path.name)
    return (size,)


def _fit(
    name: str,
    program: Program,
    manifest: Manifest,
    weights: Sequence[WeightType],
    size: int,
    variable: Mapping[str, int],
    reader: ProgramReader,
) -> tuple[list[str], Program]:
    """Check one program at one size; fix its open extents when it fits so far."""
    inputs, outputs = manifest.executable_inputs, manifest.executable_outputs
    found = check_signature(name, program.signature, inputs, outputs, weights, size, variable)
    signature = program.signature
    is_open = any(None in kind.shape for kind in (*signature.inputs, *signature.outputs))
    if found or not is_open:
        return found, program
    try:
        fixed = reader.specialise(program, argument_types(inputs, weights, size, variable))
    except ProgramProblem as problem:
        at = f"{name} at batch size {size}" if size else name
        return [f"{at}: {finding}" for finding in problem.findings], program
    return check_signature(name, fixed.signature, inputs, outputs, weights, size, variable), fixed


def differing_results(planned: Sequence[PlannedProgram], manifest: Manifest) -> list[str]:
    """Undeclared results are served by position, so every program must have the same ones."""
    if not planned:
        return []
    first = planned[0]
    declared = len(manifest.executable_outputs)
    findings = []
    for other in planned[1:]:
        if len(first.program.signature.outputs) != len(other.program.signature.outputs):
            counts = [len(plan.program.signature.outputs) for plan in (first, other)]
            plural = "" if counts[1] == 1 else "s"
            findings.append(
                f"{other.name} returns {counts[1]} result{plural}, {first.name} returns"
                f" {counts[0]}; all programs of a bundle must return the same"
            )
            continue
        for number in range(declared, len(first.program.signature.outputs)):
            kinds = [plan.program.signature.outputs[number] for plan in (first, other)]
            if kinds[0].dtype is not kinds[1].dtype or len(kinds[0].shape) != len(kinds[1].shape):
                findings.append(
                    f"{other.name}: result {number} is {kinds[1]}, in {first.name} it is"
                    f" {kinds[0]}; all programs must agree on dtype and rank"
                )
    return findings


def all_outputs(
    manifest: Manifest, planned: Sequence[PlannedProgram]
) -> tuple[tuple[TensorSpec, ...], list[str]]:
    """The declared outputs, and ``output_k`` for each result beyond them.

    An undeclared result has no batch axis, unless its outermost extent is the batch size in
    programs of at least two sizes: then it cannot be anything else.

    Returns:
        Specs in program order, and a warning per undeclared result.
    """
    declared = manifest.executable_outputs
    specs, warnings = list(declared), []
    results = len(planned[0].program.signature.outputs) if planned else 0
    for number in range(len(declared), results):
        shapes = [plan.program.signature.outputs[number].shape for plan in planned]
        sizes = [plan.size for plan in planned]
        is_batched = len(set(sizes)) > 1 and all(
            shape[:1] == (size,) for shape, size in zip(shapes, sizes, strict=True)
        )
        axes = [_axis(place, {shape[place] for shape in shapes}) for place in range(len(shapes[0]))]
        if is_batched:
            axes[0] = Axis("n", AxisKind.BATCH)
        dtype = planned[0].program.signature.outputs[number].dtype
        spec = TensorSpec(f"output_{number}", dtype, tuple(axes))
        specs.append(spec)
        effect = "" if is_batched else "; without a batch axis requests cannot share a batch"
        warnings.append(
            f"result {number} of the programs is not declared in executable_outputs and is served"
            f" as {spec.name!r}{effect}"
        )
    return tuple(specs), warnings


def _axis(place: int, extents: set[int | None]) -> Axis:
    letter = "acdefghijklmopqrstuvwxyz"[place % 24]
    extent = extents.pop() if len(extents) == 1 else None
    if extent is None:
        return Axis(letter, AxisKind.VARIABLE)
    return Axis(letter, AxisKind.FIXED, extent)
