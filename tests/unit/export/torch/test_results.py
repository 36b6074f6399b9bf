"""What a PyTorch module returns, as named tensors."""

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

from hloserve.export.torch.results import named_tensors

_X = torch.zeros(2)


class _Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class _Result:
    logits: Any
    extra: Any


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (_X, ["output"]),
        ((_X, _X), ["output_0", "output_1"]),
        ([_X], ["output_0"]),
        ({"z": _X, "a": _X, "none": None}, ["z", "a"]),
        ({"deep": {"h": _X}, "pair": (_X, None, _X)}, ["deep.h", "pair.0", "pair.2"]),
        ((_X, {"h": _X}), ["output_0", "output_1.h"]),
        (_Pair(_X, _X), ["left", "right"]),
        (_Result(_X, None), ["logits"]),
    ],
    ids=["tensor", "tuple", "list", "dict", "nested", "mixed", "named tuple", "dataclass"],
)
def test_names_come_from_keys_fields_and_positions(result: Any, expected: list[str]) -> None:
    """A single tensor is the output; None vanishes."""
    assert expected == [name for name, _ in named_tensors(result)]


def test_what_is_no_tensor_is_told_by_name_and_type() -> None:
    """All of them in one sentence, of which the first few are named."""
    with pytest.raises(TypeError, match=r"'loss' is of type float, 'rest.0' is of type int") as odd:
        named_tensors({"y": _X, "loss": 0.5, "rest": list(range(9))})

    assert "and 5 more" in str(odd.value)
