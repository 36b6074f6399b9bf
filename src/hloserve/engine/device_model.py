"""A model as the device sees it: programs, weights, and which program fits a request.

What lives here: `DeviceModel` and the choice of variant and rows from prepared inputs. What does
not: hooks and client-facing tensors (`hloserve.models`), choosing a batch
(`hloserve.engine.scheduling.batching`). Built by the loader, whole; read by any thread afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.tensors import Array, AxisKind, TensorSpec
from hloserve.engine.backend import Buffer, Executable
from hloserve.engine.statistics import ModelStatistics

__all__ = ["DeviceModel", "VariantKey", "variant_key"]

VariantKey: TypeAlias = tuple[int, ...]
"""Extents of the variable axes of the executable inputs, in (input, axis) order; () without any."""


def variant_key(inputs: Sequence[TensorSpec], shape: Mapping[str, int]) -> VariantKey:
    """The key of one entry of the manifest's `input_shapes`, letter to extent."""
    return tuple(shape[inputs[place].axes[axis].letter] for place, axis in _variable_axes(inputs))


def _variable_axes(inputs: Sequence[TensorSpec]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (place, number)
        for place, spec in enumerate(inputs)
        for number, axis in enumerate(spec.axes)
        if axis.kind is AxisKind.VARIABLE
    )


@dataclass(eq=False)
class DeviceModel:
    """Everything a dispatch needs to know of a model.

    Attributes:
        name: served name.
        inputs: executable inputs, in program order.
        outputs: executable outputs, in program order.
        executables: by variant, by compiled batch size. Size 0 is a program without one: unbatched,
            or of any batch size. Complete when the model is built.
        weights: device buffers in argument order; they follow the inputs.
        max_batch_size: the operator's cap on coalesced rows; None for none.
        statistics: written by whoever runs its dispatches.
        can_coalesce: there is an input, every input and output has a batch axis, and no program
            is without a batch size.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    executables: Mapping[VariantKey, Mapping[int, Executable]]
    weights: list[Buffer] = field(default_factory=list)
    max_batch_size: int | None = None
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    can_coalesce: bool = field(init=False)
    _sizes: dict[VariantKey, tuple[int, ...]] = field(init=False, repr=False)
    _variable_axes: tuple[tuple[int, int], ...] = field(init=False, repr=False)
    _batch_axes: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._sizes = {key: tuple(sorted(sizes)) for key, sizes in self.executables.items()}
        self._variable_axes = _variable_axes(self.inputs)
        self._batch_axes = tuple(
            (place, spec.batch_axis)
            for place, spec in enumerate(self.inputs)
            if spec.batch_axis is not None
        )
        self.can_coalesce = (
            bool(self.inputs)
            and all(spec.batch_axis is not None for spec in (*self.inputs, *self.outputs))
            and not any(0 in sizes for sizes in self._sizes.values())
        )

    @property
    def effective_max_batch_size(self) -> int:
        """Most rows one dispatch coalesces, as it is reported; 0 for an unbatched model."""
        largest = max((sizes[-1] for sizes in self._sizes.values() if sizes), default=0)
        return largest if self.max_batch_size is None else min(largest, self.max_batch_size)

    @property
    def has_batch_axis(self) -> bool:
        """True when the inputs carry rows."""
        return bool(self._batch_axes)

    def sizes(self, variant: VariantKey) -> tuple[int, ...]:
        """Compiled batch sizes of a variant, ascending; empty when it is not compiled."""
        return self._sizes.get(variant, ())

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Compiled batch sizes of all variants, ascending; empty without a batch axis."""
        return tuple(sorted({size for sizes in self._sizes.values() for size in sizes if size}))

    def largest_size(self, variant: VariantKey) -> int:
        """Most rows one dispatch of the variant holds; 0 when it has no batch size."""
        sizes = self._sizes.get(variant)
        return sizes[-1] if sizes else 0

    def variant_of(self, arrays: Sequence[Array]) -> VariantKey:
        """The compiled variant that inputs of these shapes need.

        Args:
            arrays: prepared inputs in executable order, ranks already checked.

        Raises:
            BadRequest: no program is compiled for these shapes; the text lists those that are.
        """
        if not self._variable_axes:
            return ()
        key = tuple(arrays[place].shape[axis] for place, axis in self._variable_axes)
        if key not in self._sizes:
            known = "; ".join(self._describe(compiled) for compiled in sorted(self._sizes))
            raise BadRequest(
                f"model {self.name!r} has no program for {self._describe(key)}; compiled: {known}"
            )
        return key

    def rows_of(self, arrays: Sequence[Array]) -> int:
        """Rows that the inputs of one request carry, perhaps none; 1 without a batch axis.

        Args:
            arrays: prepared inputs in executable order, ranks already checked.

        Raises:
            TensorMismatch: two inputs disagree about them.
        """
        if not self._batch_axes:
            return 1
        place, axis = self._batch_axes[0]
        rows: int = arrays[place].shape[axis]
        for other, other_axis in self._batch_axes[1:]:
            if arrays[other].shape[other_axis] != rows:
                expected = f"{rows} as in input {self.inputs[place].name!r}"
                got = arrays[other].shape[other_axis]
                raise self._rows_mismatch(other, other_axis, expected, got)
        return rows

    def check_rows(self, variant: VariantKey, rows: int) -> None:
        """Refuse a row count that no program of a model that cannot coalesce takes.

        Padding or splitting such a model would change its answers: one of its outputs is computed
        over the whole batch. A model that can coalesce takes any row count.

        Raises:
            BadRequest: no program is compiled for exactly `rows` rows.
        """
        if self.can_coalesce or not self._batch_axes:
            return
        sizes = self.sizes(variant)
        if 0 not in sizes and rows not in sizes:
            raise BadRequest(
                f"model {self.name!r} has no program for {rows} rows and cannot pad or split a"
                f" request, because not every output has a batch axis; send {_one_of(sizes)} rows"
            )

    def _rows_mismatch(self, place: int, axis: int, expected: str, got: int) -> TensorMismatch:
        spec = self.inputs[place]
        what = f"extent of axis {axis} ({spec.axes[axis].letter}, the batch axis)"
        return TensorMismatch(f"input {spec.name!r}", what, expected, got)

    def _describe(self, key: VariantKey) -> str:
        extents = zip(self._variable_axes, key, strict=True)
        return ", ".join(
            f"{self.inputs[place].name}.{self.inputs[place].axes[axis].letter}={extent}"
            for (place, axis), extent in extents
        )


def _one_of(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))
