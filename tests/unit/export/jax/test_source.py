"""JAX functions: what becomes an input, a weight and an output, and that all of them survive."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hloserve.bundle import load_manifest, read_bundle_weights
from hloserve.core.dtypes import by_token
from hloserve.engine.programs.mlir import read_program
from hloserve.export import ExportProblem, export_jax

pytestmark = pytest.mark.xla

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def _export(
    directory: Path, function: Any, examples: Any, weights: Any = (), **options: Any
) -> Any:
    return export_jax(function, examples, weights, dir=directory / "model", **options)


def _inputs(directory: Path) -> list[str]:
    return [str(spec) for spec in load_manifest(directory / "model").executable_inputs]


def _outputs(directory: Path) -> list[str]:
    return [str(spec) for spec in load_manifest(directory / "model").executable_outputs]


def _argument_types(directory: Path) -> list[str]:
    artifact = (directory / "model" / "model.mlir").read_bytes()
    return [str(kind) for kind in read_program(artifact, "model.mlir").signature.inputs]


def test_pairs_are_arguments_of_their_own(tmp_path: Path) -> None:
    """A list of names and arrays is passed one by one, in its order."""
    _export(tmp_path, lambda x, b, a: x @ a + b, (_X,), [("b", np.float32(1)), ("a", _X.T)])

    assert ["b", "a"] == list(read_bundle_weights(tmp_path / "model"))
    assert ["tensor<3x4xf32>", "tensor<f32>", "tensor<4x3xf32>"] == _argument_types(tmp_path)


def test_tree_of_weights_is_one_argument_with_dotted_names(tmp_path: Path) -> None:
    """A nested dict reaches the function as it is, and names its leaves by their paths."""
    weights = {"dense": {"kernel": _X.T, "bias": np.ones(3, np.float32)}, "scales": [np.float32(2)]}

    def predict(x: Any, w: Any) -> Any:
        return (x @ w["dense"]["kernel"] + w["dense"]["bias"]) * w["scales"][0]

    _export(tmp_path, predict, (_X,), weights)

    expected = {"dense.bias", "dense.kernel", "scales.0"}
    assert expected == set(read_bundle_weights(tmp_path / "model"))


def test_one_array_as_weights_is_called_param(tmp_path: Path) -> None:
    """Weights that are a bare array are a tree of one leaf."""
    _export(tmp_path, lambda x, w: x @ w, (_X,), _X.T)

    assert ["param"] == list(read_bundle_weights(tmp_path / "model"))


def test_names_that_collide_are_told(tmp_path: Path) -> None:
    """Two paths that read the same would be one weight too few."""
    weights = {"b.c": _X, "b": {"c": _X + 1}}

    with pytest.raises(ExportProblem, match=r"'b\.c' names several"):
        _export(tmp_path, lambda x, w: x + w["b.c"] + w["b"]["c"], (_X,), weights)

    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_tied_weights_are_stored_once(tmp_path: Path, make: Any) -> None:
    """An array that is used under two names is one weight of the bundle and one argument."""
    table = make(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))

    def predict(x: Any, w: Any) -> Any:
        return x @ w["embed"].T @ w["head"]

    report = _export(tmp_path, predict, (_X,), {"embed": table, "head": table})

    size_bytes = (tmp_path / "model" / "weights.safetensors").stat().st_size
    assert ["embed"] == list(read_bundle_weights(tmp_path / "model"))
    assert table.nbytes <= size_bytes < table.nbytes + 512
    assert any("'head' is 'embed' again" in note for note in report.notes)


def test_equal_weights_that_are_two_arrays_stay_two(tmp_path: Path) -> None:
    """Only the same memory is tied: equal values may come to differ."""
    weights = [("a", _X.copy()), ("b", _X.copy())]

    _export(tmp_path, lambda x, a, b: x + a + b, (_X,), weights)

    assert ["a", "b"] == list(read_bundle_weights(tmp_path / "model"))


@pytest.mark.parametrize(
    "token", ["bf16", "f16", "f8_e4m3", "f8_e5m2", "f64", "i64", "u64", "i8", "u8", "bool"]
)
def test_weights_of_every_dtype_survive(tmp_path: Path, token: str) -> None:
    """What is stored is what was given, bit by bit, and the program takes that type."""
    dtype = by_token(token)
    stored = np.array([0, 1, 1, 0], np.float32).astype(dtype.numpy)

    _export(tmp_path, lambda x, w: x + w.astype(jnp.float32), (_X,), [("w", stored)])

    read = read_bundle_weights(tmp_path / "model")["w"]
    assert dtype.numpy == read.dtype
    assert stored.tobytes() == read.tobytes()
    assert f"tensor<4x{dtype.stablehlo}>" == _argument_types(tmp_path)[1]


def test_int64_is_not_narrowed(tmp_path: Path) -> None:
    """Large integers pass the program whole, though JAX narrows them by default."""
    large = np.array([2**40, 2**41, 3], np.int64)

    _export(tmp_path, lambda x, w: x + w, {"x": large}, [("w", large)])

    assert ["x: i64[3]"] == _inputs(tmp_path)
    assert ["output: i64[3]"] == _outputs(tmp_path)


def test_arrays_that_are_not_contiguous_are_stored_right(tmp_path: Path) -> None:
    """A transposed or strided view holds its own values, not its base's."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    weights = [("turned", base.T), ("strided", base[::2, ::3])]

    _export(tmp_path, lambda x, t, s: x @ t.T[:, :3] + s.sum(), (_X,), weights)

    read = read_bundle_weights(tmp_path / "model")
    np.testing.assert_array_equal(base.T, read["turned"])
    np.testing.assert_array_equal(base[::2, ::3], read["strided"])


def test_unused_inputs_and_weights_survive(tmp_path: Path) -> None:
    """A program takes all that the manifest and the weights file declare, used or not."""
    report = _export(
        tmp_path,
        lambda x, mask, w, spare: x @ w,
        {"x": _X, "mask": np.zeros(3, bool)},
        [("w", _X.T), ("spare", np.zeros(5, np.int64))],
    )

    assert 4 == len(_argument_types(tmp_path))
    assert ("mask",) == report.unused_inputs


def test_inputs_of_rank_0_survive(tmp_path: Path) -> None:
    """Numbers are inputs without axes, of the types that JAX gives to Python's numbers."""
    _export(
        tmp_path,
        lambda x, scale, steps, flip: jnp.where(flip, x * scale + steps, x),
        {"x": _X, "scale": 2.5, "steps": 3, "flip": True},
    )

    expected = ["x: f32[3,4]", "scale: f32[]", "steps: i32[]", "flip: bool[]"]
    assert expected == _inputs(tmp_path)


def test_mapping_of_inputs_keeps_its_order(tmp_path: Path) -> None:
    """Inputs are passed as they are listed, where JAX itself would sort the names."""
    _export(tmp_path, lambda b, a: b @ a, {"b": _X, "a": _X.T})

    assert ["b: f32[3,4]", "a: f32[4,3]"] == _inputs(tmp_path)


def test_input_that_is_a_tree_becomes_several(tmp_path: Path) -> None:
    """The leaves of a dict are inputs of their own; the function gets the dict."""
    batch = {"ids": np.array([1, 2, 3], np.int32), "10": _X, "2": _X}

    _export(tmp_path, lambda b: (b["10"] + b["2"] * 2) * b["ids"][:, None], {"batch": batch})

    assert ["batch.10: f32[3,4]", "batch.2: f32[3,4]", "batch.ids: i32[3]"] == _inputs(tmp_path)


def test_single_array_needs_no_tuple(tmp_path: Path) -> None:
    """One example input may stand alone."""
    _export(tmp_path, jnp.tanh, _X)

    assert ["input_0: f32[3,4]"] == _inputs(tmp_path)


class _Scores(NamedTuple):
    best: Any
    rest: Any


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x, ["output: f32[3,4]"]),
        (lambda x: (x, x[0]), ["output_0: f32[3,4]", "output_1: f32[4]"]),
        (lambda x: [x], ["output_0: f32[3,4]"]),
        (lambda x: {"z": x, "a": {"b": x[0]}}, ["a.b: f32[4]", "z: f32[3,4]"]),
        (lambda x: _Scores(x, x[0]), ["best: f32[3,4]", "rest: f32[4]"]),
        (lambda x: (x, None), ["output_0: f32[3,4]"]),
    ],
    ids=["array", "tuple", "list", "dict", "namedtuple", "none"],
)
def test_results_are_named_by_their_place(
    tmp_path: Path, function: Any, expected: list[str]
) -> None:
    """One array is `output`; parts of a structure have its indices, keys or fields."""
    _export(tmp_path, function, (_X,))

    assert expected == _outputs(tmp_path)


def test_numbers_among_results_become_arrays(tmp_path: Path) -> None:
    """Python's numbers are 32 bits wide, even where 64-bit inputs turn 64-bit types on."""
    _export(
        tmp_path,
        lambda x: {"x": x, "n": 3, "p": 0.5, "ok": True},
        (np.arange(3, dtype=np.int64),),
    )

    expected = ["n: i32[]", "ok: bool[]", "p: f32[]", "x: i64[3]"]
    assert expected == _outputs(tmp_path)


def test_output_selection_chooses_before_naming(tmp_path: Path) -> None:
    """What is not selected is not in the program."""
    _export(
        tmp_path,
        lambda x: (x + 1, {"hidden": x * 2}),
        (_X,),
        output_select=lambda result: result[0],
        output_names=["scores"],
    )

    assert ["scores: f32[3,4]"] == _outputs(tmp_path)


def test_what_is_no_array_is_told_by_name(tmp_path: Path) -> None:
    """All arguments that a bundle cannot hold are told at once."""
    with pytest.raises(ExportProblem) as caught:
        _export(
            tmp_path,
            lambda x, z, w: x,
            {"x": _X, "z": np.ones(2, np.complex64)},
            {"act": "relu", "w": np.ones(2, ml_dtypes.int4)},
        )

    said = "\n".join(caught.value.findings)
    assert "input 'z' is complex64" in said
    assert "weight 'act' is" in said
    assert "weight 'w' is int4" in said


def test_settings_of_jax_are_as_before(tmp_path: Path) -> None:
    """An export leaves JAX as it was, 64-bit types, precision and promotion included."""
    before = jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion

    _export(
        tmp_path,
        lambda x: x @ x.T,
        (np.ones((2, 2)),),
        matmul_precision="highest",
        compile_options={"numpy_dtype_promotion": "strict"},
    )

    assert before == (jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion)
    assert jnp.zeros(1).dtype == np.float32


def test_floats_that_64_bit_integers_made_wide_are_reported(tmp_path: Path) -> None:
    """With 64-bit integers among the inputs, arrays without a dtype come out 64 bits wide."""
    ids = np.arange(3, dtype=np.int64)

    wide = _export(tmp_path / "wide", lambda ids: ids * jnp.ones(3), {"ids": ids})
    narrow = _export(tmp_path / "narrow", lambda ids: ids * jnp.ones(3, np.float32), {"ids": ids})

    assert any("result 'output' is float64" in note for note in wide.notes)
    assert not any("float64" in note for note in narrow.notes)


def test_arrays_that_were_donated_are_told(tmp_path: Path) -> None:
    """An array that an earlier call consumed has no values any more."""
    gone = jnp.ones(3)
    gone.delete()

    with pytest.raises(ExportProblem, match=r"weight 'w' cannot be read: .*deleted"):
        _export(tmp_path, lambda x, w: x, (_X,), [("w", gone)])


def test_compile_options_hold_while_the_model_is_traced(tmp_path: Path) -> None:
    """Strict promotion refuses what JAX would otherwise widen."""
    ids = np.arange(3, dtype=np.int32)

    with pytest.raises(ExportProblem, match="dtype promotion"):
        _export(
            tmp_path,
            lambda x, ids: x + ids[:, None],
            (_X, ids),
            compile_options={"numpy_dtype_promotion": "strict"},
        )
