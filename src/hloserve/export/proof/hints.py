"""What is said when a proof fails, and of what it cannot see.

What lives here: sentences made of figures and arrays. What does not: the verdicts
(`hloserve.export.proof.figures`). Pure; one thread.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hloserve.core.tensors import Array, TensorSpec
from hloserve.engine.programs.differences import compare, is_float
from hloserve.export.proof.figures import TOLERANCES
from hloserve.export.proof.inputs import is_fixed
from hloserve.export.report import OutputProof, ProgramReport
from hloserve.export.source import NamedArrays

__all__ = ["explain_failure", "explain_nothing_proved", "is_narrow", "near_notes", "value_notes"]

_NARROW = 30
_MOST_BYTES = 1 << 20


def is_narrow(failed: Sequence[OutputProof]) -> bool:
    """True when outputs miss their tolerance by so little that rounding may be the cause."""
    return all(proof.relative <= _NARROW * proof.tolerance for proof in failed)


def explain_failure(
    file: str,
    verdicts: Sequence[tuple[OutputProof, bool]],
    wanted: Sequence[Array],
    got: Sequence[Array],
    noise: Mapping[str, float],
) -> list[str]:
    """One finding per output that fails, and the next step.

    Args:
        file: the program.
        verdicts: per output.
        wanted: the source's outputs for one of the inputs.
        got: the program's.
        noise: how far an output of the source moves when inputs change in their last bit.
    """
    names = [proof.name for proof, _ in verdicts]
    failed = [number for number, (_, passes) in enumerate(verdicts) if not passes]
    findings = []
    for number in failed:
        proof = verdicts[number][0]
        text = f"{file}: output {proof.name!r} {_difference(proof, wanted[number], got[number])}"
        twin = _twin(number, wanted, got[number])
        if twin is not None:
            text += f"; it agrees with the source's {names[twin]!r}: outputs are exchanged"
        if proof.name in noise:
            text += (
                f"; the source's own moves by {noise[proof.name]:.2g} when its inputs change in"
                " their last bit"
            )
        findings.append(text)
    proofs = [verdicts[number][0] for number in failed]
    return [*findings, _next_step(proofs)]


def _difference(proof: OutputProof, want: Array, got: Array) -> str:
    misplaced = compare(want, got).misplaced
    if misplaced:
        return (
            f"({proof.dtype}) has NaN or infinity on one side only in {misplaced} of"
            f" {want.size} elements"
        )
    if not is_float(want.dtype):
        return (
            f"({proof.dtype}) differs in {proof.error:.2%} of its elements; {proof.signal:.2%}"
            f" change from one input to another, and of these {proof.tolerance:.2%} may differ"
        )
    if proof.signal == 0:
        return f"({proof.dtype}) does not depend on the inputs, and is off by {proof.error:.2g}"
    return (
        f"({proof.dtype}) is off by up to {proof.error:.2g}: {proof.relative:.2%} of the"
        f" {proof.signal:.2g} that the source's own moves from one input to another;"
        f" {proof.tolerance:.2%} passes"
    )


def _twin(number: int, wanted: Sequence[Array], got: Array) -> int | None:
    """Another output of the source that is what the program gives here."""
    for other, want in enumerate(wanted):
        is_same_type = (want.dtype, want.shape) == (got.dtype, got.shape)
        if other == number or not is_same_type or not want.size:
            continue
        comparison = compare(want, got)
        if comparison.error <= 1e-3 * comparison.scale and not comparison.misplaced:
            return other
    return None


def _next_step(failed: Sequence[OutputProof]) -> str:
    if not is_narrow(failed):
        return (
            "the program computes something else: an operation is lowered wrongly, or arguments are"
            " in another order; export part of the model (output_select) to find where it begins"
        )
    if all(proof.dtype[0] in "iub" and proof.dtype != "bf16" for proof in failed):
        return (
            "integers that come of comparing floats (argmax, sorting, thresholds) may fall either"
            " way where these are equal but for rounding; pass tolerance for the share that may"
        )
    enough = 2 * max(proof.relative for proof in failed)
    return (
        "this small an error comes of lower precision: matmul_precision='highest' keeps float32"
        " products exact, and a model that computes in half precision inside (autocast) needs a"
        f" tolerance, such as tolerance={enough:.0e}"
    )


def explain_nothing_proved(
    file: str,
    proofs: Sequence[OutputProof],
    inputs: Sequence[TensorSpec],
    examples: NamedArrays,
) -> str:
    """Why agreement means nothing here, and what to do."""
    moves = ", ".join(
        f"{proof.name!r} by {proof.signal:.1g}" + (f", where {proof.note}" if proof.note else "")
        for proof in proofs[:8]
    )
    fixed = _fixed(inputs, examples)
    if not inputs:
        step = "the model takes no inputs: what it returns is a constant, and needs no server"
    elif fixed:
        step = (
            f"input {', '.join(map(repr, fixed))} is the same everywhere in the example, and so in"
            " the proof; give an example that spans its values, or pass sample_inputs"
        )
    else:
        step = (
            "load the trained weights (or calibrate normalisation layers that were never trained),"
            " give an example that is typical, or pass sample_inputs"
        )
    return (
        f"{file}: the outputs of the source ignore its inputs, so that nothing is proved (from one"
        f" input to another they move: {moves}); {step}"
    )


def near_notes(programs: Sequence[ProgramReport]) -> list[str]:
    """Outputs that pass by less than a factor of ten, where rounding usually leaves more room."""
    near = [
        (output, program.file)
        for program in programs
        for output in program.outputs
        if output.is_proved and output.relative > output.tolerance / 10
        if TOLERANCES.get(output.dtype) == output.tolerance <= TOLERANCES["f32"]
    ]
    near.sort(key=lambda found: found[0].relative)
    worst = {output.name: (output, file) for output, file in near}
    return [
        f"output {output.name!r} of {file} is off by {output.relative:.1e} of its signal: that"
        f" passes ({output.tolerance:.0e}), and is more than rounding leaves in most models; an"
        " operation may be approximated"
        for output, file in worst.values()
    ]


def value_notes(
    inputs: Sequence[TensorSpec], examples: NamedArrays, weights: NamedArrays
) -> list[str]:
    """What a proof cannot see, since the values are equal."""
    notes = []
    fixed = _fixed(inputs, examples)
    if fixed:
        notes.append(
            f"input {', '.join(map(repr, fixed))} is the same everywhere in the example, and was"
            " proved with that value only"
        )
    small = [array for _, array in weights if array.nbytes <= _MOST_BYTES]
    counts = Counter((array.dtype, array.shape, array.tobytes()) for array in small)
    equal = {key: count for key, count in counts.items() if count > 1}
    if equal:
        uniform = sum(count for key, count in equal.items() if _is_uniform(key[0], key[2]))
        copies = sum(equal.values()) - uniform
        kinds = [f"{uniform} of one value throughout, such as zeros"] if uniform else []
        kinds += [f"{copies} that are copies of each other"] if copies else []
        notes.append(
            f"{sum(equal.values())} of {len(weights)} weights equal another one"
            f" ({', '.join(kinds)}): their order among themselves is not proved"
        )
    return notes


def _is_uniform(dtype: np.dtype[np.generic], content: bytes) -> bool:
    return content == content[: dtype.itemsize] * (len(content) // dtype.itemsize)


def _fixed(inputs: Sequence[TensorSpec], examples: NamedArrays) -> list[str]:
    return [
        spec.name for spec, (_, example) in zip(inputs, examples, strict=True) if is_fixed(example)
    ]
