"""What a bundle declares of its tensors, read off the options and the traced programs.

What lives here: `IOSpec` of inputs and outputs, and which axes of outputs are the batch's. What
does not: letters and notation (`hloserve.bundle.io_spec`). Pure; any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloserve.bundle.axes import VARIABLE
from hloserve.bundle.findings import listing, repeated
from hloserve.bundle.io_spec import IOSpec, build_specs
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import AxisKind, TensorSpec
from hloserve.export.programs import ProgramSet, SizedProgram
from hloserve.export.settings import Settings

__all__ = ["Interface", "declare_interface"]


@dataclass(frozen=True, slots=True)
class Interface:
    """What the bundle declares.

    Attributes:
        inputs: of the executable.
        outputs: of the executable.
        input_specs: the same, with letters.
        output_specs: likewise.
        variant_sizes: sizes of the variable axes per variant, as `write_bundle` wants them; empty
            without variants.
        notes: sentences for the report.
    """

    inputs: tuple[IOSpec, ...]
    outputs: tuple[IOSpec, ...]
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]
    variant_sizes: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]

    def variable(self, variant: int) -> Mapping[str, int]:
        """Sizes of the variable axes of a variant, by letter."""
        if not self.variant_sizes:
            return {}
        letters = [
            axis.letter
            for spec in self.input_specs
            for axis in spec.axes
            if axis.kind is AxisKind.VARIABLE
        ]
        return dict(zip(letters, self.variant_sizes[variant], strict=True))


def declare_interface(settings: Settings, made: ProgramSet) -> Interface:
    """Declare the inputs as the options say and the outputs as the programs have them.

    Raises:
        ExportProblem: names, axes or letters do not fit the programs; all findings.
    """
    findings: list[str] = []
    notes: list[str] = []
    inputs = _declare_inputs(settings)
    outputs = _declare_outputs(settings, made, findings, notes)
    known = {spec.name for spec in (*inputs, *outputs)}
    strange = [name for name in settings.axis_letters if name not in known]
    if strange:
        findings.append(
            f"axis_letters: {listing(strange)} is neither an input nor an output; there are"
            f" {listing(sorted(known))}"
        )
    variants = _variant_sizes(settings)
    if repeated(variants):
        findings.append("shape_variants: two of them have the same shapes; give each once")
    input_specs = build_specs("executable_inputs", inputs, findings, distinct=True)
    output_specs = build_specs("executable_outputs", outputs, findings)
    findings += _unspeakable(input_specs, "input", settings.client_inputs is not None)
    findings += _unspeakable(output_specs, "output", settings.client_outputs is not None)
    if findings:
        raise ExportProblem(settings.name, findings)
    return Interface(inputs, outputs, input_specs, output_specs, variants, tuple(notes))


def _unspeakable(specs: Sequence[TensorSpec], role: str, has_clients: bool) -> list[str]:
    """Tensors that clients would have to send or get, of a dtype that the protocol has not."""
    return [
        f"{role} {spec.name!r} is {spec.dtype}, which clients cannot send or get; convert it in the"
        f" model, or in a hook file with client_{role}s"
        for spec in specs
        if spec.dtype.kserve is None and not has_clients
    ]


def _declare_inputs(settings: Settings) -> tuple[IOSpec, ...]:
    specs = []
    for each in settings.inputs:
        shape = [
            VARIABLE if axis in each.variable_axes else extent
            for axis, extent in enumerate(each.shapes[0])
        ]
        letters = settings.axis_letters.get(each.name)
        specs.append(IOSpec(each.name, each.dtype, tuple(shape), each.batch_axis, letters))
    return tuple(specs)


def _variant_sizes(settings: Settings) -> tuple[tuple[int, ...], ...]:
    if settings.variants == 1:
        return ()
    return tuple(
        tuple(each.shapes[variant][axis] for each in settings.inputs for axis in each.variable_axes)
        for variant in range(settings.variants)
    )


def _declare_outputs(
    settings: Settings, made: ProgramSet, findings: list[str], notes: list[str]
) -> tuple[IOSpec, ...]:
    first = made.programs[0].program.signature.outputs
    names = settings.output_names or made.output_names
    if len(names) != len(first):
        findings.append(
            f"output_names: has {len(names)} names ({listing(names)}), the model returns"
            f" {len(first)} results ({listing(made.output_names)})"
        )
        names = made.output_names
    given = settings.output_batch_axes
    if given is not None and len(given) != len(first):
        findings.append(
            f"output_batch_axes: has {len(given)} entries, the model returns {len(first)} results"
            f" ({listing(names)}); give one per result, None for one without a batch axis"
        )
        given = None
    specs = []
    for index, name in enumerate(names):
        shapes = [(p, p.program.signature.outputs[index].shape) for p in made.programs]
        if len({len(shape) for _, shape in shapes}) > 1:
            findings.append(f"output {name!r} has another rank in another variant; make them equal")
            continue
        probed = [(p, p.program.signature.outputs[index].shape) for p in made.probes]
        batch_axis = follows = None
        if settings.batch_sizes:
            batch_axis = _find_batch_axis(name, [*shapes, *probed], findings, notes)
            if given is not None:
                _check_given_axis(name, given[index], batch_axis, findings)
                follows, batch_axis = batch_axis, given[index]
            if batch_axis is None:
                notes.append(_unmerged_note(name, settings))
        shape = _declared_shape(name, batch_axis, follows, shapes, findings)
        letters = settings.axis_letters.get(name)
        specs.append(IOSpec(name, first[index].dtype, shape, batch_axis, letters))
    return tuple(specs)


def _unmerged_note(name: str, settings: Settings) -> str:
    sizes = settings.batch_sizes
    several = f"one of {listing(sizes)}" if len(sizes) > 1 else str(sizes[0])
    return (
        f"output {name!r} has no batch axis, so requests are neither merged nor padded: servers"
        f" refuse every number of rows but {several}"
    )


_Shapes = Sequence[tuple[SizedProgram, tuple[int | None, ...]]]


def _find_batch_axis(
    name: str, shapes: _Shapes, findings: list[str], notes: list[str]
) -> int | None:
    """The axis whose extent is the batch size in every program."""
    rank = len(shapes[0][1])
    follows = [axis for axis in range(rank) if all(s[axis] == p.size for p, s in shapes)]
    if len({program.size for program, _ in shapes}) == 1:  # an extent may equal it by chance
        if 0 in follows:
            notes.append(f"output {name!r}: axis 0 is taken for the batch axis, by its extent")
        return 0 if 0 in follows else None
    if len(follows) > 1:
        findings.append(
            f"output {name!r} has the batch size as axes {listing(follows)}; an output has one"
            " batch axis, so that rows of different requests stay apart: leave it out"
            " (output_select), or make it per row"
        )
    return follows[0] if follows else None


def _check_given_axis(name: str, given: int | None, found: int | None, findings: list[str]) -> None:
    # None is a choice: of an output whose rows are not independent it says so.
    if given not in (found, None):
        have = "none of its axes follows the batch" if found is None else f"it is axis {found}"
        findings.append(f"output_batch_axes: is {given} for output {name!r}, but {have}")


def _declared_shape(
    name: str,
    batch_axis: int | None,
    follows: int | None,
    shapes: _Shapes,
    findings: list[str],
) -> tuple[int, ...]:
    """Extents as they are declared; `follows` is an axis that may follow the batch undeclared."""
    declared = []
    for axis, extent in enumerate(shapes[0][1]):
        by_variant: dict[int, set[int | None]] = {}
        for program, shape in shapes:
            by_variant.setdefault(program.variant, set()).add(shape[axis])
        if axis not in (batch_axis, follows) and any(
            len(extents) > 1 for extents in by_variant.values()
        ):
            pairs = ", ".join(f"{s[axis]} at batch size {p.size}" for p, s in shapes)
            findings.append(
                f"output {name!r}: axis {axis} is {pairs}: neither fixed nor the batch axis; give"
                " each row a place of its own, such as reshape(batch, -1)"
            )
        is_fixed = axis == batch_axis or len(set.union(*by_variant.values())) == 1
        declared.append(int(extent or 0) if is_fixed else VARIABLE)
    return tuple(declared)
