"""`IOSpec`: how an author declares a tensor, in numpy order, and the letters it gets.

What lives here: turning declarations into `TensorSpec`, with letters chosen where none are given.
What does not: the manifest notation (`hloserve.bundle.axes`). Pure; any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from hloserve.bundle.axes import (
    AUTOMATIC_LETTERS,
    BATCH_LETTERS,
    MAX_EXTENT,
    VARIABLE,
    is_axis_letter,
    manifest_positions,
)
from hloserve.bundle.findings import describe, listing, repeated
from hloserve.core.dtypes import BYTES, DTYPES, DType, by_numpy, by_token
from hloserve.core.tensors import Axis, AxisKind, TensorSpec

__all__ = ["IOSpec", "build_specs"]


@dataclass(frozen=True)
class IOSpec:
    """A tensor of a program or of its clients, as `array.shape` would show it.

    `write_bundle` turns it into the manifest's notation, whose axes run the other way:

    ==============================================  =======================================
    declared                                        in the manifest
    ==============================================  =======================================
    ``IOSpec("x", "f32", (1, 3, 480, 640), 0)``     ``acdn``, ``{a: 640, c: 480, d: 3}``
    ``... letters="chw")``                          ``whcn``, ``{w: 640, h: 480, c: 3}``
    ``IOSpec("x", "i32", (8, -1), 0)``              ``an``, ``{a: -1}``
    ``IOSpec("x", "f32", (4, 8), batch_axis=1)``    ``na``, ``{a: 4}``
    ``IOSpec("x", "bool", ())``                     ``""``
    ==============================================  =======================================

    Attributes:
        name: unique among the tensors of its section.
        dtype: a manifest token (``"f32"``), a numpy dtype, or a `DType`. Of strings only tokens
            are taken, because numpy's ``"i8"`` is another type than the token ``i8``. ``"bytes"``
            is for tensors of clients that hold strings.
        shape: extents, outermost axis first. -1 is a variable axis. The extent of the batch axis
            is not used.
        batch_axis: position of the batch axis in `shape`; None when it has none.
        letters: one letter per axis except the batch axis, in the order of `shape`; None chooses.

    Example:
        >>> from hloserve.bundle.axes import format_tensor
        >>> image = IOSpec("image", np.uint8, (1, 3, 480, 640), batch_axis=0, letters="chw")
        >>> ids = IOSpec("ids", "i32", (1, -1), batch_axis=0)
        >>> for spec in build_specs("executable_inputs", [image, ids], []):
        ...     print(spec.shape, format_tensor(spec)["shape"], format_tensor(spec)["dims"])
        (None, 3, 480, 640) whcn {'w': 640, 'h': 480, 'c': 3}
        (None, None) an {'a': -1}
    """

    name: str
    dtype: str | DType | np.dtype[Any] | type[Any]
    shape: Sequence[SupportsIndex]
    batch_axis: int | None = None
    letters: Sequence[str] | None = None


def build_specs(
    section: str, declared: Sequence[IOSpec], findings: list[str], *, distinct: bool = False
) -> tuple[TensorSpec, ...]:
    """Turn declarations into specs.

    Args:
        section: their section of the manifest, for messages.
        declared: the declarations.
        findings: gets one sentence per fault; specs with faults are left out.
        distinct: choose different letters for variable axes of different tensors. Shape variants
            look sizes up by letter alone, so two such axes would otherwise share one size.
    """
    specs: dict[int, TensorSpec] = {}
    taken: set[str] = set()
    # Letters that were asked for come first, so that chosen ones can stay clear of them.
    for index in sorted(range(len(declared)), key=lambda i: declared[i].letters is None):
        io_spec = declared[index]
        spec = _build_spec(f"{section}[{index}] {io_spec.name!r}", io_spec, taken, findings)
        if spec is None:
            continue
        specs[index] = spec
        if distinct:
            taken |= {axis.letter for axis in spec.axes if axis.kind is AxisKind.VARIABLE}
    return tuple(specs[index] for index in sorted(specs))


def _build_spec(
    where: str, io_spec: IOSpec, taken: set[str], findings: list[str]
) -> TensorSpec | None:
    before = len(findings)
    if not io_spec.name:
        findings.append(f"{where}: the name is empty; give the tensor a name")
    dtype = _read_dtype(where, io_spec.dtype, findings)
    shape = _read_shape(where, io_spec, findings)
    if len(findings) > before or dtype is None:
        return None
    letters = _read_letters(where, io_spec, findings)
    if letters is None and len(findings) == before:
        letters = _choose_letters(where, shape, io_spec.batch_axis, taken, findings)
    if letters is None:
        return None
    axes = tuple(_axis(letter, extent) for letter, extent in zip(letters, shape, strict=True))
    return TensorSpec(io_spec.name, dtype, axes)


def _axis(letter: str, extent: int) -> Axis:
    if letter in BATCH_LETTERS:
        return Axis(letter, AxisKind.BATCH)
    if extent == VARIABLE:
        return Axis(letter, AxisKind.VARIABLE)
    return Axis(letter, AxisKind.FIXED, extent)


def _read_dtype(where: str, value: object, findings: list[str]) -> DType | None:
    if isinstance(value, DType):
        return value
    try:
        if isinstance(value, str):
            return by_token(value)
        if value is not None:  # which numpy takes for float64
            return by_numpy(np.dtype(value))  # type: ignore[call-overload]  # it may raise, below
    except (KeyError, TypeError, ValueError):
        pass
    tokens = ", ".join(dtype.token for dtype in (*DTYPES, BYTES))
    findings.append(
        f"{where}: dtype {describe(value)} is not supported; use a numpy dtype or one of {tokens}"
    )
    return None


def _read_shape(where: str, io_spec: IOSpec, findings: list[str]) -> tuple[int, ...]:
    batch_axis = io_spec.batch_axis
    try:
        shape = tuple(extent.__index__() for extent in io_spec.shape)
    except (TypeError, AttributeError):
        findings.append(f"{where}: shape must be integers, got {describe(io_spec.shape)}")
        return ()
    if batch_axis is not None and batch_axis not in range(len(shape)):
        findings.append(
            f"{where}: batch_axis is {batch_axis}, expected a position in the shape"
            f" {shape}, from 0 on, or None"
        )
    findings += [
        f"{where}: axis {axis} of shape {shape} is {extent}, expected a size above 0,"
        " or -1 for a variable axis"
        for axis, extent in enumerate(shape)
        if axis != batch_axis and extent != VARIABLE and not 0 < extent <= MAX_EXTENT
    ]
    return shape


def _read_letters(where: str, io_spec: IOSpec, findings: list[str]) -> list[str] | None:
    """The given letters with the batch letter put in, in numpy order; None when none are given."""
    if io_spec.letters is None:
        return None
    letters = list(io_spec.letters)
    has_batch = io_spec.batch_axis is not None
    expected = len(io_spec.shape) - has_batch
    before = len(findings)
    if len(letters) != expected:
        findings.append(
            f"{where}: {len(letters)} letters for {expected} axes; give one per axis of"
            f" {tuple(io_spec.shape)}" + (", except the batch axis" if has_batch else "")
        )
    strange = [letter for letter in letters if not is_axis_letter(letter)]
    if strange:
        findings.append(
            f"{where}: letters {listing(strange)} cannot be used; an axis is one ASCII letter,"
            " and 'n' and 'b' are the batch axis"
        )
    elif len(set(letters)) < len(letters):
        findings.append(f"{where}: letters repeat {listing(repeated(letters))}; use each once")
    if len(findings) > before:
        return None
    if io_spec.batch_axis is not None:
        letters.insert(io_spec.batch_axis, "n")
    return letters


def _choose_letters(
    where: str,
    shape: Sequence[int],
    batch_axis: int | None,
    taken: set[str],
    findings: list[str],
) -> list[str] | None:
    # Letters run in manifest order, as the sibling server's writer gives them.
    letters = ["n"] * len(shape)
    used: set[str] = set()
    for position in manifest_positions(len(shape)):
        if position == batch_axis:
            continue
        avoided = used | taken if shape[position] == VARIABLE else used
        free = [letter for letter in AUTOMATIC_LETTERS if letter not in avoided]
        if not free:
            findings.append(
                f"{where}: there are more axes than letters ({len(AUTOMATIC_LETTERS)});"
                " name the axes with `letters`"
            )
            return None
        letters[position] = free[0]
        used.add(free[0])
    return letters
