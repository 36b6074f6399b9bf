"""NNX modules: evaluation mode on a copy, variables as weights, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.direct_run import run_program

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.export import ExportProblem, ExportReport, export_flax

pytestmark = pytest.mark.xla

_X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)


class _Scale(nnx.Variable[jax.Array]):
    """A kind of variable of our own."""


class _Network(nnx.Module):
    """Layers that train differently, shared ones, and variables of several kinds."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs)])
        self.again = self.layers[0]
        self.out = nnx.Linear(4, 4, rngs=rngs)
        self.out.kernel = self.layers[0].kernel
        self.scale = _Scale(jnp.full((4,), 2.0))
        self.offset = jnp.ones(4)

    def __call__(self, x: Any) -> Any:
        x = self.dropout(self.norm(self.first(x)))
        return self.out(jnp.tanh(self.again(x))) * self.scale[...] + self.offset


class _Training(nnx.Module):
    """Calls its layers as in training, whatever their mode."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropouts = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in range(2)])
        self.steps = nnx.Variable(jnp.zeros((), jnp.int32))

    def normalise(self, x: Any) -> Any:
        return self.norm(x, use_running_average=False)

    def drop(self, x: Any) -> Any:
        return self.dropouts[1](self.dropouts[0](x), deterministic=False)

    def count(self, x: Any) -> Any:
        self.steps[...] += 1
        return x * 2


def _export(directory: Path, module: Any, examples: Any, **options: Any) -> ExportReport:
    return export_flax(module, examples, dir=directory / "model", **options)


def _weights(directory: Path) -> list[str]:
    return sorted(read_bundle_weights(directory / "model"))


def _refused(directory: Path, module: Any, examples: Any, **options: Any) -> str:
    """The text of the refusal, which leaves nothing behind."""
    with pytest.raises(ExportProblem) as problem:
        _export(directory, module, examples, **options)
    assert [] == list(directory.iterdir())
    return str(problem.value)


@pytest.fixture(scope="module")
def network() -> _Network:
    """A module in training mode, as it is made."""
    return _Network(nnx.Rngs(0))


@pytest.fixture(scope="module")
def exported(network: _Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, for several tests."""
    directory = tmp_path_factory.mktemp("nnx")
    _export(directory, network, _X, batch_sizes=[1, 4])
    return directory


def test_served_program_computes_what_the_module_in_eval_mode_does(
    network: _Network, exported: Path
) -> None:
    """A program agrees with the module on inputs that the proof has not seen."""
    four = np.concatenate([_X, _X[::-1] * 0.5])

    answers = run_program(exported / "model", "model.b4.mlir", [four])

    evaluated = nnx.clone(network)
    evaluated.eval()
    np.testing.assert_allclose(answers["output"], evaluated(four), atol=1e-5)


def test_the_module_of_the_author_stays_in_training_mode(network: _Network, exported: Path) -> None:
    """Evaluation mode is that of a copy."""
    assert exported.exists()

    assert not network.dropout.deterministic
    assert not network.norm.use_running_average


def test_variables_of_every_kind_are_weights_and_shared_ones_once(exported: Path) -> None:
    """Parameters, statistics, own kinds and plain arrays by path; random state is none."""
    expected = [
        "again.bias",
        "again.kernel",
        "first.bias",
        "first.kernel",
        "norm.bias",
        "norm.mean",
        "norm.scale",
        "norm.var",
        "offset",
        "out.bias",
        "scale",
    ]

    assert expected == _weights(exported)


def test_provenance_tells_the_api(exported: Path) -> None:
    """A bundle says which of Flax's APIs it came from."""
    provenance = load_manifest(exported / "model").provenance

    assert ("flax", "nnx") == (provenance["source_framework"], provenance["flax_api"])


def test_method_can_be_named_or_a_function(tmp_path: Path) -> None:
    """Both get the module and the inputs."""
    module = nnx.Embed(10, 3, rngs=nnx.Rngs(0))

    _export(tmp_path / "named", module, _X, method="attend", batch_sizes=[1, 2])
    _export(tmp_path / "function", module, _X, method=lambda embed, x: embed.attend(x) * 2)

    assert ["embedding"] == _weights(tmp_path / "named") == _weights(tmp_path / "function")


def test_transformations_inside_are_no_updates(tmp_path: Path) -> None:
    """`nnx.jit` gives all variables back anew; they are the same."""

    class Jitted(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return nnx.jit(lambda layer, norm, x: norm(layer(x)))(self.layer, self.norm, x)

    _export(tmp_path, Jitted(nnx.Rngs(0)), _X)

    assert 6 == len(_weights(tmp_path))


def test_normalisation_by_the_batch_is_refused(tmp_path: Path) -> None:
    """A layer that is called in training mode is named, with what it updates."""
    told = _refused(tmp_path, _Training(nnx.Rngs(0)), _X, method="normalise", batch_sizes=[1, 2])

    assert "layer 'norm' (BatchNorm) updates mean, var (BatchStat) while it runs" in told
    assert "call it with use_running_average=True" in told


def test_dropout_in_training_mode_is_refused(tmp_path: Path) -> None:
    """Only the layer that draws is named; random state that nobody uses is left out."""
    told = _refused(tmp_path, _Training(nnx.Rngs(0)), _X, method="drop", batch_sizes=[1, 2])

    assert "layer 'dropouts.1' (Dropout) draws random numbers" in told
    assert "dropouts.0" not in told


def test_variable_that_the_call_changes_is_refused(tmp_path: Path) -> None:
    """A counter would stand still in a server."""
    told = _refused(tmp_path, _Training(nnx.Rngs(0)), _X, method="count")

    assert "the module (_Training) updates steps (Variable) while it runs" in told
    assert "make it an input and an output" in told


def test_flag_of_the_call_is_proposed(tmp_path: Path) -> None:
    """When the call has the usual flag, the message says its value."""

    class Flagged(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any, train: bool) -> Any:
            return self.dropout(x, deterministic=not train)

    module = Flagged(nnx.Rngs(0))

    told = _refused(tmp_path, module, _X, call_kwargs={"train": True})

    assert "layer 'dropout' (Dropout) draws random numbers" in told
    assert "pass call_kwargs={'train': False}" in told


def test_error_inside_names_the_layer(tmp_path: Path, network: _Network) -> None:
    """A shape that does not fit is told with the layer that it did not fit."""
    told = _refused(tmp_path, network, _X[:, :2])

    assert "layer 'first' (Linear): the model cannot be traced" in told
