"""What a TorchScript module holds: its tree, its operators, and what exports stumble over."""

from typing import Any

import pytest
import torch

from hloserve.export.torchscript.inspection import count_operators, find_traps, module_tree
from hloserve.export.torchscript.loading import quiet


class Net(torch.nn.Module):
    """Branches on shapes and on values, and loops a fixed number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scripted by tests."""
        if x.size(0) > 3:
            x = x + 1
        for _ in range(3):
            x = x * 2
        if bool(x.sum() > 0):
            x = -x
        return self.linear(x)


@pytest.fixture
def script() -> Any:
    """The net as TorchScript."""
    with quiet():
        return torch.jit.script(Net().eval())


def test_tree_counts_the_parameters_below(script: Any) -> None:
    """Parents first, to the depth asked for."""
    lines = module_tree(script, depth=1)

    assert [("", 0, "Net", 9), ("linear", 1, "Linear", 9)] == [
        (line.path, line.depth, line.kind, line.parameters) for line in lines
    ]


def test_branch_on_values_is_told_from_one_on_shapes(script: Any) -> None:
    """Only the one that no program can have is marked, with its line."""
    counts = {count.operator: count for count in count_operators(script)}

    assert counts["prim::If"].count == 2
    assert counts["prim::If"].reads_values
    assert len(counts["prim::If"].places) == 1
    assert not counts["prim::Loop"].reads_values
    assert counts["prim::Loop"].remark
    assert counts["aten::linear"].remark == ""


def test_sound_module_has_no_traps(script: Any) -> None:
    """What may fail when it is traced is no trap: the operators are there to be looked at."""
    assert find_traps(script) == []
