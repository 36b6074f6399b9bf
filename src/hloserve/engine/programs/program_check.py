"""Whether a program fits the manifest and the weights: the check that turns a bundle which
"registers fine, and every inference fails" into a load error.

What lives here: pure comparison of types; every disagreement is one finding, so that an author sees
all of them at once. What does not: reading programs (`hloserve.engine.programs.mlir`) and the rules
of the manifest itself (`hloserve.bundle.manifest`). Called by the loader and by `hloserve check`;
any thread.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hloserve.core.dtypes import DType
from hloserve.core.tensors import TensorSpec
from hloserve.engine.programs.signature import Signature, TensorType

__all__ = [
    "WeightType",
    "argument_types",
    "check_dynamic",
    "check_signature",
    "size_of_program",
]

_LETTERS_HINT = (
    "the letters of a manifest's shape run fastest-first, the last letter is the outermost axis"
)
_LAYOUT_HINT = (
    "weights in program order need axis_order: xla in the file's metadata, a file without it is"
    " read as legacy, transposed"
)


class WeightType(Protocol):
    """What is compared of a weight; `hloserve.bundle.weights.WeightTensor` is one."""

    @property
    def name(self) -> str:
        """Its name in the weights file."""
        ...

    @property
    def dtype(self) -> DType:
        """Its element type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in program order."""
        ...


def argument_types(
    inputs: Sequence[TensorSpec],
    weights: Sequence[WeightType],
    size: int,
    variable: Mapping[str, int],
) -> tuple[TensorType, ...]:
    """What the arguments of a program must be: the inputs, then the weights.

    Args:
        inputs: executable inputs.
        weights: in argument order.
        size: extent of the batch axes; ignored by inputs without one.
        variable: extent per variable letter.
    """
    expected = [TensorType(spec.dtype, spec.concrete_shape(size, variable)) for spec in inputs]
    expected += [TensorType(weight.dtype, weight.shape) for weight in weights]
    return tuple(expected)


def check_signature(
    source: str,
    signature: Signature,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Sequence[WeightType],
    size: int,
    variable: Mapping[str, int],
) -> list[str]:
    """Compare the types of one program with what the bundle declares.

    Open extents of the program fit anything: they are fixed when it is specialised.

    Args:
        source: the program's file name.
        signature: types of its `main`.
        inputs: executable inputs of the manifest.
        outputs: executable outputs of the manifest.
        weights: in argument order.
        size: batch size it is compiled for; 0 for a model without a batch axis.
        variable: extent per variable letter of the inputs; empty without variants.

    Returns:
        One sentence per disagreement; empty when all fits. Results beyond the declared list are
        legal.
    """
    findings = []
    if len(signature.inputs) != len(inputs) + len(weights):
        findings.append(
            f"{source}: the program takes {_count(signature.inputs, 'argument')}, the bundle"
            f" declares {_count(inputs, 'input')} and {_count(weights, 'weight')}"
            f" ({_names(inputs, weights)}); {_arity_hint(signature, inputs, weights)}"
        )
    else:
        roles = [(f"input {spec.name!r}", _LETTERS_HINT) for spec in inputs]
        roles += [(f"weight {weight.name!r}", _LAYOUT_HINT) for weight in weights]
        expected = argument_types(inputs, weights, size, variable)
        for number, ((role, hint), want, got) in enumerate(
            zip(roles, expected, signature.inputs, strict=True)
        ):
            findings += _compare(f"{source}: {role} (argument {number})", want, got, hint)
    if len(signature.outputs) < len(outputs):
        missing = ", ".join(spec.name for spec in outputs[len(signature.outputs) :])
        findings.append(
            f"{source}: the program returns {_count(signature.outputs, 'result')}, the manifest"
            f" declares {_count(outputs, 'output')}: nothing is left for {missing}"
        )
    for number, (spec, got) in enumerate(zip(outputs, signature.outputs, strict=False)):
        want = TensorType(spec.dtype, _output_shape(spec, size))
        place = f"{source}: output {spec.name!r} (result {number})"
        findings += _compare(place, want, got, _LETTERS_HINT)
    return findings


def check_dynamic(source: str, signature: Signature, inputs: Sequence[TensorSpec]) -> list[str]:
    """Check that a program which is said to take any batch size has exactly these extents open.

    Args:
        source: the program's file name.
        signature: types of its `main`; ranks and counts are left to `check_signature`.
        inputs: executable inputs of the manifest.
    """
    findings = []
    for number, kind in enumerate(signature.inputs):
        is_input = number < len(inputs)
        batch_axis = inputs[number].batch_axis if is_input else None
        place = f"{source}: {f'input {inputs[number].name!r}' if is_input else 'a weight'}"
        open_axes = [axis for axis, extent in enumerate(kind.shape) if extent is None]
        strange = [axis for axis in open_axes if axis != batch_axis]
        if strange:
            findings.append(
                f"{place} (argument {number}) has open extents that are not the batch axis ({kind},"
                f" axis {', '.join(map(str, strange))}); batching.dynamic leaves the batch axis"
                " alone open: fix the others when exporting"
            )
        if batch_axis is not None and batch_axis < len(kind.shape) and batch_axis not in open_axes:
            findings.append(
                f"{place} (argument {number}) takes batches of {kind.shape[batch_axis]} only"
                f" ({kind}), but batching.dynamic is true; export the program with a symbolic batch"
                " axis, or list this size only and remove dynamic"
            )
    return findings


def size_of_program(signature: Signature, inputs: Sequence[TensorSpec]) -> int | None:
    """The batch size that is baked into the types of a single `model.mlir`.

    Returns:
        The size; 0 when no input has a batch axis; None when it is open, so that the program can
        be specialised to any size. A rank that does not fit is left to `check_signature`.
    """
    for spec, kind in zip(inputs, signature.inputs, strict=False):
        if spec.batch_axis is not None and spec.batch_axis < len(kind.shape):
            return kind.shape[spec.batch_axis]
    return 0


def _output_shape(spec: TensorSpec, size: int) -> tuple[int | None, ...]:
    """A variable axis is whatever the program makes it; so is a batch axis that no input has.

    Letters are scoped to their tensor, so the sizes of `input_shapes` say nothing about outputs.
    """
    batch = size or None
    return tuple(
        batch if number == spec.batch_axis else axis.extent for number, axis in enumerate(spec.axes)
    )


def _compare(place: str, want: TensorType, got: TensorType, reversed_hint: str) -> list[str]:
    findings = []
    if want.dtype is not got.dtype:
        findings.append(
            f"{place}: dtype is {got.dtype.token} in the program ({got}), expected"
            f" {want.dtype.token} ({want})"
        )
    if not _fits(want.shape, got.shape):
        is_reversed = len(want.shape) > 1 and _fits(want.shape[::-1], got.shape)
        hint = f"; the axes are reversed: {reversed_hint}" if is_reversed else ""
        findings.append(
            f"{place}: shape is {_shape(got)} in the program ({got}), expected {_shape(want)}"
            f" ({want}){hint}"
        )
    return findings


def _fits(want: Sequence[int | None], got: Sequence[int | None]) -> bool:
    return len(want) == len(got) and all(
        w is None or g is None or w == g for w, g in zip(want, got, strict=True)
    )


def _shape(kind: TensorType) -> str:
    extents = ["?" if extent is None else str(extent) for extent in kind.shape]
    return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _names(inputs: Sequence[TensorSpec], weights: Sequence[WeightType], most: int = 8) -> str:
    names = [spec.name for spec in inputs] + [weight.name for weight in weights]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _arity_hint(
    signature: Signature, inputs: Sequence[TensorSpec], weights: Sequence[WeightType]
) -> str:
    if len(signature.inputs) < len(inputs) + len(weights):
        return (
            "export with unused arguments kept (jax.jit(..., keep_unused=True)), or remove them"
            " from argument_order in the weights file"
        )
    return "add what is missing to argument_order in the weights file, or to executable_inputs"
