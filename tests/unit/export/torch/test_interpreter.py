"""Whole layers and control flow of torch, each beside torch eager."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.torch_checks import Calling, check_against_torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

pytestmark = pytest.mark.xla


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_convolutions_with_batch_norm() -> None:
    """The usual beginning of a vision model, with statistics of its own."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    module(torch.randn(8, 3, 8, 8) * 2 + 1)

    check_against_torch(module.eval(), torch.randn(2, 3, 8, 8))


def test_transformer_encoder() -> None:
    """Also where torch itself would take a fused kernel."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

    check_against_torch(module, torch.randn(2, 5, 16))


def test_multi_head_attention() -> None:
    """The result and the attention weights."""
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    module = Calling(lambda x: attention(x, x, x))
    module.attention = attention

    check_against_torch(module, torch.randn(2, 5, 16))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation(mode: str) -> None:
    """Images twice as large."""
    module = Calling(lambda x: F.interpolate(x, scale_factor=2, mode=mode))

    check_against_torch(module, torch.randn(2, 3, 5, 6))


@pytest.mark.parametrize("padding", ["zeros", "reflection"])
def test_grid_sampling(padding: str) -> None:
    """Places within and outside of the image."""
    module = Calling(lambda x, g: F.grid_sample(x, g, padding_mode=padding, align_corners=False))

    check_against_torch(module, (torch.randn(2, 3, 5, 6), torch.rand(2, 4, 4, 2) * 2.4 - 1.2))


def test_indices_are_int64() -> None:
    """What torch calls int64 is int64 to the client, whatever the lowering made."""
    module = Calling(
        lambda x: (
            torch.topk(x, 3),
            torch.sort(x, descending=True),
            x.argmax(1),
            x.int().cumsum(1),
            F.one_hot(x.argmax(1), 9),
        )
    )

    check_against_torch(module, torch.randn(2, 9) * 3)


def test_autocast() -> None:
    """Products in bfloat16 within a float32 model."""

    def forward(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        return y, y.float() + 1

    layer = nn.Linear(4, 5)
    module = Calling(forward)
    module.layer = layer

    check_against_torch(module, torch.randn(2, 4), tolerance=2e-2)


def test_gradients_switched_off_within() -> None:
    """`torch.no_grad` in forward changes nothing."""

    def forward(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            return y + 1

    check_against_torch(Calling(forward), torch.randn(2, 4))


def test_cond() -> None:
    """A branch on values; both ways are in the program."""
    module = Calling(lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, (x,)))

    check_against_torch(module, torch.ones(2, 3))
    check_against_torch(module, -torch.ones(2, 3))


def test_while_loop() -> None:
    """A loop whose number of rounds depends on values."""

    def forward(x: Any) -> Any:
        return while_loop(
            lambda rounds, y: y.abs().sum() < 100,
            lambda rounds, y: (rounds + 1, y * 1.5),
            (torch.zeros((), dtype=torch.int64), x),
        )

    check_against_torch(Calling(forward), torch.ones(2, 3))


def test_scan_and_map() -> None:
    """Loops over rows, with and without a state."""

    def forward(x: Any) -> Any:
        end, steps = scan(lambda state, row: (state + row, state * row), torch.zeros(4), x, dim=0)
        return end, steps, map_rows(lambda row: row.softmax(0), x)

    check_against_torch(Calling(forward), torch.randn(5, 4), batch=False)


def test_many_small_operators() -> None:
    """Shapes, indices, reductions and norms, with an open batch axis."""

    def forward(x: Any) -> Any:
        y = torch.cat([x, x.flip(1)], 1).roll(2, 1)
        first, *rest = y.chunk(3, 1)
        return {
            "pieces": (first, torch.stack(rest, 1)),
            "where": torch.where(x > 0, x, x.clamp(min=-0.5)),
            "norms": (F.layer_norm(x, (6,)), F.group_norm(x, 2), F.normalize(x)),
            "reduced": (x.std(1), x.logsumexp(1), x.norm(dim=1), x.amax(1), (x > 0).any(1)),
            "indexed": (x[:, [0, 2]], x.gather(1, x.argsort(1)), x.tril()),
            "rounded": (x.double().round(), (x * 10).int() // 3, torch.remainder(x, 0.7)),
            "counted": x + torch.arange(x.shape[0])[:, None],
            "einsum": torch.einsum("bi,bj->bij", x, x),
            "activations": (F.gelu(x), F.silu(x), F.softplus(x), F.hardswish(x), torch.erf(x)),
        }

    check_against_torch(Calling(forward), torch.randn(3, 6))
