"""PyTorch modules that must not be exported: each says its cause and place, and writes nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.torch_checks import Calling
from torch import nn

from hloserve.export import ExportProblem, export_pytorch

_X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _findings(directory: Path, module: Any, inputs: Any = _X, **options: Any) -> str:
    with pytest.raises(ExportProblem) as refused:
        export_pytorch(module, inputs, dir=directory / "model", **options)
    assert [] == list(directory.iterdir())
    return "\n".join(refused.value.findings)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class _OwnDropout(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, training=self.training)


class _Nested(nn.Module):
    """Decides by values, in a layer of its own."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        super().__init__()
        self.head = Calling(inner)

    def forward(self, x: Any) -> Any:
        return self.head(x)


@pytest.mark.parametrize("is_training", [True, False])
def test_untracked_batch_norm_is_in_training_mode_for_ever(
    tmp_path: Path, is_training: bool
) -> None:
    """Without running statistics eval() changes nothing, so it is not what the message asks for."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))

    text = _findings(tmp_path, module.train(is_training), batch_sizes=[1, 4])

    assert "1 (BatchNorm1d): without running statistics" in text
    assert "call model.eval()" not in text


def test_functional_batch_norm_in_training_is_named(tmp_path: Path) -> None:
    """A call that normalises by the batch is told with its layer, whatever mode the module has."""
    module = _Nested(lambda x: F.batch_norm(x, None, None, training=True)).eval()

    text = _findings(tmp_path, module, batch_sizes=[2, 4])

    assert "batch_norm in layer 'head'" in text
    assert "as in training" in text


def test_normalisation_within_a_row_is_no_trap(tmp_path: Path) -> None:
    """Instance, group and layer norm look at one row, and evaluated batch norm at none."""
    module = nn.Sequential(
        nn.InstanceNorm1d(3), nn.GroupNorm(1, 3), nn.LayerNorm(4), nn.BatchNorm1d(3)
    )
    x = torch.linspace(-1, 1, 24).sin().reshape(2, 3, 4)

    export_pytorch(module.eval(), x, dir=tmp_path / "model", batch_sizes=[1, 2])


@pytest.mark.parametrize("name", ["item", "tolist"])
def test_values_that_scale_all_rows_are_found(tmp_path: Path, name: str) -> None:
    """A number that is read out of the batch makes its rows depend on each other."""
    inner = {
        "item": lambda x: x * x.sum().item(),
        "tolist": lambda x: x * x.tolist()[0][0],
    }[name]

    text = _findings(tmp_path, Calling(inner).eval(), batch_sizes=[1, 4])

    assert "the rows influence each other" in text


def test_training_mode_is_refused_with_the_layers_it_changes(tmp_path: Path) -> None:
    """Batch norm in training mode would use the batch's statistics, without a word from torch."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Dropout(0.0))

    text = _findings(tmp_path, module)

    assert "1 (BatchNorm1d), 2 (Dropout): in training mode" in text
    assert "call model.eval()" in text


def test_own_layers_that_ask_for_their_mode_count_too(tmp_path: Path) -> None:
    """A class of the author's is found by its use of `self.training`."""
    assert "0 (_OwnDropout): in training mode" in _findings(tmp_path, nn.Sequential(_OwnDropout()))


def test_buffer_that_changes_with_each_call_is_named(tmp_path: Path) -> None:
    """A served model keeps nothing between calls."""
    text = _findings(tmp_path, nn.Sequential(_Counting()).eval())

    assert "buffer '0.calls' is changed by each call" in text


@pytest.mark.parametrize("make", [lambda x: x[x > 0], torch.nonzero], ids=["mask", "nonzero"])
def test_shape_that_depends_on_values_is_told(tmp_path: Path, make: Any) -> None:
    """The operator is named with its layer."""
    text = _findings(tmp_path, _Nested(make))

    assert "depends on values" in text
    assert "layer 'head'" in text


class _Masked(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0]


def test_shape_that_depends_on_values_has_its_line(tmp_path: Path) -> None:
    """The line is the author's, not torch's."""
    line = _Masked.forward.__code__.co_firstlineno + 1

    assert f"test_traps.py line {line}" in _findings(tmp_path, _Masked())


def _decide(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return x + 1


@pytest.mark.parametrize("sizes", [None, [1, 3]], ids=["static", "batches"])
def test_branch_on_values_is_told_with_its_line(
    tmp_path: Path, sizes: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch.export prints the whole graph when it gives up; an author gets one line."""
    line = _decide.__code__.co_firstlineno + 1

    text = _findings(tmp_path, Calling(_decide), batch_sizes=sizes)

    assert f"decides by a tensor's values at test_traps.py line {line}" in text
    assert "torch.cond" in text
    assert ("", "") == capfd.readouterr()


def test_all_missing_operators_are_listed_at_once(tmp_path: Path) -> None:
    """One run tells everything that has no lowering, with the layer."""
    text = _findings(
        tmp_path,
        _Nested(lambda x: torch.special.airy_ai(x) + torch.special.spherical_bessel_j0(x)),
    )

    assert "operator aten.special_airy_ai has no lowering (in layer 'head'" in text
    assert "operator aten.special_spherical_bessel_j0 has no lowering" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + torch.randn(3, 4),
        lambda x: F.dropout(x, 0.5),
        lambda x: x.sigmoid().bernoulli(),
    ],
    ids=["randn", "dropout", "bernoulli"],
)
def test_random_operators_are_refused(tmp_path: Path, make: Any) -> None:
    """The same request would get one answer for ever."""
    text = _findings(tmp_path, _Nested(make))

    assert "layer 'head'" in text
    assert "draws random numbers" in text
    assert "no lowering" not in text


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (
            torch.zeros(2, dtype=torch.complex64),
            r"complex64, which no bundle can hold.*two tensors",
        ),
        (_X.to_sparse(), r"is sparse .* call \.to_dense\(\)"),
        (_X.to("meta"), "is on the meta device"),
    ],
    ids=["complex", "sparse", "meta"],
)
def test_example_inputs_are_plain_tensors(tmp_path: Path, example: Any, reason: str) -> None:
    """What no request can carry is named before anything is traced."""
    with pytest.raises(ExportProblem, match=rf"example input 'input_0' .*{reason}"):
        export_pytorch(Calling(lambda x: x), example, dir=tmp_path / "model")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(4, 4, device="meta"), "parameter 'weight' is on the meta device"),
        (
            nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager")),
            "layer '0' is compiled by torch.compile",
        ),
        (nn.DataParallel(nn.Linear(4, 4)), "wrapped in DataParallel; export its .module"),
        (_X.sum, "of type builtin_function_or_method, expected a torch.nn.Module"),
    ],
    ids=["meta", "compiled", "parallel", "function"],
)
def test_modules_that_cannot_be_looked_into_are_refused(
    tmp_path: Path, module: Any, reason: str
) -> None:
    """What wraps or replaces a module's own tensors is named, with what to do."""
    assert reason in _findings(tmp_path, module)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_module_is_refused_until_it_has_run(tmp_path: Path) -> None:
    """A lazy layer has no weights yet."""
    text = _findings(tmp_path, nn.LazyLinear(4))

    assert "parameter 'weight' is not initialised; run the model once" in text


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is:FutureWarning")
def test_torchscript_is_sent_to_its_exporter(tmp_path: Path) -> None:
    """A ScriptModule has an exporter of its own."""
    text = _findings(tmp_path, torch.jit.trace(nn.Linear(4, 4), _X))

    assert "use export_torchscript" in text


@pytest.mark.filterwarnings("ignore:.*quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quant:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*TypedStorage:UserWarning")
def test_quantised_layers_are_named(tmp_path: Path) -> None:
    """Packed weights are out of reach."""
    module = torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), dtype=torch.qint8
    )

    assert "1: quantised layers keep their weights packed" in _findings(tmp_path, module.eval())


def test_weight_of_a_dtype_without_a_place_is_named(tmp_path: Path) -> None:
    """Complex weights have none."""
    module = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64))

    assert "parameter '0.weight' has dtype torch.complex64" in _findings(tmp_path, module)


@pytest.mark.parametrize("result", [3.5, "text", [1, 2]], ids=["number", "text", "list"])
def test_outputs_are_tensors(tmp_path: Path, result: Any) -> None:
    """Another result is named with its type, and how to leave it out."""
    text = _findings(tmp_path, Calling(lambda x: {"y": x, "rest": result}))

    assert "outputs must be tensors: 'rest" in text
    assert "output_select" in text


def test_model_that_fails_on_its_example_says_where(tmp_path: Path) -> None:
    """The author's line and the first line of the error, not a traceback."""
    line = _fail.__code__.co_firstlineno + 1

    text = _findings(tmp_path, Calling(_fail))

    assert f"does not run on its example inputs at test_traps.py line {line}" in text
    assert "mat1 and mat2 shapes cannot be multiplied" in text


def _fail(x: Any) -> Any:
    return x @ x


def test_64_bit_types_cannot_be_switched_off(tmp_path: Path) -> None:
    """Torch's int64 would become int32 in silence."""
    text = _findings(
        tmp_path, Calling(lambda x: x.argmax(1)), compile_options={"enable_x64": False}
    )

    assert "enable_x64 cannot be off" in text


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.det,
        torch.linalg.slogdet,
        torch.linalg.cholesky,
        torch.linalg.qr,
        torch.linalg.eigh,
        torch.linalg.svdvals,
        lambda x: torch.linalg.solve(x, x),
        lambda x: torch.linalg.solve_triangular(x, x, upper=False),
    ],
)
def test_what_needs_lapack_is_told_as_such(tmp_path: Path, function: Callable[[Any], Any]) -> None:
    """The one cause is named, not the machinery by which torch calls it."""
    text = _findings(tmp_path, Calling(lambda x: function(x @ x.mT + torch.eye(3))), _X)

    assert "needs LAPACK, or another library of one platform" in text
    assert re.search(r" in .*\.py line \d+ needs", text)
    assert not any(word in text for word in ("with_effects", "Token", "lowering", "quantised"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (nn.Linear(4, 2).state_dict(), "is a state dict, tensors without code: make the module"),
        ("net.pt", "a TorchScript file is for export_torchscript"),
        (Path("net.pt"), "module.load_state_dict(torch.load(path, weights_only=True))"),
        (torch.export.export(nn.Linear(4, 2), (_X,)), "export its module()"),
        (abs, "wrap a function in a module"),
    ],
    ids=["state dict", "text", "path", "archive", "function"],
)
def test_what_is_no_module_says_how_to_make_one(tmp_path: Path, given: Any, told: str) -> None:
    """Weights without code, files, and archives each have a next step."""
    assert told in _findings(tmp_path, given)


def test_other_float8_names_those_that_can_be_stored(tmp_path: Path) -> None:
    """Two of the many are types of bundles."""
    text = _findings(tmp_path, nn.Linear(4, 2).eval(), _X.to(torch.float8_e4m3fnuz))

    assert "float8_e4m3fn and float8_e5m2 can be" in text


def test_example_of_a_wrong_shape_is_told_with_the_shapes(tmp_path: Path) -> None:
    """What was given stands beside what torch says of it."""
    text = _findings(tmp_path, nn.Linear(5, 2).eval())

    assert "give inputs that forward() takes (these are input_0 [3, 4])" in text
