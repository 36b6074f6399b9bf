"""torchax's table of operators, loaded without torchax and without a trace."""

import subprocess
import sys

import pytest
import torch

from hloserve.export.torch_ops import load_op_table

aten = torch.ops.aten

_CHECK = """
import sys, torch
before = {k: dict(v) for k, v in torch._decomp.global_decomposition_table.items()}
getters = torch._ops.OpOverloadPacket.__getattr__, torch._ops._OpNamespace.__getattr__
from hloserve.export.torch_ops import load_op_table
load_op_table()
after = torch._decomp.global_decomposition_table
assert before == {k: dict(v) for k, v in after.items()}
assert getters == (torch._ops.OpOverloadPacket.__getattr__, torch._ops._OpNamespace.__getattr__)
assert not [name for name in sys.modules if name.split(".")[0] == "torchax"]
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
"""


def test_loading_leaves_torch_as_it_was() -> None:
    """Neither torch's tables nor its methods nor its backends show that the table was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], capture_output=True, text=True, timeout=120, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)


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
    from importlib.metadata import version

    assert "0.0.13" == version("torchax")
    assert (2, 13) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
