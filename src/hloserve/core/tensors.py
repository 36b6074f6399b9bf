"""Declared and actual tensors, in numpy order.

What lives here: `Axis`, `TensorSpec` (declared) and `NamedTensor` (actual). What does not: the
manifest notation, whose axes run the other way (`hloserve.bundle.axes`, the only place where
axes are reversed). Everything is immutable; any thread may use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt
from typing_extensions import override

from hloserve.core.dtypes import DType

__all__ = ["Array", "Axis", "AxisKind", "NamedTensor", "TensorSpec", "Tensors"]

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = dict[str, Array]
"""Tensors by name, in the order of their specs or of their arrival."""


class AxisKind(Enum):
    """What an axis letter stands for."""

    BATCH = "batch"
    FIXED = "fixed"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a declared tensor.

    Attributes:
        letter: the manifest's letter; ``n`` or ``b`` for the batch axis.
        kind: batch, fixed or variable.
        extent: the size of a fixed axis; None otherwise.
    """

    letter: str
    kind: AxisKind
    extent: int | None = None

    @override
    def __str__(self) -> str:
        return (
            str(self.extent)
            if self.extent is not None
            else ("n" if self.kind is AxisKind.BATCH else "?")
        )


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A declared tensor: name, dtype and axes in numpy (row-major, wire) order.

    Attributes:
        name: unique within its section of the manifest.
        dtype: element type.
        axes: outermost first, as `array.shape` is.
        shape: extents of `axes`; None for a batch or variable axis.
        batch_axis: position of the batch axis in `axes`, or None.
    """

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    shape: tuple[int | None, ...] = field(init=False)
    batch_axis: int | None = field(init=False)
    _fixed: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fixed = [(i, axis.extent) for i, axis in enumerate(self.axes) if axis.extent is not None]
        object.__setattr__(self, "_fixed", tuple(fixed))
        object.__setattr__(self, "shape", tuple(axis.extent for axis in self.axes))
        batch = [i for i, axis in enumerate(self.axes) if axis.kind is AxisKind.BATCH]
        object.__setattr__(self, "batch_axis", batch[0] if batch else None)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True when a concrete shape has the rank and the fixed extents of the spec."""
        if len(shape) != len(self.shape):
            return False
        for axis, extent in self._fixed:  # noqa: SIM110  # a generator would double the time
            if shape[axis] != extent:
                return False
        return True

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape as V2 metadata shows it: -1 for batch and variable axes."""
        return tuple(-1 if extent is None else extent for extent in self.shape)

    def concrete_shape(
        self, rows: int, variable: Mapping[str, int] | None = None
    ) -> tuple[int, ...]:
        """Fill the open axes in.

        Args:
            rows: extent of the batch axis.
            variable: extent per variable letter; every variable letter must be in it.
        """
        sizes = variable or {}
        return tuple(
            rows
            if axis.kind is AxisKind.BATCH
            else sizes[axis.letter]
            if axis.extent is None
            else axis.extent
            for axis in self.axes
        )

    @override
    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.axes))}]"


class NamedTensor(NamedTuple):
    """An array with its tensor name: what hooks take and return."""

    name: str
    array: Array
