"""torchax's table of operators, loaded without torchax and without a trace."""

import sys
from importlib.metadata import version

import pytest
import torch

from hloserve.export.torch.ops import load_op_table

aten = torch.ops.aten


def test_loading_leaves_torch_as_it_was() -> None:
    """Neither torch's tables nor its methods nor its backends show that the table was loaded."""
    packet, namespace = torch._ops.OpOverloadPacket, torch._ops._OpNamespace
    decompositions = torch._decomp.global_decomposition_table
    before = {kind: dict(table) for kind, table in decompositions.items()}
    getters = packet.__getattr__, namespace.__getattr__

    load_op_table.__wrapped__()  # anew, whatever other tests did

    assert before == {kind: dict(table) for kind, table in decompositions.items()}
    assert getters == (packet.__getattr__, namespace.__getattr__)
    assert not [name for name in sys.modules if name.split(".")[0] == "torchax"]
    assert "privateuseone" == torch._C._get_privateuse1_backend_name()


def test_table_finds_overloads_and_their_families() -> None:
    """Torchax registers some operators by overload and others by name."""
    table = load_op_table()

    assert table.find(aten.add.Tensor) is not None
    assert table.find(aten.mm.default) is not None
    assert table.find(aten.relu_.default) is None  # in place
    assert table.find(aten.randn.default) is None  # random
    assert table.find(None) is None


@pytest.mark.parametrize(
    "kept",
    [
        aten.linear.default,
        aten.matmul.default,
        aten.scaled_dot_product_attention.default,
        aten.lstm.input,
    ],
    ids=str,
)
def test_products_and_loops_are_kept_whole(kept: object) -> None:
    """Taken apart they become broadcasts of the weights, or unrolled loops."""
    assert kept not in load_op_table().decompositions


def test_versions_are_the_tested_ones() -> None:
    """We use internals of torchax: another version is for somebody to try first."""
    assert "0.0.13" == version("torchax")
    assert (2, 13) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
