"""What hooks are given: tensors in order, which can also be asked by name."""

from collections.abc import Iterator
from typing import Any, SupportsIndex, overload

from typing_extensions import override

from hloserve.core.tensors import Array, NamedTensor

__all__ = ["TensorList"]


class TensorList(list[NamedTensor]):
    """A list of `NamedTensor` that reads like a mapping from name to array, too.

    A hook may be written either way; `dict(inputs)` and `{**inputs}` work. Iterating gives
    `NamedTensor`s, as of a list: use `keys()` or `items()` to go over names.

    Example:
        >>> import numpy as np
        >>> inputs = TensorList([NamedTensor("x", np.arange(2))])
        >>> inputs[0].array, inputs["x"], list(dict(inputs))
        (array([0, 1]), array([0, 1]), ['x'])
    """

    @overload
    def __getitem__(self, key: SupportsIndex) -> NamedTensor: ...
    @overload
    def __getitem__(self, key: slice) -> list[NamedTensor]: ...
    @overload
    def __getitem__(self, key: str) -> Array: ...
    @override
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for tensor in self:
                if tensor.name == key:
                    return tensor.array
            raise KeyError(f"{key!r}; there are {', '.join(self.keys()) or 'none'}")
        return super().__getitem__(key)

    @override
    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return any(tensor.name == key for tensor in self)
        return any(tensor is key for tensor in self)

    def get(self, name: str, default: Array | None = None) -> Array | None:
        """The array of that name, or `default`."""
        return next((tensor.array for tensor in self if tensor.name == name), default)

    def keys(self) -> list[str]:
        """Names, in order."""
        return [tensor.name for tensor in self]

    def values(self) -> list[Array]:
        """Arrays, in order."""
        return [tensor.array for tensor in self]

    def items(self) -> Iterator[tuple[str, Array]]:
        """Pairs of name and array, in order."""
        return ((tensor.name, tensor.array) for tensor in self)
