"""Axis letters: the only place where manifest order and numpy order are turned into each other.

A manifest writes a shape as one letter per axis, fastest axis first, and keeps the sizes beside
it. Everything else in this package is in numpy order, outermost axis first, which is also the order
of the program's types and of the wire. One is the exact reverse of the other:

===================  ==================================  =============================
manifest shape       manifest dims                       numpy shape
===================  ==================================  =============================
``whcn``             ``{w: 640, h: 480, c: 3}``          ``(n, 3, 480, 640)``
``kn``               ``{k: 1000}``                       ``(n, 1000)``
``nc``               ``{c: 4}``                          ``(4, n)``, batch axis 1
``qd``               ``{q: 6, d: -1}``                   ``(?, 6)``
``""``               ``{}``                              ``()``
===================  ==================================  =============================

No data moves: a column-major array and a row-major array of the reversed shape are the same bytes.

What lives here: tensor entries of a manifest to and from `TensorSpec`, and the axis order of shape
variants. What does not: rules across tensors (`hloserve.bundle.rules`). Pure functions; any thread.
"""

import string
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloserve.bundle.findings import describe, listing
from hloserve.core.dtypes import BYTES, DTYPES, DType, by_token
from hloserve.core.tensors import Axis, AxisKind, TensorSpec

__all__ = [
    "AUTOMATIC_LETTERS",
    "BATCH_LETTERS",
    "MAX_EXTENT",
    "VARIABLE",
    "VariableAxis",
    "format_tensor",
    "is_axis_letter",
    "is_whole",
    "manifest_positions",
    "parse_tensor",
    "variable_axes",
]

BATCH_LETTERS = "nb"
AUTOMATIC_LETTERS = "acdefghijklmopqrstuvwxyz"
VARIABLE = -1
MAX_EXTENT = 2**63 - 1  # what a shape on the wire can say


class VariableAxis(NamedTuple):
    """A variable axis of an executable input: one number of a shape variant.

    Attributes:
        input: name of the executable input.
        axis: its position in numpy order.
        letter: its letter in the manifest.
    """

    input: str
    axis: int
    letter: str


def parse_tensor(entry: object, where: str, findings: list[str]) -> TensorSpec | None:
    """Parse a tensor entry of a manifest.

    Args:
        entry: what YAML gave for it.
        where: its place, e.g. ``executable_inputs[0]``.
        findings: gets one sentence per fault.

    Returns:
        The spec in numpy order, or None when anything was wrong.

    Example:
        >>> entry = {"name": "x", "dtype": "f32", "shape": "whcn",
        ...          "dims": {"w": 640, "h": 480, "c": 3}}
        >>> spec = parse_tensor(entry, "executable_inputs[0]", [])
        >>> spec.shape, spec.batch_axis
        ((None, 3, 480, 640), 0)
        >>> [axis.letter for axis in spec.axes]
        ['n', 'c', 'h', 'w']
    """
    if not isinstance(entry, Mapping):
        findings.append(
            f"{where}: must be a mapping with name, dtype, shape and dims, got {describe(entry)}"
        )
        return None
    before = len(findings)
    name = entry.get("name")
    if isinstance(name, str) and name:
        where = f"{where} {name!r}" if len(name) <= 80 else f"{where} {name[:80]!r}..."
    elif name is None:
        findings.append(f"{where}: name is missing; give the tensor a name")
    else:
        hint = "give the tensor a name" if name == "" else "put it in quotes"
        findings.append(f"{where}: name must be a string, got {describe(name)}; {hint}")
    dtype = _parse_dtype(entry.get("dtype"), where, findings)
    axes = _parse_axes(entry.get("shape"), entry.get("dims"), where, findings)
    if len(findings) > before or dtype is None or axes is None:
        return None
    return TensorSpec(str(name), dtype, axes)


def format_tensor(spec: TensorSpec) -> dict[str, object]:
    """Write a spec as the tensor entry of a manifest.

    Example:
        >>> from hloserve.core.dtypes import F32
        >>> axes = (Axis("n", AxisKind.BATCH), Axis("k", AxisKind.FIXED, 1000))
        >>> format_tensor(TensorSpec("logits", F32, axes))
        {'name': 'logits', 'dtype': 'f32', 'shape': 'kn', 'dims': {'k': 1000}}
    """
    ordered = [spec.axes[position] for position in manifest_positions(len(spec.axes))]
    entry: dict[str, object] = {
        "name": spec.name,
        "dtype": spec.dtype.token,
        "shape": "".join(axis.letter for axis in ordered),
    }
    dims = {
        axis.letter: VARIABLE if axis.extent is None else axis.extent
        for axis in ordered
        if axis.kind is not AxisKind.BATCH
    }
    if dims:
        entry["dims"] = dims
    return entry


def manifest_positions(rank: int) -> range:
    """Numpy positions of a tensor's axes in manifest order, fastest axis first.

    Example:
        >>> list(manifest_positions(3))
        [2, 1, 0]
    """
    return range(rank - 1, -1, -1)


def variable_axes(inputs: Iterable[TensorSpec]) -> tuple[VariableAxis, ...]:
    """List the variable axes of the executable inputs, in the order of a variant key.

    That order is: inputs as declared, and within an input the manifest's axis order, so the last
    numpy axis of an input comes first.
    """
    return tuple(
        VariableAxis(spec.name, axis, spec.axes[axis].letter)
        for spec in inputs
        for axis in manifest_positions(len(spec.axes))
        if spec.axes[axis].kind is AxisKind.VARIABLE
    )


def is_axis_letter(letter: object) -> bool:
    """True for one ASCII letter that is not reserved for the batch axis."""
    return _is_letter(letter) and letter not in BATCH_LETTERS  # type: ignore[operator]


def is_whole(value: object) -> bool:
    """True for an int that is not a bool and that a shape can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_EXTENT


def _is_letter(letter: object) -> bool:
    return isinstance(letter, str) and len(letter) == 1 and letter in string.ascii_letters


def _parse_dtype(token: object, where: str, findings: list[str]) -> DType | None:
    if isinstance(token, str):
        try:
            return by_token(token)
        except KeyError:
            pass
    got = "nothing" if token is None else describe(token)
    tokens = ", ".join(dtype.token for dtype in (*DTYPES, BYTES))
    findings.append(f"{where}: dtype must be one of {tokens}; got {got}")
    return None


def _parse_axes(
    shape: object, dims: object, where: str, findings: list[str]
) -> tuple[Axis, ...] | None:
    letters = _parse_letters(shape, where, findings)
    sizes = _parse_dims(dims, where, findings)
    if letters is None or sizes is None:
        return None
    orphans = [letter for letter in sizes if letter not in letters]
    if orphans:
        findings.append(
            f"{where}: dims gives sizes for {listing(orphans)}, which shape {letters!r} does not"
            " have; remove them or correct the shape"
        )
    missing = [x for x in letters if x not in sizes and x not in BATCH_LETTERS]
    if missing:
        findings.append(
            f"{where}: shape {letters!r} needs a size for {listing(missing)} in dims"
            f" (dims has {listing(sizes)}); add it, -1 for a variable axis"
        )
    if orphans or missing:
        return None
    return tuple(_axis(letters[position], sizes) for position in manifest_positions(len(letters)))


def _axis(letter: str, sizes: Mapping[str, int]) -> Axis:
    if letter in BATCH_LETTERS:
        return Axis(letter, AxisKind.BATCH)
    if sizes[letter] == VARIABLE:
        return Axis(letter, AxisKind.VARIABLE)
    return Axis(letter, AxisKind.FIXED, sizes[letter])


def _parse_letters(shape: object, where: str, findings: list[str]) -> str | None:
    if shape is None:
        findings.append(f'{where}: shape is missing; write one letter per axis, "" for a scalar')
        return None
    if not isinstance(shape, str):
        findings.append(
            f"{where}: shape must be a string with one letter per axis, got {describe(shape)};"
            ' put it in quotes, e.g. "whcn", and the sizes in dims'
        )
        return None
    before = len(findings)
    strange = [x for x in dict.fromkeys(shape) if not _is_letter(x)]
    if strange:
        findings.append(
            f"{where}: shape {shape[:80]!r} holds {listing(strange)}; an axis is one ASCII letter"
        )
    repeated = [x for x in dict.fromkeys(shape) if _is_letter(x) and shape.count(x) > 1]
    if repeated:
        findings.append(
            f"{where}: shape {shape[:80]!r} repeats {listing(repeated)}; use each letter once"
        )
    if all(letter in shape for letter in BATCH_LETTERS):
        findings.append(
            f"{where}: shape {shape[:80]!r} holds both batch letters 'n' and 'b';"
            " a tensor has at most one batch axis"
        )
    return shape if len(findings) == before else None


def _parse_dims(dims: object, where: str, findings: list[str]) -> dict[str, int] | None:
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        findings.append(
            f"{where}: dims must be a mapping of letters to sizes, got {describe(dims)}"
        )
        return None
    before = len(findings)
    sizes = {}
    for letter, size in dims.items():
        if not _is_letter(letter):
            findings.append(f"{where}: dims key {describe(letter)} is not one ASCII letter")
        elif letter in BATCH_LETTERS:
            findings.append(
                f"{where}: dims gives {letter!r} a size; 'n' and 'b' are the batch axis, whose size"
                " is that of the request; remove it"
            )
        elif not is_whole(size) or (size <= 0 and size != VARIABLE):
            findings.append(
                f"{where}: dims[{letter!r}] must be an integer above 0, or -1 for a variable axis,"
                f" got {describe(size)}"
            )
        else:
            sizes[letter] = size
    return sizes if len(findings) == before else None
