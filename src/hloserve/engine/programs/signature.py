"""The types a program takes and gives.

What lives here: `TensorType`, `Signature` and their StableHLO notation. What does not: comparing a
signature with a manifest (`hloserve.engine.programs.program_check`). Everything is immutable; any
thread.
"""

import re
from dataclasses import dataclass

from typing_extensions import override

from hloserve.core.dtypes import DType, by_stablehlo

__all__ = ["Signature", "TensorType", "parse_tensor_type"]

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([A-Za-z]\w*)>")


@dataclass(frozen=True, slots=True)
class TensorType:
    """One argument or result of a program; None stands for an open extent.

    Example:
        >>> from hloserve.core.dtypes import F32
        >>> print(TensorType(F32, (None, 3)))
        tensor<?x3xf32>
    """

    dtype: DType
    shape: tuple[int | None, ...]

    @override
    def __str__(self) -> str:
        extents = "".join("?x" if extent is None else f"{extent}x" for extent in self.shape)
        return f"tensor<{extents}{self.dtype.stablehlo}>"


@dataclass(frozen=True, slots=True)
class Signature:
    """A program's argument types, weights last, and its result types."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @override
    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"


def parse_tensor_type(text: str) -> TensorType:
    """Read ``tensor<?x3xf32>``.

    Raises:
        ValueError: not a ranked tensor type of an element type that bundles can hold.

    Example:
        >>> parse_tensor_type("tensor<2x?xui8>").shape
        (2, None)
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a tensor type like tensor<?x3xf32>")
    extents, element = match.groups()
    try:
        dtype = by_stablehlo(element)
    except KeyError:
        raise ValueError(f"{text!r} has element type {element!r}, not one of a bundle") from None
    shape = tuple(None if e == "?" else int(e) for e in extents.split("x")[:-1])
    return TensorType(dtype, shape)
