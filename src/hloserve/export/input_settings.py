"""The options of an export that are about its inputs, checked against the examples.

What lives here: `InputSetting`: name, dtype, batch axis and shapes of an input. What does not: all
other options (`hloserve.export.settings`, which calls this). Pure; any thread.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hloserve.bundle.axes import is_whole
from hloserve.bundle.findings import describe, listing, repeated
from hloserve.core.dtypes import DType, by_numpy
from hloserve.export.options import ExportOptions
from hloserve.export.source import Shape, Source

__all__ = ["InputSetting", "read_inputs", "read_names"]


@dataclass(frozen=True, slots=True)
class InputSetting:
    """One input of the program.

    Attributes:
        name: in the manifest.
        dtype: of its example.
        batch_axis: in numpy order; None without one.
        shapes: its shape per variant; the extent of the batch axis is the example's.
    """

    name: str
    dtype: DType
    batch_axis: int | None
    shapes: tuple[tuple[int, ...], ...]

    def shape(self, variant: int, batch: int | str) -> Shape:
        """Its shape with the batch axis filled in."""
        return tuple(
            batch if axis == self.batch_axis else extent
            for axis, extent in enumerate(self.shapes[variant])
        )

    def nbytes(self, variant: int, batch: int) -> int:
        """Bytes of the input for a number of rows."""
        return math.prod(self.extents(variant, batch)) * self.dtype.itemsize

    def extents(self, variant: int, batch: int) -> tuple[int, ...]:
        """Its shape for a number of rows."""
        return tuple(int(extent) for extent in self.shape(variant, batch))

    @property
    def variable_axes(self) -> tuple[int, ...]:
        """Axes whose extent differs between variants."""
        first = self.shapes[0]
        return tuple(
            axis
            for axis in range(len(first))
            if axis != self.batch_axis and any(s[axis] != first[axis] for s in self.shapes)
        )


def read_inputs(
    source: Source, options: ExportOptions, has_batch: bool, findings: list[str]
) -> tuple[InputSetting, ...]:
    """Check the options about inputs against a source's examples.

    Args:
        source: its example inputs.
        options: of the export.
        has_batch: there are batch sizes.
        findings: gets one sentence per fault; inputs with faults may be left out.
    """
    examples = source.inputs
    names = read_names("input_names", options, len(examples), findings)
    names = names or tuple(name for name, _ in examples)
    shapes = [[array.shape for _, array in examples]]
    shapes = _read_variants(source, options, findings) or shapes
    axes = _read_input_axes(options, shapes, has_batch, names, findings)
    resolved = []
    for index, (_, array) in enumerate(examples):
        try:
            dtype = by_numpy(array.dtype)
        except KeyError:
            findings.append(f"input {names[index]!r}: dtype {array.dtype} has no place in a bundle")
            continue
        of_input = tuple(tuple(variant[index]) for variant in shapes)
        resolved.append(InputSetting(names[index], dtype, axes[index], of_input))
    return tuple(resolved)


def read_names(
    option: str, options: ExportOptions, expected: int | None, findings: list[str]
) -> tuple[str, ...] | None:
    """The names that an option gives; None when it gives none, or none that can be used."""
    given = cast(Mapping[str, Any], options).get(option)
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names):
        findings.append(f"{option}: must be names, got {describe(given)}")
        return None
    if repeated(names):
        findings.append(f"{option}: {listing(repeated(names))} is in it twice; names are unique")
    if expected is not None and len(names) != expected:
        findings.append(
            f"{option}: has {len(names)} names ({listing(names)}) for {expected} example inputs"
        )
        return None
    return names


def _read_input_axes(
    options: ExportOptions,
    shapes: Sequence[Sequence[tuple[int, ...]]],
    has_batch: bool,
    names: Sequence[str],
    findings: list[str],
) -> tuple[int | None, ...]:
    ranks = [len(shape) for shape in shapes[0]]
    unbatched = (None,) * len(ranks)
    given = options.get("input_batch_axes")
    if not has_batch:
        if given is not None and any(axis is not None for axis in given):
            findings.append(
                "input_batch_axes: there is no batch axis without batch_sizes; give these too"
            )
        return unbatched
    if given is None:
        axes: tuple[int | None, ...] = (0,) * len(ranks)
        hint = "; requests are merged along it, so every input has one: give it a value per row"
    else:
        axes, hint = tuple(given), ""
    if len(axes) != len(ranks):
        findings.append(
            f"input_batch_axes: has {len(axes)} entries for {len(ranks)} inputs; give one per"
            " input, None for one without a batch axis"
        )
        return unbatched
    before = len(findings)
    findings += [
        f"input {name!r}: batch axis {axis} is not an axis of its {rank} axes{hint}"
        for name, axis, rank in zip(names, axes, ranks, strict=False)
        if axis is not None and not (is_whole(axis) and 0 <= axis < rank)
    ]
    lacking = [name for name, axis in zip(names, axes, strict=False) if axis is None]
    if len(lacking) == len(axes):
        findings.append(
            "input_batch_axes: no input has a batch axis, but there are batch_sizes; leave these"
            " out too"
        )
    elif lacking:
        findings.append(
            f"input_batch_axes: {listing(lacking)} has no batch axis and others have; requests are"
            " merged row by row, so all inputs of a bundle have one or none: give it a value per"
            " row, make it a weight, or leave batch_sizes out"
        )
    return axes if len(findings) == before else unbatched


def _read_variants(
    source: Source, options: ExportOptions, findings: list[str]
) -> list[list[tuple[int, ...]]]:
    """Shapes per variant; empty when there are no variants, or none that can be used."""
    given = options.get("shape_variants")
    if given is None:
        return []
    expected = [(tuple(a.shape), _dtype_name(a)) for _, a in source.inputs]
    variants = []
    before = len(findings)
    for index, examples in enumerate(given):
        where = f"shape_variants[{index}]"
        values = _leaves_of(examples, [name for name, _ in source.inputs])
        if len(values) != len(expected):
            findings.append(
                f"{where}: has {len(values)} inputs, the example inputs are {len(expected)}"
            )
            continue
        for (name, _), value, (shape, dtype) in zip(source.inputs, values, expected, strict=True):
            if len(_shape_of(value)) != len(shape) or _dtype_name(value) not in ("", dtype):
                findings.append(
                    f"{where}: input {name!r} is {_dtype_name(value)} of shape {_shape_of(value)},"
                    f" expected {dtype} with {len(shape)} axes, as the example inputs are"
                )
        variants.append([_shape_of(value) for value in values])
    if not variants and len(findings) == before:
        findings.append("shape_variants: is empty; leave it out for one set of shapes")
    return variants if len(findings) == before else []


def _leaves_of(examples: Any, names: Sequence[str]) -> list[Any]:
    """The arrays of one set of example inputs, in the order of the arguments."""
    if isinstance(examples, Mapping):
        order = names if set(examples) == set(names) else list(examples)
        values = [examples[name] for name in order]
    else:
        values = list(examples) if isinstance(examples, list | tuple) else [examples]
    return [leaf for value in values for leaf in _tree_leaves(value)]


def _tree_leaves(value: Any) -> list[Any]:
    """The leaves of nested dicts, lists and tuples; dicts by sorted keys, as JAX has them."""
    if isinstance(value, Mapping):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in _tree_leaves(each)]
    return [] if value is None else [value]


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in getattr(value, "shape", ()))


def _dtype_name(value: Any) -> str:
    """The dtype of a numpy, jax or torch array in numpy's words; empty for plain numbers."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.")
