"""The programs that an author hands in: which file each becomes, and what the manifest says of it.

What lives here: the table from (variant, batch size) to file name and bytes. What does not: what is
in a program (nothing here reads one). Pure; any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from hloserve.bundle.axes import is_whole
from hloserve.bundle.findings import describe, listing
from hloserve.bundle.layout import program_name
from hloserve.core.tensors import AxisKind, TensorSpec

__all__ = ["ExportedModule", "Module", "ModulePlan", "Modules", "plan_modules"]


@runtime_checkable
class ExportedModule(Protocol):
    """What `jax.export` returns: it holds the serialized program."""

    @property
    def mlir_module_serialized(self) -> bytes:
        """The portable artifact."""
        ...


Module: TypeAlias = bytes | str | ExportedModule
"""A program: a portable artifact, MLIR text, or an exported module that holds an artifact."""

Modules: TypeAlias = Mapping[int, Module] | Mapping[tuple[int, ...], Mapping[int, Module]]
"""Batch size to program; with shape variants, variant to batch size to program."""


@dataclass
class ModulePlan:
    """What the programs become.

    Attributes:
        files: name to bytes.
        compiled_batch_sizes: for the manifest.
        is_dynamic: for the manifest.
        input_shapes: for the manifest; empty without variants.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    compiled_batch_sizes: list[int] = field(default_factory=list)
    is_dynamic: bool = False
    input_shapes: list[dict[str, int]] = field(default_factory=list)


def plan_modules(
    modules: Modules,
    input_shapes: Sequence[Sequence[int]] | None,
    inputs: Sequence[TensorSpec],
    findings: list[str],
    dynamic_sizes: Sequence[int] | None = None,
) -> ModulePlan:
    """Plan the program files of a bundle.

    Args:
        modules: batch size to program; 0 alone is the one program ``model.mlir``.
        input_shapes: sizes of the variable axes per variant: inputs as declared, axes in numpy
            order. None or empty: no variants.
        inputs: the executable inputs.
        findings: gets one sentence per fault.
        dynamic_sizes: sizes to specialise programs with an open batch axis to; None when their
            sizes are fixed.
    """
    plan = ModulePlan()
    if input_shapes:
        sizes = _add_variants(plan, modules, input_shapes, inputs, findings)
    else:
        sizes = _add_variant(plan, None, "modules", cast(Mapping[Any, Any], modules), findings)
    plan.is_dynamic = dynamic_sizes is not None
    plan.compiled_batch_sizes = sizes
    if dynamic_sizes is not None:
        plan.compiled_batch_sizes = _dynamic_sizes(dynamic_sizes, sizes, inputs, findings)
    return plan


def _dynamic_sizes(
    dynamic_sizes: Sequence[int],
    program_sizes: Sequence[int],
    inputs: Sequence[TensorSpec],
    findings: list[str],
) -> list[int]:
    if program_sizes:
        findings.append(
            "dynamic_sizes is for one program whose batch axis is open: modules must be"
            f" {{0: program}}, but there are programs for the sizes {listing(program_sizes)}"
        )
    sizes = list(dynamic_sizes)
    strange = [size for size in sizes if not is_whole(size) or size <= 0]
    if strange or not sizes:
        findings.append(
            "dynamic_sizes must be batch sizes above 0, at least one, such as (1, 8, 32), got"
            f" {listing(strange or sizes)}"
        )
        return []
    if inputs and all(spec.batch_axis is None for spec in inputs):
        findings.append(
            "dynamic_sizes is given, but no executable input has a batch axis; declare it with"
            " IOSpec(..., batch_axis=0)"
        )
    return sorted(set(sizes))


def _add_variants(
    plan: ModulePlan,
    modules: Modules,
    input_shapes: Sequence[Sequence[int]],
    inputs: Sequence[TensorSpec],
    findings: list[str],
) -> list[int]:
    """Add the files of all variants; return their batch sizes, without 0."""
    variants = [tuple(sizes) for sizes in input_shapes]
    unknown = [key for key in modules if key not in variants]
    if unknown:
        findings.append(
            f"modules has the keys {listing(unknown)}, which input_shapes does not list"
            f" ({listing(variants)})"
        )
    sizes_of: dict[int, list[int]] = {}
    for index, variant in enumerate(variants):
        plan.input_shapes.append(_letter_sizes(variant, index, inputs, findings))
        of_variant = cast(Mapping[Any, Any], modules).get(variant)
        if of_variant is None:
            findings.append(f"modules has no programs for input_shapes[{index}] {variant}")
        else:
            where = f"modules[{variant}]"
            sizes_of[index] = _add_variant(plan, index, where, of_variant, findings)
    if len({tuple(sizes) for sizes in sizes_of.values()}) > 1:
        shown = ", ".join(f"{variants[i]}: {sizes}" for i, sizes in sizes_of.items())
        findings.append(f"all variants need programs for the same batch sizes, got {shown}")
    return next(iter(sizes_of.values()), [])


def _add_variant(
    plan: ModulePlan, variant: int | None, where: str, modules: object, findings: list[str]
) -> list[int]:
    """Add the files of one variant; return its batch sizes, without 0."""
    if not isinstance(modules, Mapping) or not modules:
        findings.append(
            f"{where} must map batch sizes to programs, got {describe(modules)};"
            " {0: program} writes the one program model.mlir"
        )
        return []
    strange = [size for size in modules if not is_whole(size) or size < 0]
    if strange:
        findings.append(f"{where}: batch sizes must be integers from 0 on, got {listing(strange)}")
        return []
    if 0 in modules and len(modules) > 1:
        findings.append(
            f"{where}: 0 stands for the one program model.mlir and excludes the sizes"
            f" {listing(size for size in modules if size)}"
        )
    for size in sorted(modules):
        content = _module_bytes(modules[size], f"{where}[{size}]", findings)
        plan.files[program_name(variant, size)] = content
    return sorted(size for size in modules if size)


def _module_bytes(module: object, where: str, findings: list[str]) -> bytes:
    if isinstance(module, ExportedModule):
        module = module.mlir_module_serialized
    if isinstance(module, str):
        module = module.encode()
    if not isinstance(module, bytes | bytearray | memoryview) or len(module) == 0:
        findings.append(
            f"{where} must be a program: a portable artifact (bytes), MLIR text (str) or an"
            f" exported module, got {describe(module)}"
        )
        return b""
    return bytes(module)


def _letter_sizes(
    variant: Sequence[int], index: int, inputs: Sequence[TensorSpec], findings: list[str]
) -> dict[str, int]:
    """Sizes by letter; the letters are those that the manifest uses."""
    axes = [
        (spec.name, axis.letter)
        for spec in inputs
        for axis in spec.axes
        if axis.kind is AxisKind.VARIABLE
    ]
    where = f"input_shapes[{index}] {tuple(variant)}"
    if len(variant) != len(axes):
        places = listing(f"{letter} of {name}" for name, letter in axes)
        findings.append(
            f"{where}: has {len(variant)} sizes, but the executable inputs have {len(axes)}"
            f" variable axes: {places}"
        )
        return {}
    sizes: dict[str, int] = {}
    for (name, letter), size in zip(axes, variant, strict=True):
        if not is_whole(size) or size <= 0:
            findings.append(f"{where}: sizes must be integers above 0, got {describe(size)}")
        elif sizes.setdefault(letter, size) != size:
            findings.append(
                f"{where}: axis {letter!r} is {size} in {name!r} and {sizes[letter]} in another"
                " input; use different letters for axes whose sizes differ"
            )
    return sizes
