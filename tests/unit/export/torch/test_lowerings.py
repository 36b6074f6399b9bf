"""Our own lowerings of torch operators, each beside torch eager."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.torch_checks import Calling, check_against_torch
from torch import nn

from hloserve.export.torch.arrays import array_of
from hloserve.export.torch.lowerings import LOWERINGS
from hloserve.export.torch.ops import load_op_table

pytestmark = pytest.mark.xla

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _check(overload: Any, *args: Any, results: int | None = None, **kwargs: Any) -> None:
    """Compare the lowering of an overload with the operator itself.

    Args:
        overload: of `torch.ops.aten`.
        *args: tensors and what else it takes.
        results: how many of several results to compare.
        **kwargs: likewise.
    """
    lowering = load_op_table().find(overload)
    assert lowering is not None
    wanted = overload(*args, **kwargs)
    tensors = [array_of(arg) for arg in args if isinstance(arg, torch.Tensor)]

    def lower(*arrays: Any) -> Any:
        feed = iter(arrays)
        given = [next(feed) if isinstance(arg, torch.Tensor) else arg for arg in args]
        return lowering(*given, **kwargs)

    with jax.enable_x64(True):
        got = jax.jit(lower)(*tensors)
    if isinstance(wanted, torch.Tensor):
        wanted, got = [wanted], [got]
    for expected, found in list(zip(wanted, got, strict=True))[:results]:
        np.testing.assert_allclose(array_of(expected), np.asarray(found), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", sorted(LOWERINGS))
def test_every_lowering_is_of_an_operator_that_torch_has(name: str) -> None:
    """A misspelt name would never be found."""
    packet, overload = name.split(".")

    assert hasattr(getattr(aten, packet), overload)


def _queries() -> list[Any]:
    return [torch.randn(2, 4, 5, 8) for _ in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.arange(25).reshape(5, 5) % 3 == 0},
        {"attn_mask": torch.linspace(-2, 2, 25).reshape(5, 5)},
    ],
    ids=["plain", "causal", "scale", "mask", "bias"],
)
def test_attention(options: dict[str, Any]) -> None:
    """Scores, masks and their sum are those of torch."""
    kwargs = dict(options)
    mask = kwargs.pop("attn_mask", None)

    _check(aten.scaled_dot_product_attention.default, *_queries(), mask, **kwargs)


def test_attention_of_a_row_without_keys_is_zero() -> None:
    """Nothing to attend to gives zeros and not NaN, as in torch."""
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False

    _check(aten.scaled_dot_product_attention.default, *_queries(), mask)


def test_attention_with_fewer_heads_of_keys() -> None:
    """Grouped queries share keys and values."""
    query, keys, values = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)

    _check(aten.scaled_dot_product_attention.default, query, keys, values, enable_gqa=True)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_convolution(axes: int, groups: int, transposed: bool) -> None:
    """Strides, padding, dilation and groups, over one to three axes."""
    shape = (4, 6 // groups) if transposed else (6, 4 // groups)
    geometry = ([2], [1], [2], transposed, [1] if transposed else [0], groups)
    spread = [list(g) * axes if isinstance(g, list) else g for g in geometry]

    _check(
        aten.convolution.default,
        torch.randn(2, 4, *[7] * axes),
        torch.randn(*shape, *[3] * axes),
        torch.randn(6),
        *spread,
    )


def test_convolution_with_flags() -> None:
    """TorchScript writes flags of cuDNN, which mean nothing here."""
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    images, kernel = torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3)

    _check(aten._convolution.default, images, kernel, None, *geometry, *[False] * 4)


@pytest.mark.parametrize(
    ("operator", "shape", "bins"),
    [
        (aten.adaptive_max_pool2d.default, (2, 3, 7, 9), [3, 4]),
        (aten.adaptive_max_pool2d.default, (3, 4, 4), [6, 1]),
        (aten.adaptive_max_pool3d.default, (2, 3, 5, 7, 9), [2, 3, 4]),
    ],
    ids=["images", "image, more bins than places", "volumes"],
)
def test_adaptive_pooling_and_where_its_maxima_are(operator: Any, shape: Any, bins: Any) -> None:
    """Bins of unequal width, and the places of the maxima."""
    _check(operator, torch.randn(shape), bins)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["sum", "mean", "maximum"])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_bags_of_embeddings(mode: int, padding: int | None) -> None:
    """Bags of several lengths, an empty one in the middle and one at the end, and padding."""
    indices, offsets = torch.tensor([2, 1, 2, 5, 9, 0, 2]), torch.tensor([0, 2, 2, 5, 7])

    _check(
        aten.embedding_bag.padding_idx,
        *(torch.randn(10, 4), indices, offsets),
        *(False, mode, False, None, False, padding),
        results=1,
    )


def test_bags_of_weighted_embeddings() -> None:
    """Each row has a weight, and the last offset is the end."""
    indices, offsets = torch.tensor([2, 1, 2, 5, 9, 0, 2]), torch.tensor([0, 2, 2, 7])

    _check(
        aten.embedding_bag.padding_idx,
        *(torch.randn(10, 4), indices, offsets),
        *(False, 0, False, torch.randn(7), True, None),
        results=1,
    )


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("axis", [-1, 0])
def test_topk(largest: bool, axis: int) -> None:
    """Values in order and their places, along any axis."""
    _check(aten.topk.default, torch.randn(5, 6), 3, axis, largest)


def test_topk_of_unsigned_integers_and_of_a_scalar() -> None:
    """The smallest of unsigned integers; a scalar is its own largest."""
    _check(aten.topk.default, torch.tensor([3, 0, 255], dtype=torch.uint8), 2, -1, False)
    _check(aten.topk.default, torch.tensor(3.0), 1)


def test_filling() -> None:
    """One value everywhere; memory formats mean nothing here."""
    x = torch.randn(2, 3)

    _check(aten.full_like.default, x, 2.5, memory_format=torch.preserve_format)
    _check(aten.full_like.default, x, 2, dtype=torch.int64)
    _check(aten.fill.Scalar, x, 3.0)
    _check(aten.fill.Tensor, x, torch.tensor(4.0))


def test_ranges() -> None:
    """Up, down, by steps and in another dtype."""
    _check(aten.arange.start_step, 2, 11, 3)
    _check(aten.arange.start_step, 5, 0, -2, dtype=torch.float32)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=["lstm", "gru", "rnn"])
def test_recurrent_layers(kind: Any) -> None:
    """Two layers, both ways: outputs and last states."""
    layer = kind(3, 4, 2, batch_first=True, bidirectional=True).eval()

    check_against_torch(layer, torch.randn(2, 5, 3))


def test_recurrent_layers_of_other_makes() -> None:
    """With a projection, without biases, time first, with ReLU, from given states."""
    states = (torch.randn(1, 2, 3), torch.randn(1, 2, 4))

    def run(x: Any, hidden: Any, cell: Any) -> Any:
        return projected(x, (hidden, cell)), plain(x)

    projected = nn.LSTM(3, 4, 1, bias=False, proj_size=3)
    plain = nn.RNN(3, 4, nonlinearity="relu")
    module = Calling(run)
    module.layers = nn.ModuleList([projected, plain]).eval()
    with pytest.warns(UserWarning, match="not supported with oneDNN"):
        check_against_torch(module, (torch.randn(5, 2, 3), *states), batch=False)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (13, 5)], ids=["smaller", "larger"])
@pytest.mark.parametrize("align", [False, True], ids=["", "corners"])
def test_resizing_with_antialias(mode: str, size: Any, align: bool) -> None:
    """Each axis is resized with a kernel as wide as it must be."""
    operator = getattr(aten, f"_upsample_{mode}2d_aa").default

    _check(operator, torch.randn(2, 3, 6, 9), size, align)


def test_resizing_by_a_factor() -> None:
    """A factor that does not divide the extent is taken as it was given."""
    module = Calling(lambda x: F.interpolate(x, scale_factor=0.4, mode="bicubic", antialias=True))

    check_against_torch(module, torch.randn(2, 3, 9, 16))


def test_number_out_of_a_tensor() -> None:
    """`.item()` may scale a result; it is read when the program runs."""
    check_against_torch(Calling(lambda x, y: x * y.max().item()), (torch.randn(2, 3),) * 2)
