"""Equinox modules: mapped over the batch, in inference mode, with state, and what is refused."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.direct_run import run_program

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.export import ExportProblem, ExportReport, export_equinox

pytestmark = pytest.mark.xla

_KEY = jax.random.key(0)
_IMAGES = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
_ROWS = _IMAGES[:, :, 0, 0]


class _Network(eqx.Module):
    """A network of one image, with a state, a key that must be given, and arrays of two kinds."""

    convolution: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear
    scale: jax.Array
    title: str = eqx.field(static=True)

    def __init__(self, mode: str) -> None:
        self.convolution = eqx.nn.Conv2d(3, 4, 3, key=_KEY)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode=mode)
        self.dropout = eqx.nn.Dropout(0.5)
        self.out = eqx.nn.Linear(4, 5, key=_KEY)
        self.scale = jnp.array([3], jnp.int32)
        self.title = "network"

    def __call__(self, image: Any, state: Any, *, key: Any) -> Any:
        x, state = self.norm(self.convolution(image), state)
        x = self.dropout(jax.nn.relu(x), key=key)
        return {"logits": self.out(x.mean((1, 2))) * self.scale[0]}, state


def _export(directory: Path, module: Any, examples: Any, **options: Any) -> ExportReport:
    return export_equinox(module, examples, dir=directory / "model", **options)


def _weights(directory: Path) -> list[str]:
    return sorted(read_bundle_weights(directory / "model"))


def _refused(directory: Path, module: Any, examples: Any, **options: Any) -> str:
    """The text of the refusal, which leaves nothing behind."""
    with pytest.raises(ExportProblem) as problem:
        _export(directory, module, examples, **options)
    assert [] == list(directory.iterdir())
    return str(problem.value)


@pytest.fixture(scope="module")
def network() -> tuple[Any, Any]:
    """A module in training mode, as it is made, and its state."""
    module, state = eqx.nn.make_with_state(_Network)("batch")
    return module, state


@pytest.fixture(scope="module")
def exported(network: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, for several tests."""
    directory = tmp_path_factory.mktemp("equinox")
    _export(directory, network, _IMAGES, batch_sizes=[1, 4])
    return directory


def test_served_program_computes_what_the_module_does_image_by_image(
    network: tuple[Any, Any], exported: Path
) -> None:
    """A program of four rows agrees with four calls of the module in inference mode."""
    module, state = eqx.nn.inference_mode(network[0]), network[1]
    four = np.concatenate([_IMAGES, _IMAGES[::-1] * 0.5])

    answers = run_program(exported / "model", "model.b4.mlir", [four])

    expected = [module(image, state, key=None)[0]["logits"] for image in four]
    np.testing.assert_allclose(answers["logits"], np.stack(expected), atol=1e-5)


def test_the_module_of_the_author_stays_in_training_mode(
    network: tuple[Any, Any], exported: Path
) -> None:
    """Inference mode is that of a copy, and the state can still be used."""
    assert exported.exists()

    module, state = network
    assert not module.dropout.inference
    assert 4 == len(state.get(module.norm.batch_state_index)[0])


def test_arrays_and_state_are_weights_named_by_path(exported: Path) -> None:
    """Integer arrays too; the state is named for the layer that asks for it."""
    expected = [
        "convolution.bias",
        "convolution.weight",
        "norm.batch_counter",
        "norm.batch_state_index.0",
        "norm.batch_state_index.1",
        "norm.bias",
        "norm.weight",
        "out.bias",
        "out.weight",
        "scale",
    ]

    assert expected == _weights(exported)


def test_state_is_no_output(exported: Path) -> None:
    """What a module returns beside its result stays with the author."""
    manifest = load_manifest(exported / "model")

    assert ["logits"] == [output.name for output in manifest.executable_outputs]
    assert "equinox" == manifest.provenance["source_framework"]


def test_normalisation_by_moving_averages_is_exported(tmp_path: Path) -> None:
    """The other mode of BatchNorm has a state of its own, of bools too."""
    _export(tmp_path, eqx.nn.make_with_state(_Network)("ema"), _IMAGES[0])

    assert "norm.ema_first_time_index" in _weights(tmp_path)


def test_without_batch_sizes_the_module_gets_the_inputs_as_they_are(tmp_path: Path) -> None:
    """One example, no batch axis."""
    _export(tmp_path, eqx.nn.Linear(3, 2, key=_KEY), _ROWS[0])

    (output,) = load_manifest(tmp_path / "model").executable_outputs
    assert [2] == [axis.extent for axis in output.axes]


def test_module_that_takes_batches_is_not_mapped(tmp_path: Path) -> None:
    """`vmap=False` leaves the batch axis to the module."""

    class Batched(eqx.Module):
        weight: jax.Array

        def __call__(self, rows: Any) -> Any:
            return jnp.einsum("nd,de->ne", rows, self.weight)

    _export(tmp_path, Batched(jnp.eye(3)), _ROWS, vmap=False, batch_sizes="dynamic")

    assert ["weight"] == _weights(tmp_path)


def test_batch_axes_of_the_inputs_are_mapped_over(tmp_path: Path) -> None:
    """An input may have its batch axis elsewhere; outputs have theirs first."""

    class Pair(eqx.Module):
        weight: jax.Array

        def __call__(self, left: Any, right: Any) -> Any:
            return left @ self.weight + right, jnp.sum(right)

    module = Pair(jnp.eye(3))

    _export(tmp_path, module, (_ROWS, _ROWS.T), batch_sizes=[2], input_batch_axes=[0, 1])

    manifest = load_manifest(tmp_path / "model")
    assert [2, 1] == [len(output.axes) for output in manifest.executable_outputs]
    answers = run_program(tmp_path / "model", "model.b2.mlir", [_ROWS, _ROWS.T])
    np.testing.assert_allclose(answers["output_0"], _ROWS * 2, rtol=1e-6)


def test_shared_layers_are_one_weight(tmp_path: Path) -> None:
    """Both `eqx.nn.Shared` and the same array at two places."""

    class Tied(eqx.Module):
        pair: eqx.nn.Shared
        first: jax.Array
        second: jax.Array

        def __init__(self) -> None:
            embedding = eqx.nn.Embedding(10, 4, key=_KEY)
            linear = eqx.nn.Linear(4, 10, use_bias=False, key=_KEY)
            self.pair = eqx.nn.Shared(
                (embedding, linear),
                where=lambda pair: pair[1].weight,
                get=lambda pair: pair[0].weight,
            )
            self.first = self.second = jnp.full((10,), 2.0)

        def __call__(self, token: Any) -> Any:
            embedding, linear = self.pair()
            return linear(embedding(token)) * self.first + self.second

    _export(tmp_path, Tied(), np.arange(10), batch_sizes=[8])

    assert ["first", "pair.pytree.0.weight"] == _weights(tmp_path)


def test_random_key_is_left_out_when_nothing_depends_on_it(tmp_path: Path) -> None:
    """A key among the leaves is refused by name only when it is used."""

    class Noisy(eqx.Module):
        source: jax.Array
        is_noisy: bool

        def __call__(self, x: Any) -> Any:
            noise = jax.random.normal(self.source, x.shape)
            return x + noise if self.is_noisy else x

    told = _refused(tmp_path, Noisy(_KEY, True), _ROWS[0])

    assert "random key 'source' is part of the model, and the results depend on it" in told
    _export(tmp_path, Noisy(_KEY, False), _ROWS[0])
    assert [] == _weights(tmp_path)


class _Training(eqx.Module):
    """Calls its layers as in training, whatever their mode."""

    norm: eqx.nn.BatchNorm
    dropouts: list[eqx.nn.Dropout]
    steps: eqx.nn.StateIndex[Any]

    def __init__(self) -> None:
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="ema")
        self.dropouts = [eqx.nn.Dropout(0.5), eqx.nn.Dropout(0.5)]
        self.steps = eqx.nn.StateIndex(jnp.zeros(()))

    def normalise(self, x: Any, state: Any) -> Any:
        return self.norm(x, state, inference=False)

    def drop(self, x: Any, state: Any, key: Any = None) -> Any:
        return self.dropouts[1](x, key=key, inference=False), state

    def count(self, x: Any, state: Any) -> Any:
        return x * 2, state.set(self.steps, state.get(self.steps) + 1)

    def keep(self, x: Any, state: Any) -> Any:
        x, state = eqx.filter_jit(lambda x, state: (x * 2, state))(x, state)
        return x, state


@pytest.fixture(scope="module")
def training() -> tuple[Any, Any]:
    """A module and its state."""
    module, state = eqx.nn.make_with_state(_Training)()
    return module, state


@pytest.mark.parametrize(
    ("method", "finding"),
    [
        ("normalise", "layer 'norm' (BatchNorm) normalises by the batch, as in training"),
        ("drop", "layer 'dropouts.1' (Dropout) draws random numbers, as in training"),
        ("count", "state 'steps' is updated by the call"),
    ],
)
def test_training_is_refused_with_the_layer(
    tmp_path: Path, training: tuple[Any, Any], method: str, finding: str
) -> None:
    """Inference mode does not help when a layer is told otherwise, or keeps a state."""
    told = _refused(tmp_path, training, _ROWS, method=method, batch_sizes=[1, 2])

    assert finding in told


def test_state_that_comes_back_anew_but_equal_is_no_update(
    tmp_path: Path, training: tuple[Any, Any]
) -> None:
    """`eqx.filter_jit` inside of a module gives back another state of the same values."""
    _export(tmp_path, training, _ROWS, method="keep", batch_sizes=[1, 2])

    assert "steps" in _weights(tmp_path)


def test_missing_state_is_told(tmp_path: Path, network: tuple[Any, Any]) -> None:
    """A module that needs a state comes with it."""
    told = _refused(tmp_path, network[0], _IMAGES, batch_sizes=[1, 2])

    assert "the module takes a state" in told
    assert "pass (module, state)" in told


def test_examples_without_a_batch_axis_are_explained(
    tmp_path: Path, network: tuple[Any, Any]
) -> None:
    """With batch sizes the module sees one row of the example; the message says so."""
    told = _refused(tmp_path, network, _IMAGES[0], batch_sizes=[1, 2])

    assert "layer 'convolution' (Conv2d)" in told
    assert "the module gets one example at a time, without the batch axes" in told


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (jax.vmap(jnp.sum), "got function; the arrays that a plain function holds"),
        ((eqx.nn.Identity(), {}), "the second is dict"),
    ],
)
def test_what_is_no_module_is_told(tmp_path: Path, module: Any, reason: str) -> None:
    """A function's arrays would be constants of the program."""
    assert reason in _refused(tmp_path, module, _ROWS)


def test_inputs_that_the_module_does_not_take_are_told(tmp_path: Path) -> None:
    """With Python's own reason."""
    told = _refused(tmp_path, eqx.nn.Linear(3, 2, key=_KEY), (_ROWS, _ROWS), batch_sizes=[2])

    assert "the module cannot be called with 2 inputs: too many positional arguments" in told
