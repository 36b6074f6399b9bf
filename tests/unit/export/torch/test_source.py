"""PyTorch modules: what becomes an input, a weight and an output, each beside torch eager."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_checks import Calling, check_against_torch, run_traced, source_of
from torch import nn

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.export import export_pytorch
from hloserve.export.source import SymbolicTraceFailed, Traced

pytestmark = pytest.mark.xla


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _names(traced: Traced) -> list[str]:
    return [name for name, _ in traced.weights]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_keep_their_dtype(dtype: Any) -> None:
    """A module in another precision is served in it."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype).eval()

    traced = check_against_torch(module, torch.randn(3, 4, dtype=dtype))

    assert {str(dtype).removeprefix("torch.")} == {array.dtype.name for _, array in traced.weights}


class _ManyKinds(nn.Module):
    """Buffers of odd dtypes, one that no state dict holds, and a parameter of no use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("narrow", torch.randn(4, 5).to(torch.float8_e4m3fn))
        self.register_buffer("wide_range", torch.randn(5).to(torch.float8_e5m2))
        self.register_buffer("ids", torch.arange(5) * 2**40)
        self.register_buffer("hidden", torch.randn(5), persistent=False)
        self.register_buffer("scale", torch.tensor(2.5))

    def forward(self, x: Any, _unused: Any) -> Any:
        y = x @ self.narrow.float() * self.scale + self.hidden + self.wide_range.float()
        return y, self.ids + 1


def test_buffers_and_what_is_unused_survive() -> None:
    """Eight-bit floats, large integers, hidden buffers and unused things are all arguments."""
    traced = check_against_torch(_ManyKinds(), (torch.randn(3, 4), torch.randn(3, 2)))

    expected = ["unused", "narrow", "wide_range", "ids", "scale", "hidden"]
    assert sorted(expected) == sorted(_names(traced))
    assert "int64" == dict(traced.weights)["ids"].dtype.name


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.out(self.embed(ids))


def test_tied_weights_are_one_argument() -> None:
    """A weight of two layers is stored once, under its first name, and the report says so."""
    traced = check_against_torch(_Tied(), torch.randint(0, 7, (2, 3)))

    assert ["embed.weight"] == _names(traced)
    assert ("weight 'out.weight' is tied to 'embed.weight' and stored once",) == traced.notes


class _Literal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_tensor_literal_does_not_shift_the_buffers() -> None:
    """A constant that forward makes stands between the buffers, and each gets its own value.

    torchax's own converter binds them shifted by one, without a word.
    """
    module = _Literal()
    module(torch.randn(50, 4) * 3 + 2)

    traced = check_against_torch(module.eval(), torch.randn(3, 4))

    assert 11 == len(traced.weights)
    assert "first.num_batches_tracked" in _names(traced)


def test_outputs_are_named_by_their_place() -> None:
    """Keys name outputs, what has none is numbered, and None vanishes."""
    module = Calling(lambda x: {"z": x, "a": {"h": x + 1}, "none": None, "pair": (x, x * 2)})

    traced = check_against_torch(module, torch.randn(2, 3))

    assert ("z", "a.h", "pair.0", "pair.1") == traced.output_names


def test_arguments_of_all_kinds() -> None:
    """Keyword tensors are inputs by name; numbers, flags and None are fixed in the program."""

    def forward(x: Any, steps: int, y: Any, *, flip: bool, bias: Any, mask: Any, more: Any) -> Any:
        assert mask is None
        return (x.roll(steps, 1) - y + bias) * (-1 if flip else 1) + more["shift"]

    kwargs = {
        "flip": True,
        "bias": torch.randn(2, 3),
        "mask": None,
        "more": {"shift": torch.randn(2, 3)},
    }
    inputs = (torch.randn(2, 3), 2, np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    module = Calling(forward)

    check_against_torch(module, inputs, kwargs)

    names = [name for name, _ in source_of(module, inputs, kwargs).inputs]
    assert ["input_0", "input_1", "bias", "more.shift"] == names


def test_nested_arguments_have_dotted_names() -> None:
    """Arguments are numbered among those that hold tensors; what is within one has its place."""
    module = Calling(lambda x, steps, pair: x + pair[0] + pair[1]["bias"])
    x = torch.ones(2, 3)

    names = [name for name, _ in source_of(module, (x, 3, (x, {"bias": x}))).inputs]

    assert ["input_0", "input_1.0", "input_1.1.bias"] == names


def test_mapping_of_inputs_is_keyword_arguments() -> None:
    """What a tokeniser returns can be given as it is."""
    module = Calling(lambda ids, mask: ids * mask)
    inputs = {"mask": torch.ones(2, 3), "ids": torch.randn(2, 3)}

    check_against_torch(module, inputs)

    assert ["mask", "ids"] == [name for name, _ in source_of(module, inputs).inputs]


def test_scalar_input_and_changed_input() -> None:
    """An input may have no axes; one that forward changes in place is the caller's no more."""
    module = Calling(lambda x, factor: (x.add_(1) * factor, x))

    check_against_torch(module, (torch.randn(2, 3), torch.tensor(2.5)), batch=[True, False])


def test_output_select_takes_part_of_the_result() -> None:
    """What a model returns besides can be left out, whatever it is."""
    module = Calling(lambda x: {"y": x * 2, "loss": 0.5})

    traced = check_against_torch(
        module, torch.randn(2, 3), output_select=lambda result: result["y"]
    )

    assert ("output",) == traced.output_names


def test_strict_tracing_gives_the_same_program() -> None:
    """TorchDynamo can trace, too; what it finds is bound by the same names."""
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()

    traced = check_against_torch(module, torch.randn(2, 4), strict=True)

    assert ["0.weight", "0.bias"] == _names(traced)
    assert source_of(module, torch.randn(2, 4), strict=True).provenance["torch_export_strict"]


def test_two_open_extents_share_one_scope() -> None:
    """Extents of the same name are equal in all inputs; others are independent of them."""
    module = Calling(lambda ids, mask: (ids * mask).sum(1, keepdim=True) / mask.sum())
    source = source_of(module, (torch.randn(2, 5), torch.ones(2, 5)))

    traced = source.trace([("batch", "length"), ("batch", "length")])

    for shape in ((1, 1), (3, 7)):
        fed = [np.random.default_rng(1).random(shape, np.float32) for _ in range(2)]
        np.testing.assert_allclose(source.run(fed)[0], run_traced(traced, fed)[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x: x * int(x.shape[0]), "torch fixes the open extent 'batch' to 4"),
        (lambda x: torch.cat(x.split(2), 1), "torch fixes the open extent 'batch' to 4"),
        (lambda x: x * (2 if x.shape[0] > 5 else 1), r"torch limits an open extent \(batch = "),
        (lambda x: x.reshape(-1, 2, 3).sum(1), r"limits an open extent \(batch = 2\*_batch\)"),
    ],
    ids=["number", "split", "branch", "pairs"],
)
def test_model_that_needs_its_batch_says_why(
    forward: Any, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What torch specialises is told in a line, and nothing is printed besides."""
    source = source_of(Calling(forward), torch.randn(4, 3))

    with pytest.raises(SymbolicTraceFailed, match=reason) as failed:
        source.trace([("batch", 3)])

    assert "\n" not in str(failed.value)
    assert ("", "") == capfd.readouterr()


def test_module_and_torch_stay_as_they_were() -> None:
    """An export changes neither the module nor the settings of torch."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Identity())  # in training mode, and none cares
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fused = torch.backends.mha.get_fastpath_enabled()

    check_against_torch(module, torch.randn(2, 4))

    assert all(part.training for part in module.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert fused == torch.backends.mha.get_fastpath_enabled()
    assert torch.is_grad_enabled()


def test_bundle_of_a_module(tmp_path: Path) -> None:
    """From module to bundle: names, axes, weights and provenance."""
    bundle = tmp_path / "classifier"

    report = export_pytorch(
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)),
        torch.randn(2, 4),
        dir=bundle,
        batch_sizes=[1, 2],
        input_names=["features"],
    )

    manifest = load_manifest(bundle)
    assert ["features: f32[n,4]"] == [str(spec) for spec in manifest.executable_inputs]
    assert ["output: f32[n,3]"] == [str(spec) for spec in manifest.executable_outputs]
    assert ["0.weight", "0.bias"] == list(read_bundle_weights(bundle))
    assert "pytorch" == manifest.provenance["source_framework"]
    assert torch.__version__ == manifest.provenance["torch_version"]
    assert "classifier" in str(report)


def test_shape_variants_take_tensors(tmp_path: Path) -> None:
    """One bundle for several sizes of an image, its weights shared."""
    bundle = tmp_path / "pooling"

    export_pytorch(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        torch.randn(1, 1, 8, 8),
        dir=bundle,
        batch_sizes=[1],
        shape_variants=[(torch.randn(1, 1, 8, 8),), (torch.randn(1, 1, 12, 6),)],
    )

    assert {"model.v0.b1.mlir", "model.v1.b1.mlir"} <= {file.name for file in bundle.iterdir()}
