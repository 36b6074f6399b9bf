"""The rules that join several sections of a manifest.

What lives here: batchability, shape variants, client-facing specs. What does not: what a key may
hold by itself (`hloserve.bundle.sections`). Pure functions from specs to findings; any thread.
"""

from collections.abc import Mapping, Sequence

from hloserve.bundle.axes import VariableAxis, variable_axes
from hloserve.bundle.findings import listing
from hloserve.core.dtypes import BYTES
from hloserve.core.tensors import TensorSpec

__all__ = [
    "check_batch_axes",
    "check_client_sections",
    "check_dynamic",
    "check_executable_dtypes",
    "check_labels",
    "check_meta",
    "check_variants",
    "check_wire_dtypes",
    "refused_call",
    "variant_keys",
]


def check_batch_axes(
    inputs: Sequence[TensorSpec], compiled_batch_sizes: Sequence[int]
) -> list[str]:
    """All executable inputs have a batch axis, or none has and at most one size is compiled."""
    unbatched = [spec.name for spec in inputs if spec.batch_axis is None]
    batched = [spec.name for spec in inputs if spec.batch_axis is not None]
    findings = []
    if unbatched and batched:
        findings.append(
            f"executable_inputs: {listing(unbatched)} have no batch axis, but {listing(batched)}"
            " have; give every executable input a batch letter ('n'), or none"
        )
    if not batched and len(compiled_batch_sizes) > 1:
        findings.append(
            f"batching.compiled_batch_sizes lists {listing(compiled_batch_sizes)}, but no"
            " executable input has a batch axis; add the letter 'n' to the shapes, or list no sizes"
        )
    return findings


def check_dynamic(kind: str, inputs: Sequence[TensorSpec], declared_sizes: object) -> list[str]:
    """`batching.dynamic` is for a program with a batch axis, and needs sizes to specialise it to.

    Args:
        kind: of the manifest.
        inputs: executable inputs.
        declared_sizes: the list of sizes as it stands in the manifest, right or wrong.
    """
    if kind == "meta":
        return ["batching.dynamic is only for kind model; a meta model compiles nothing itself"]
    findings = []
    if all(spec.batch_axis is None for spec in inputs):
        findings.append(
            "batching.dynamic is true, but no executable input has a batch axis; add the letter 'n'"
            " to the shapes, or remove dynamic"
        )
    if declared_sizes is None or declared_sizes == []:
        findings.append(
            "batching.dynamic is true, but compiled_batch_sizes is empty; list the sizes that a"
            " server compiles when its operator names no others, such as [1, 8, 32]"
        )
    return findings


def check_variants(
    inputs: Sequence[TensorSpec], input_shapes: Sequence[Mapping[str, int]]
) -> list[str]:
    """`input_shapes` sizes exactly the variable axes of the executable inputs, without repeats."""
    axes = variable_axes(inputs)
    if axes and not input_shapes:
        places = listing(f"{axis.letter} of {axis.input}" for axis in axes)
        return [
            f"executable_inputs have variable axes ({places}) but there is no input_shapes;"
            " list the compiled sizes there, or give the axes fixed sizes"
        ]
    if input_shapes and not axes:
        return [
            "input_shapes is given, but no executable input has a variable axis (-1 in dims);"
            " remove it, or mark the axes that vary"
        ]
    letters = list(dict.fromkeys(axis.letter for axis in axes))
    findings = []
    for index, sizes in enumerate(input_shapes):
        missing = [letter for letter in letters if letter not in sizes]
        extra = [letter for letter in sizes if letter not in letters]
        if missing:
            findings.append(f"input_shapes[{index}] lacks a size for {listing(missing)}; add it")
        if extra:
            findings.append(
                f"input_shapes[{index}] gives sizes for {listing(extra)}, which are not variable"
                f" axes of an executable input (those are {listing(letters)}); remove them"
            )
    return findings or _check_repeats(variant_keys(axes, input_shapes))


def variant_keys(
    axes: Sequence[VariableAxis], input_shapes: Sequence[Mapping[str, int]]
) -> tuple[tuple[int, ...], ...]:
    """The sizes of each variant, in the order of `axes`."""
    return tuple(tuple(sizes[axis.letter] for axis in axes) for sizes in input_shapes)


def _check_repeats(keys: Sequence[tuple[int, ...]]) -> list[str]:
    first: dict[tuple[int, ...], int] = {}
    findings = []
    for index, key in enumerate(keys):
        if key in first:
            findings.append(
                f"input_shapes[{index}] has the same sizes as input_shapes[{first[key]}]"
                f" ({listing(key)}); remove one"
            )
        first.setdefault(key, index)
    return findings


def check_meta(
    client_inputs: Sequence[TensorSpec] | None,
    client_outputs: Sequence[TensorSpec] | None,
    input_shapes: Sequence[Mapping[str, int]],
    has_hook_file: bool,
) -> list[str]:
    """A meta model needs a hook file and client specs, and has no shape variants."""
    findings = []
    if not has_hook_file:
        findings.append("kind is meta, which needs model.py to register its `run` function; add it")
    for section, specs in (("client_inputs", client_inputs), ("client_outputs", client_outputs)):
        if specs is None:
            findings.append(f"{section} is missing; kind meta needs it, with at least one tensor")
    if input_shapes:
        findings.append("input_shapes is only for kind model; a meta model compiles nothing itself")
    return findings


def refused_call(name: str) -> str:
    """Why a meta model may not call a meta model: it would wait for a turn that it holds."""
    return (
        f"meta.calls names {name!r}, which is a meta model itself; a meta model may call other"
        " models only: call what that one calls"
    )


def check_client_sections(declared: Sequence[str], has_hook_file: bool) -> list[str]:
    """Client sections need a hook file that turns one side into the other."""
    if has_hook_file:
        return []
    return [
        f"{section} is only for bundles with a hook file; add model.py, or remove {section}, and"
        " the executable specs are the client's"
        for section in declared
    ]


def check_wire_dtypes(section: str, specs: Sequence[TensorSpec]) -> list[str]:
    """Client-facing tensors need a dtype that the V2 protocol has."""
    return [
        f"{section}: {spec.name!r} faces clients with dtype {spec.dtype}, which the V2 protocol"
        " cannot carry; declare client specs with another dtype and convert in model.py"
        for spec in specs
        if spec.dtype.kserve is None
    ]


def check_executable_dtypes(section: str, specs: Sequence[TensorSpec]) -> list[str]:
    """A program computes with numbers: no tensor of it holds strings."""
    return [
        f"{section}: {spec.name!r} has dtype bytes, which no program can take or return; only"
        " client_inputs and client_outputs may have it: declare the strings there, and convert in"
        " model.py"
        for spec in specs
        if spec.dtype is BYTES
    ]


def check_labels(labels: Mapping[str, str], outputs: Sequence[TensorSpec]) -> list[str]:
    """Labels name the classes of numeric outputs that clients see.

    Args:
        labels: name of the file with the labels, by output.
        outputs: what clients get.
    """
    declared = {spec.name: spec for spec in outputs}
    findings = []
    for name in labels:
        if name not in declared:
            findings.append(f"labels: there is no output {name!r}; clients get {listing(declared)}")
        elif declared[name].dtype is BYTES:
            findings.append(f"labels: output {name!r} has dtype bytes, which has no classes")
    return findings
