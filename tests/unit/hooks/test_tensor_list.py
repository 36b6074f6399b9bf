"""What hooks are given: a list that can be asked by name."""

import numpy as np
import pytest

from hloserve.core.tensors import NamedTensor
from hloserve.hooks.tensor_list import TensorList

X, Y = np.arange(2), np.arange(3)


@pytest.fixture
def tensors() -> TensorList:
    """Two tensors."""
    return TensorList([NamedTensor("x", X), NamedTensor("y", Y)])


def test_it_reads_as_a_list(tensors: TensorList) -> None:
    """Positions, slices, length and iteration are those of a list of NamedTensor."""
    assert tensors[0].name == "x"
    assert tensors[-1].array is Y
    assert [tensor.name for tensor in tensors[:1]] == ["x"]
    assert {name: array for name, array in tensors} == {"x": X, "y": Y}  # noqa: C416  # iteration
    assert len(tensors) == 2


def test_it_reads_as_a_mapping(tensors: TensorList) -> None:
    """Names, too: `dict()`, `**` and the usual methods work."""
    assert tensors["y"] is Y
    assert dict(tensors) == {"x": X, "y": Y}
    assert {**tensors} == {"x": X, "y": Y}  # type: ignore[misc]  # a list that reads as a mapping
    assert list(tensors.keys()) == ["x", "y"]
    assert next(iter(tensors.items())) == ("x", X)
    assert tensors.values()[1] is Y
    assert "x" in tensors  # type: ignore[comparison-overlap]  # likewise
    assert "z" not in tensors  # type: ignore[comparison-overlap]  # likewise
    assert tensors.get("z") is None
    assert tensors.get("z", X) is X


def test_tensor_itself_is_in_it(tensors: TensorList) -> None:
    """Membership of a tensor is by identity: comparing arrays would be ambiguous."""
    assert tensors[0] in tensors
    assert NamedTensor("x", X) not in tensors


def test_unknown_name_lists_the_known_ones(tensors: TensorList) -> None:
    """A typo in a hook is found from its message."""
    with pytest.raises(KeyError, match="'image'; there are x, y"):
        tensors["image"]
