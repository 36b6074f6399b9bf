"""What must not be in a bundle's program: each is told by name, and nothing is written."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback, pallas
from jax.sharding import AxisType, PartitionSpec

from hloserve.export import ExportProblem, export_jax

pytestmark = pytest.mark.xla

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
_TABLE = np.random.default_rng(7).normal(size=(160, 160)).astype(np.float32)
_BATCHED = {"batch_sizes": [1, 3]}


def _refused(
    directory: Path,
    function: Callable[..., Any],
    examples: Any = (_X,),
    weights: Any = (),
    **options: Any,
) -> str:
    """Export what must be refused; return what is said."""
    with pytest.raises(ExportProblem) as caught:
        export_jax(function, examples, weights, dir=directory / "model", **options)
    assert [] == list(directory.iterdir()), "something was left behind"
    return "\n".join(caught.value.findings)


def test_baked_variable_is_named_with_shape_dtype_and_bytes(tmp_path: Path) -> None:
    """An array of the closure that would become a constant is named as the author calls it."""
    kernel = jnp.asarray(_TABLE)

    def predict(x: Any) -> Any:
        return jnp.tanh(x @ kernel)

    said = _refused(tmp_path, predict, (np.ones((2, 160), np.float32),))

    assert "'kernel' (used by " in said
    assert "predict" in said
    assert "shape (160, 160) and dtype float32 (102400 bytes)" in said
    assert "`weights`" in said


def test_array_that_an_inner_jit_closes_over_is_named(tmp_path: Path) -> None:
    """A constant deep inside is found: `make_jaxpr(...).consts` would not show it."""
    params = {"layer": [jnp.asarray(_TABLE)]}

    def inner(x: Any) -> Any:
        return x @ params["layer"][0]

    def predict(x: Any) -> Any:
        return jax.jit(inner)(x) + 1

    said = _refused(tmp_path, predict, (np.ones((2, 160), np.float32),), **_BATCHED)

    assert "params['layer'][0]" in said


def _uses_a_global(x: Any) -> Any:
    return x @ _TABLE


def _takes_a_default(x: Any, kernel: Any = _TABLE) -> Any:
    return x @ kernel


class _Model:
    def __init__(self) -> None:
        self.kernel = _TABLE

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel

    def predict(self, x: Any) -> Any:
        return self(x)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (_uses_a_global, "_TABLE"),
        (_takes_a_default, "kernel"),
        (functools.partial(lambda kernel, x: x @ kernel, _TABLE), "[0]"),
        (_Model(), ".kernel"),
        (_Model().predict, "self.kernel"),
        (jax.jit(_uses_a_global), "_TABLE"),
    ],
    ids=["global", "default", "partial", "callable", "method", "jit"],
)
def test_baked_array_is_found_wherever_python_keeps_it(
    tmp_path: Path, function: Callable[..., Any], name: str
) -> None:
    """Globals, defaults, partial arguments and attributes are variables, too."""
    said = _refused(tmp_path, function, (np.ones((2, 160), np.float32),))

    assert f"{name}'" in said or f'{name}"' in said


def test_array_that_the_function_makes_is_told_without_a_name(tmp_path: Path) -> None:
    """A large constant is refused though no variable outside of the function holds it."""

    def predict(x: Any) -> Any:
        return x @ (np.arange(160 * 160, dtype=np.float32).reshape(160, 160) % 7)

    said = _refused(tmp_path, predict, (np.ones((2, 160), np.float32),))

    assert "an array that the function makes or closes over of shape (160, 160)" in said


def test_small_tables_and_large_fills_are_no_weights(tmp_path: Path) -> None:
    """A short table stays a constant, and so does a large array of one value."""
    scale = jnp.linspace(1, 2, 4)

    def predict(x: Any) -> Any:
        return (x * scale).sum() + jnp.zeros((1000, 1000))

    report = export_jax(predict, (_X,), dir=tmp_path / "model")

    assert 0 == report.weights


def test_typed_key_as_weight_is_named(tmp_path: Path) -> None:
    """A random key has no dtype that a bundle can hold."""
    said = _refused(tmp_path, lambda x, w: x, (_X,), {"dropout": {"key": jax.random.key(0)}})

    assert "weight 'dropout.key' is a random key (key<fry>)" in said


def test_typed_key_as_input_is_named(tmp_path: Path) -> None:
    """Clients cannot send a typed key either."""
    said = _refused(tmp_path, lambda x, k: x, {"x": _X, "k": jax.random.key(0)})

    assert "input 'k' is a random key" in said
    assert "jax.random.key_data" in said


def test_raw_key_as_weight_is_random_state(tmp_path: Path) -> None:
    """Dropout that is still on is told by the weight that it draws from."""

    def predict(x: Any, w: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.wrap_key_data(w["rng"]), 0.5, x.shape)
        return jnp.where(keep, x * w["scale"], 0)

    said = _refused(
        tmp_path, predict, (_X,), {"rng": np.array([0, 7], np.uint32), "scale": np.float32(2)}
    )

    assert "weight 'rng' is random state" in said
    assert "scale" not in said


def test_raw_key_as_input_is_a_client_s_business(tmp_path: Path) -> None:
    """A seed that clients send is an input like others; the report says what hangs on it."""

    def predict(x: Any, seed: Any) -> Any:
        return x + jax.random.normal(jax.random.wrap_key_data(seed), x.shape)

    report = export_jax(
        predict, {"x": _X, "seed": np.array([0, 7], np.uint32)}, dir=tmp_path / "model"
    )

    assert any("random numbers from 'seed'" in note for note in report.notes)


def test_fixed_key_is_reported(tmp_path: Path) -> None:
    """Numbers from a fixed key are the same in every request, which is rarely meant."""
    key = jax.random.key(3)

    report = export_jax(
        lambda x: x + jax.random.normal(key, x.shape), (_X,), dir=tmp_path / "model"
    )

    assert any("from a fixed key" in note for note in report.notes)


def test_generator_of_the_platform_is_refused(tmp_path: Path) -> None:
    """A key of implementation rbg draws other numbers on every kind of device."""
    said = _refused(
        tmp_path, lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape)
    )

    assert "stablehlo.rng_bit_generator" in said
    assert "threefry2x32" in said


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x + 1


def _pure(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _io(x: Any) -> Any:
    return io_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _calls_back(x: Any) -> Any:
    jax.debug.callback(lambda v: None, x)
    return x * 2


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (_prints, "jax.debug.print"),
        (_calls_back, "jax.debug.callback"),
        (_pure, "jax.pure_callback"),
        (_io, "io_callback"),
        (jax.jit(_prints), "jax.debug.print"),
    ],
)
def test_callbacks_into_python_are_named(
    tmp_path: Path, function: Callable[..., Any], name: str
) -> None:
    """No server can call the process that exported."""
    assert name in _refused(tmp_path, function)


@pytest.mark.parametrize(
    ("function", "target", "cause"),
    [
        (lambda x: jnp.linalg.qr(x)[0], "lapack_sgeqrf_ffi", "jnp.linalg.qr"),
        (lambda x: jnp.linalg.svd(x)[1], "lapack_sgesdd_ffi", "jnp.linalg.svd"),
        (lambda x: jnp.linalg.inv(x[:3, :3]), "lapack_sgetrf_ffi", "jnp.linalg.solve"),
        (lambda x: jnp.linalg.eigh(x @ x.T)[0], "lapack_ssyevd_ffi", "jnp.linalg.eigh"),
        (lambda x: jax.lax.approx_max_k(x, 2)[0], "ApproxTopK", "approx_max_k"),
    ],
    ids=["qr", "svd", "inv", "eigh", "approx_top_k"],
)
def test_calls_into_one_platform_s_libraries_are_named_with_their_cause(
    tmp_path: Path, function: Callable[..., Any], target: str, cause: str
) -> None:
    """A custom call is told by its target and by the function that usually makes it."""
    said = _refused(tmp_path, function)

    assert target in said
    assert cause in said


def test_several_calls_are_told_at_once(tmp_path: Path) -> None:
    """One run names every one of them."""
    said = _refused(tmp_path, lambda x: (jnp.linalg.qr(x)[0], jnp.linalg.svd(x)[1]))

    assert "geqrf" in said
    assert "gesdd" in said


def test_kernel_is_refused(tmp_path: Path) -> None:
    """A Pallas kernel is code for one kind of device."""

    def kernel(given: Any, out: Any) -> None:
        out[...] = given[...]

    def predict(x: Any) -> Any:
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    assert "Pallas kernel" in _refused(tmp_path, predict)


def test_model_that_is_split_over_devices_is_refused(tmp_path: Path) -> None:
    """`shard_map` is for several devices; a program is for one."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    split = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=spec, out_specs=spec)

    said = _refused(tmp_path, split)

    assert "shard_map splits the model over devices" in said


def test_sharding_constraints_are_dropped(tmp_path: Path) -> None:
    """Where an array should lie is no part of what the model computes."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("d"))

    report = export_jax(
        lambda x: jax.lax.with_sharding_constraint(x * 2, sharding), (_X,), dir=tmp_path / "model"
    )

    assert b"sdy" not in (report.directory / "model.mlir").read_bytes()


def test_donated_arguments_are_kept(tmp_path: Path) -> None:
    """Donation would make a server eat its weights on the first run."""
    donating = jax.jit(lambda x, w: x + w, donate_argnums=(0, 1))

    report = export_jax(donating, (_X,), [("w", np.ones_like(_X))], dir=tmp_path / "model")

    artifact = (report.directory / "model.mlir").read_bytes()
    assert b"aliasing" not in artifact
    assert b"donor" not in artifact


def test_decisions_in_python_are_told(tmp_path: Path) -> None:
    """A branch on a value cannot be traced; the message says what to use."""
    said = _refused(tmp_path, lambda x: x if x.sum() > 0 else -x)

    assert "decides in Python" in said
    assert "jnp.where" in said


def test_fault_of_the_model_s_own_code_is_told_in_a_line(tmp_path: Path) -> None:
    """What the function raises is its author's to mend: no page of a traceback."""
    said = _refused(tmp_path, lambda x, w: x @ w, (_X,), [("w", np.ones((5, 2), np.float32))])

    assert "cannot be traced" in said
    assert re.search(r"dot_general|matmul|contract", said)
    assert 1 == len(said.splitlines())


def test_results_that_are_no_arrays_are_named(tmp_path: Path) -> None:
    """A result of another type has no place in a bundle."""
    said = _refused(tmp_path, lambda x: {"y": x, "label": "cat"})

    assert "result 'label' is str" in said


@pytest.mark.parametrize(
    ("function", "kind"),
    [(jnp.fft.fft, "complex64"), (lambda x: jax.random.key(0), "key<fry>")],
    ids=["complex", "key"],
)
def test_results_of_a_dtype_that_bundles_lack_are_named(
    tmp_path: Path, function: Callable[..., Any], kind: str
) -> None:
    """Complex numbers and random keys have no place in a bundle."""
    assert f"result 'output' is {kind}" in _refused(tmp_path, function)


def test_float8_of_clients_is_refused_before_the_proof(tmp_path: Path) -> None:
    """The protocol cannot carry float8, so a hook must stand between it and clients."""
    narrow = _X.astype(jnp.float8_e4m3fn)

    said = _refused(tmp_path, lambda x: x + x, {"x": narrow})

    assert "input 'x' is f8_e4m3, which clients cannot send" in said
    assert "output 'output' is f8_e4m3" in said


def test_function_without_results_is_refused(tmp_path: Path) -> None:
    """There must be something to serve."""
    assert "returns nothing" in _refused(tmp_path, lambda x: None)


def test_traced_function_with_too_few_arguments_is_refused(tmp_path: Path) -> None:
    """A function that takes fewer arrays than inputs and weights is told so before any trace."""
    said = _refused(tmp_path, lambda x: x, (_X,), [("w", _X)])

    assert "takes 1 positional argument but 2 were given" in said
