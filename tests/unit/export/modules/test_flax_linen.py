"""Linen modules: their variables become weights, and what trains is refused with its layer."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from support.direct_run import run_program

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.export import ExportProblem, ExportReport, export_flax

pytestmark = pytest.mark.xla

_X = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)


class _Block(linen.Module):
    width: int

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.Dense(self.width)(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        return linen.Dropout(0.5, deterministic=not train)(linen.relu(x))


class _Network(linen.Module):
    """Two blocks with every kind of layer that trains differently, and a dict of results."""

    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = linen.Conv(4, (3, 3))(x)
        for _ in range(2):
            x = _Block(4)(x, train)
        self.sow("intermediates", "features", x)
        return {"mean": x.mean((1, 2)), "largest": x.max((1, 2))}


def _made(module: Any, *inputs: Any, **keywords: Any) -> tuple[Any, Any]:
    variables = jax.jit(lambda key: module.init(key, *inputs, **keywords))(jax.random.key(0))
    return module, {name: each for name, each in variables.items() if name != "intermediates"}


def _export(directory: Path, module: Any, examples: Any, **options: Any) -> ExportReport:
    return export_flax(module, examples, dir=directory / "model", **options)


def _weights(directory: Path) -> dict[str, Any]:
    return dict(read_bundle_weights(directory / "model"))


def _refused(directory: Path, module: Any, examples: Any, **options: Any) -> str:
    """The text of the refusal, which leaves nothing behind."""
    with pytest.raises(ExportProblem) as problem:
        _export(directory, module, examples, **options)
    assert [] == list(directory.iterdir())
    return str(problem.value)


@pytest.fixture(scope="module")
def network() -> tuple[Any, Any]:
    """The network and its variables."""
    return _made(_Network(), _X)


@pytest.fixture(scope="module")
def exported(network: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, for several tests."""
    directory = tmp_path_factory.mktemp("linen")
    _export(directory, network, _X, batch_sizes=[1, 4])
    return directory


def test_served_program_computes_what_apply_does(network: Any, exported: Path) -> None:
    """A program agrees with `module.apply` on inputs that the proof has not seen."""
    four = np.concatenate([_X, _X[::-1] * 0.5])

    answers = run_program(exported / "model", "model.b4.mlir", [four])

    module, variables = network
    expected = jax.jit(module.apply)(variables, four)
    for name in ("largest", "mean"):
        np.testing.assert_allclose(answers[name], expected[name], atol=1e-5)


def test_variables_of_all_collections_are_weights_named_by_path(exported: Path) -> None:
    """Parameters and batch statistics are told apart by their collection."""
    weights = _weights(exported)

    assert "params.Conv_0.kernel" in weights
    assert "batch_stats._Block_1.BatchNorm_0.var" in weights
    assert 14 == len(weights)


def test_keys_of_a_dict_of_results_name_the_outputs(exported: Path) -> None:
    """Outputs are in the order of JAX: by key."""
    outputs = load_manifest(exported / "model").executable_outputs

    assert ["largest", "mean"] == [output.name for output in outputs]


def test_provenance_tells_the_api_and_its_version(exported: Path) -> None:
    """A bundle says which of Flax's APIs it came from."""
    provenance = load_manifest(exported / "model").provenance

    assert ("flax", "linen") == (provenance["source_framework"], provenance["flax_api"])
    assert "flax_version" in provenance


def test_batch_can_stay_open(tmp_path: Path) -> None:
    """Linen modules trace with a symbolic batch."""
    made = _made(linen.Dense(2), _X)

    _export(tmp_path, made, _X, batch_sizes="dynamic", dynamic_sizes=[1, 3])

    assert "2.2" == load_manifest(tmp_path / "model").format_version


def test_bound_module_brings_its_variables(tmp_path: Path) -> None:
    """What `bind` returns is enough."""
    module, variables = _made(linen.Dense(2), _X)

    _export(tmp_path, module.bind(variables), _X)

    assert ["params.bias", "params.kernel"] == sorted(_weights(tmp_path))


def test_partitioning_metadata_is_dropped(tmp_path: Path) -> None:
    """Boxed parameters are stored as what is in the boxes."""
    kernel = linen.with_partitioning(linen.initializers.ones_init(), (None, "model"))

    _export(tmp_path, _made(linen.Dense(2, kernel_init=kernel), _X), _X)

    assert ["params.bias", "params.kernel"] == sorted(_weights(tmp_path))


def test_scanned_and_rematerialised_layers_are_exported(tmp_path: Path) -> None:
    """Lifted transformations keep their stacked weights."""

    class Stack(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            layer = linen.scan(
                linen.remat(_Step), variable_axes={"params": 0}, split_rngs={"params": True},
                length=3,
            )  # fmt: skip
            return layer()(x, None)[0]

    _export(tmp_path, _made(Stack(), _X[:, 0, 0]), _X[:, 0, 0])

    (kernel,) = [value for name, value in _weights(tmp_path).items() if name.endswith("kernel")]
    assert (3, 3, 3) == kernel.shape


class _Step(linen.Module):
    @linen.compact
    def __call__(self, x: Any, _: Any) -> tuple[Any, None]:
        return linen.tanh(linen.Dense(x.shape[-1])(x)), None


def test_several_inputs_of_several_types_and_ranks(tmp_path: Path) -> None:
    """Integers, a mask and a scalar reach the module as they are; a mapping names them."""

    class Tagger(linen.Module):
        @linen.compact
        def __call__(self, ids: Any, mask: Any, scale: Any) -> Any:
            hidden = linen.Embed(10, 4)(ids) * mask[..., None]
            return linen.Dense(3)(hidden) * scale, hidden.sum(1)

    ids = np.arange(10, dtype=np.int64).reshape(2, 5)
    examples = {"ids": ids, "mask": ids % 2 == 0, "scale": 2.0}
    made = _made(Tagger(), *map(jnp.asarray, examples.values()))

    _export(tmp_path, made, examples)

    manifest = load_manifest(tmp_path / "model")
    inputs = [(spec.name, spec.dtype.token) for spec in manifest.executable_inputs]
    assert [("ids", "i64"), ("mask", "bool"), ("scale", "f32")] == inputs
    assert ["output_0", "output_1"] == [spec.name for spec in manifest.executable_outputs]


def test_half_precision_parameters_stay(tmp_path: Path) -> None:
    """A bfloat16 module is stored and served in bfloat16."""
    module = linen.Dense(4, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    x = _X.astype(jnp.bfloat16)

    _export(tmp_path, _made(module, x), x)

    assert {"bfloat16"} == {value.dtype.name for value in _weights(tmp_path).values()}


def test_tied_parameters_are_stored_once(tmp_path: Path) -> None:
    """One array at two places of the variables is one weight, and the report says so."""
    module, variables = _made(linen.Sequential([linen.Dense(3), linen.Dense(3)]), _X)
    params = variables["params"]
    params["layers_1"]["kernel"] = params["layers_0"]["kernel"]

    report = _export(tmp_path, (module, variables), _X)

    assert "params.layers_1.kernel" not in _weights(tmp_path)
    assert "params.layers_1.kernel" in str(report)


def test_unused_parameters_survive(tmp_path: Path) -> None:
    """A head that the exported method does not call is still an argument."""

    class Headed(linen.Module):
        def setup(self) -> None:
            self.body, self.head = linen.Dense(3), linen.Dense(2)

        def __call__(self, x: Any) -> Any:
            return self.head(self.features(x))

        def features(self, x: Any) -> Any:
            return self.body(x)

    _export(tmp_path, _made(Headed(), _X), _X, method="features")

    assert "params.head.kernel" in _weights(tmp_path)
    (output,) = load_manifest(tmp_path / "model").executable_outputs
    assert 3 == output.axes[-1].extent


def test_function_can_be_the_method(tmp_path: Path) -> None:
    """A function of the module and the inputs is called inside of it, as `apply` does."""
    made = _made(linen.Dense(2), _X)

    _export(tmp_path, made, _X, method=lambda module, x: {"twice": module(x) * 2})

    (output,) = load_manifest(tmp_path / "model").executable_outputs
    assert "twice" == output.name


def test_training_mode_is_refused_with_every_layer(tmp_path: Path, network: Any) -> None:
    """All layers that update statistics or draw numbers are named at once, with what to pass."""
    told = _refused(tmp_path, network, _X, call_kwargs={"train": True})

    for layer in (0, 1):
        norm = f"layer '_Block_{layer}.BatchNorm_0' (BatchNorm) updates batch_stats mean, var"
        assert norm in told
        assert f"layer '_Block_{layer}.Dropout_0' (Dropout) draws random numbers" in told
    assert "pass call_kwargs={'train': False}" in told


def test_training_mode_is_not_taken_for_a_batch_that_cannot_stay_open(tmp_path: Path) -> None:
    """With an open batch the message is the same: no other batch size would help."""
    module = linen.BatchNorm(use_running_average=False)

    told = _refused(tmp_path, _made(module, _X), _X, batch_sizes="dynamic")

    assert "the module (BatchNorm) updates batch_stats mean, var" in told


def test_layer_that_needs_the_batch_size_is_named(tmp_path: Path) -> None:
    """What prevents one trace for all sizes is in the report, with its layer."""

    class Halved(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return x / 2 if x.shape[0] > 2 else x * 0.5

    module = linen.Sequential([linen.Dense(3), Halved()])
    params = {"layers_0": {"kernel": jnp.eye(3), "bias": jnp.ones(3)}}

    report = _export(tmp_path, (module, {"params": params}), _X, batch_sizes=[1, 4])

    assert "per size" in str(report)
    assert "layer 'layers_1' (Halved)" in str(report)


def test_dropout_that_is_built_to_train_is_refused(tmp_path: Path) -> None:
    """Without a flag in the call, the module must be built otherwise."""
    module = linen.Sequential([linen.Dense(2), linen.Dropout(0.5, deterministic=False)])
    variables = {"params": {"layers_0": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}}

    told = _refused(tmp_path, (module, variables), _X, batch_sizes=[1, 2])

    assert "layer 'layers_1' (Dropout) draws random numbers" in told
    assert "build the module with use_running_average=True and deterministic=True" in told


def test_cache_that_the_call_updates_is_refused(tmp_path: Path) -> None:
    """State between requests does not exist in a server; the collection is named."""

    class Counter(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            seen = self.variable("cache", "seen", jnp.zeros, ())
            seen.value += 1
            return x * seen.value

    told = _refused(tmp_path, (Counter(), {"cache": {"seen": jnp.ones(())}}), _X)

    assert "the module (Counter) updates cache seen while it runs" in told


def test_random_key_in_the_variables_is_refused_when_it_is_used(tmp_path: Path) -> None:
    """Answers follow from the inputs alone; a key that nothing depends on is left out."""

    class Noisy(linen.Module):
        weight: float

        @linen.compact
        def __call__(self, x: Any) -> Any:
            key = self.variable("keys", "noise", lambda: jax.random.key(0)).value
            noise = jax.random.normal(key, x.shape)
            return x + self.weight * noise if self.weight else x

    variables = {"keys": {"noise": jax.random.key(1)}}

    told = _refused(tmp_path, (Noisy(1.0), variables), _X)

    assert "random key 'keys.noise' is part of the model, and the results depend on it" in told
    _export(tmp_path, (Noisy(0.0), variables), _X)


def test_missing_argument_is_told_with_what_to_pass(tmp_path: Path) -> None:
    """A flag without a default is asked for by its name."""
    told = _refused(tmp_path, (_Block(2), {}), _X)

    assert "missing a required argument: 'train'; pass call_kwargs={'train': False}" in told


def test_variables_of_another_shape_or_place_are_told(tmp_path: Path) -> None:
    """Passing ``variables['params']`` is a common slip; Flax's reason comes without its address."""
    module, variables = _made(linen.Dense(2), _X)

    told = _refused(tmp_path, (module, variables["params"]), _X)

    assert "the variables must be those of this module, by collection" in told
    assert "http" not in told


def test_branch_on_values_names_the_layer(tmp_path: Path) -> None:
    """What cannot be traced is told with the layer that it is in."""

    class Branching(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    module = linen.Sequential([linen.Dense(3), Branching()])
    params = {"layers_0": {"kernel": jnp.eye(3), "bias": jnp.ones(3)}}

    told = _refused(tmp_path, (module, {"params": params}), _X, batch_sizes=[1, 2])

    assert "layer 'layers_1' (Branching): the model decides in Python" in told


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (linen.Dense(2), "got Dense without its variables; pass (module, variables)"),
        ({"params": {}}, "got dict"),
        ((linen.Dense(2), {}, {}), "got tuple"),
    ],
)
def test_what_is_no_module_is_told(tmp_path: Path, module: Any, reason: str) -> None:
    """The message says both forms that are taken."""
    told = _refused(tmp_path, module, _X)

    assert f"(module, variables) with a linen module, or an nnx.Module; {reason}" in told


def test_method_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """Before anything is traced."""
    told = _refused(tmp_path, _made(linen.Dense(2), _X), _X, method="encode")

    assert "method: Dense has no method 'encode'" in told
