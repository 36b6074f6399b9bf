"""The options of an export: checked before any work, all findings at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloserve.bundle import IOSpec
from hloserve.core.errors import ExportProblem
from hloserve.core.tensors import Array
from hloserve.export.options import ExportOptions
from hloserve.export.settings import DEFAULT_DYNAMIC_SIZES, Settings, resolve_settings
from hloserve.export.source import NamedArrays, Shape, Traced

_X = np.ones((2, 3, 4), np.float32)


class _IdleSource:
    """Has inputs, and is never traced: settings come before any work."""

    framework = "none"
    provenance: Mapping[str, object] = {}

    def __init__(self, *inputs: Array) -> None:
        self.inputs: NamedArrays = tuple((f"input_{i}", array) for i, array in enumerate(inputs))

    def trace(self, shapes: Sequence[Shape]) -> Traced:
        raise AssertionError("settings trace nothing")

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        raise AssertionError("settings run nothing")


def _resolve(directory: Path, *inputs: Array, **options: Any) -> Settings:
    chosen: Any = {"dir": directory / "model", **options}
    return resolve_settings(_IdleSource(*(inputs or (_X,))), chosen)


def _findings(directory: Path, *inputs: Array, **options: Any) -> str:
    with pytest.raises(ExportProblem) as caught:
        _resolve(directory, *inputs, **options)
    return "\n".join(caught.value.findings)


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    """Without options there is one program of the example's shapes."""
    settings = _resolve(tmp_path)

    assert (tmp_path / "model", "model") == (settings.directory, settings.name)
    assert ((), False, 1) == (settings.batch_sizes, settings.is_dynamic, settings.variants)
    assert (2, 3, 4) == settings.inputs[0].shape(0, "batch")
    assert settings.inputs[0].batch_axis is None


def test_batch_sizes_give_every_input_a_leading_batch_axis(tmp_path: Path) -> None:
    """Sizes are sorted, and axis 0 is the batch's where nothing else is said."""
    settings = _resolve(tmp_path, batch_sizes=[8, 1])

    assert (1, 8) == settings.batch_sizes
    assert ("batch", 3, 4) == settings.inputs[0].shape(0, "batch")


def test_dynamic_batch_has_sizes_of_its_own(tmp_path: Path) -> None:
    """A dynamic batch is specialised to a few sizes unless the author names others."""
    assert _resolve(tmp_path, batch_sizes="dynamic").batch_sizes == DEFAULT_DYNAMIC_SIZES
    chosen = _resolve(tmp_path, batch_sizes="dynamic", dynamic_sizes=(4, 2))
    assert ((2, 4), True) == (chosen.batch_sizes, chosen.is_dynamic)


def test_variants_make_axes_variable_that_differ(tmp_path: Path) -> None:
    """Of the batch axis nothing is said: it differs anyway."""
    variants = [(np.ones((1, size, 4), np.float32),) for size in (3, 5)]

    settings = _resolve(tmp_path, batch_sizes=[1], shape_variants=variants)

    assert (1,) == settings.inputs[0].variable_axes
    assert ("batch", 5, 4) == settings.inputs[0].shape(1, "batch")


@pytest.mark.parametrize(
    "variant",
    [
        (_X, {"b": 2, "a": _X[0]}),
        [_X, [_X[0], 2]],
        {"input_2": 2, "input_1": _X[0], "input_0": _X},
        {"x": _X, "y": _X[0], "z": 2},
    ],
    ids=["dict", "list", "names in another order", "other names"],
)
def test_variants_are_given_as_the_examples_are(tmp_path: Path, variant: Any) -> None:
    """A variant may be nested and named like the example inputs; only its shapes are of use."""
    inputs = (_X, _X[0], np.ones((), np.int32))

    settings = _resolve(tmp_path, *inputs, shape_variants=[variant])

    assert [array.shape for array in inputs] == [each.shapes[0] for each in settings.inputs]


def test_single_array_is_a_variant(tmp_path: Path) -> None:
    """One input needs no tuple here either."""
    settings = _resolve(tmp_path, shape_variants=[_X, _X[:, :2]])

    assert ((2, 3, 4), (2, 2, 4)) == settings.inputs[0].shapes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batchsizes": [1]}, "option 'batchsizes' is not known; did you mean 'batch_sizes'?"),
        ({"qqq": 1}, "option 'qqq' is not known (known: "),
        ({"name": "other"}, "name: is 'other' and dir ends in 'model'"),
        ({"batch_sizes": []}, "batch_sizes: must be sizes above 0"),
        ({"batch_sizes": [0]}, "batch_sizes: must be sizes above 0"),
        ({"batch_sizes": 8}, "got 8 (int)"),
        ({"batch_sizes": "dynamik"}, '"dynamic" for an open batch axis'),
        ({"batch_sizes": [2, 2]}, "batch_sizes: 2 is in it twice"),
        ({"dynamic_sizes": [2]}, 'dynamic_sizes: is for batch_sizes="dynamic" only'),
        ({"batch_sizes": "dynamic", "dynamic_sizes": [-1]}, "dynamic_sizes: must be sizes above 0"),
        ({"input_names": ["a", "b"]}, "input_names: has 2 names ('a', 'b') for 1 example inputs"),
        ({"input_names": [""]}, "input_names: must be names"),
        ({"output_names": ["y", "y"]}, "output_names: 'y' is in it twice"),
        ({"input_batch_axes": [0]}, "there is no batch axis without batch_sizes"),
        ({"output_batch_axes": [0]}, "there is no batch axis without batch_sizes"),
        ({"batch_sizes": [1], "input_batch_axes": [3]}, "batch axis 3 is not an axis of its 3"),
        ({"batch_sizes": [1], "input_batch_axes": [0, 0]}, "has 2 entries for 1 inputs"),
        ({"batch_sizes": [1], "input_batch_axes": [None]}, "no input has a batch axis"),
        ({"batch_sizes": [1], "output_batch_axes": [-1]}, "must be axes from 0 on, or None"),
        ({"shape_variants": []}, "shape_variants: is empty"),
        ({"shape_variants": [(_X, _X)]}, "shape_variants[0]: has 2 inputs, the example inputs are"),
        (
            {"shape_variants": [(_X.astype(np.float16),)]},
            "shape_variants[0]: input 'input_0' is float16 of shape (2, 3, 4), expected float32",
        ),
        ({"shape_variants": [(_X[0],)]}, "expected float32 with 3 axes"),
        ({"client_inputs": ["x"]}, "client_inputs: must be IOSpec"),
        ({"client_inputs": [IOSpec("x", "f33", (1,))]}, "client_inputs[0] 'x': dtype 'f33'"),
        ({"matmul_precision": "exact"}, "matmul_precision: must be one of 'default', 'high'"),
        ({"target_version": "1.0"}, "target_version: must be a StableHLO version"),
        ({"tolerance": 0}, "tolerance: must be a share above 0"),
        ({"hook_file": "/nowhere/hook.py"}, "hook_file: /nowhere/hook.py cannot be read"),
        ({"assets": ["/nowhere/a.txt"]}, "assets: /nowhere/a.txt cannot be read"),
        ({"compile_options": {"numpy_rank": 1}}, "did you mean 'numpy_rank_promotion'?"),
        ({"compile_options": {"numpy_rank_promotion": "no"}}, "must be one of 'allow', 'raise'"),
        ({"compile_options": {"softmax_custom_jvp": 1}}, "must be one of True, False"),
        (
            {"compile_options": {"jax_default_matmul_precision": "high"}},
            "pass matmul_precision",
        ),
        ({"compile_options": ["enable_x64"]}, "compile_options: must map names to values"),
    ],
)
def test_option_that_does_not_fit_is_told_by_name(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    """Each wrong option is named, with what it may be."""
    assert said in _findings(tmp_path, **options)


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    """One run tells everything that is wrong."""
    said = _findings(
        tmp_path, batch_sizes=[0], matmul_precision="x", tolerance=-1, unknown=3, assets=["/no"]
    )

    assert 5 == len(said.splitlines())


def test_inputs_of_which_some_have_no_batch_axis_are_refused(tmp_path: Path) -> None:
    """A bundle merges requests row by row, so an input without rows has no place beside others."""
    scalar = np.ones((), np.float32)

    implied = _findings(tmp_path, _X, scalar, batch_sizes=[1])
    said = _findings(tmp_path, _X, scalar, batch_sizes=[1], input_batch_axes=[0, None])

    assert "input 'input_1': batch axis 0 is not an axis of its 0 axes" in implied
    assert "'input_1' has no batch axis and others have" in said


def test_missing_directory_is_told(tmp_path: Path) -> None:
    """There is no default for where to write."""
    options: Any = {}
    with pytest.raises(ExportProblem, match="dir: the directory of the bundle is missing"):
        resolve_settings(_IdleSource(_X), options)


@pytest.mark.parametrize("options", [{}, {"dir": ""}, {"name": "model"}])
def test_missing_directory_is_the_one_finding(options: ExportOptions) -> None:
    """Nothing is said of the working directory, least of all that it could be replaced."""
    with pytest.raises(ExportProblem) as caught:
        resolve_settings(_IdleSource(_X), options)

    (finding,) = caught.value.findings
    assert "the directory of the bundle is missing" in finding
    assert str(caught.value).startswith("export of 'model'" if "name" in options else "dir: ")


@pytest.mark.parametrize("name", [".hidden", "a.tmp-1"])
def test_names_that_servers_skip_are_refused(tmp_path: Path, name: str) -> None:
    """A bundle of such a name would never be served."""
    options: ExportOptions = {"dir": tmp_path / name}
    with pytest.raises(ExportProblem, match="servers skip such directories"):
        resolve_settings(_IdleSource(_X), options)


def test_dtype_without_a_place_in_bundles_is_told(tmp_path: Path) -> None:
    """Complex inputs cannot be sent."""
    said = _findings(tmp_path, np.ones(2, np.complex64))

    assert "input 'input_0': dtype complex64 has no place in a bundle" in said


def test_files_are_read_at_once_and_by_their_own_names(tmp_path: Path) -> None:
    """The hook file becomes `model.py`; an asset of that name would be in its way."""
    hook, asset = tmp_path / "hook.py", tmp_path / "model.py"
    hook.write_text("1")
    asset.write_text("2")

    settings = _resolve(tmp_path, hook_file=hook, client_inputs=[IOSpec("x", "f32", (1,))])

    assert {"model.py": b"1"} == settings.files
    assert "'model.py' is included twice" in _findings(tmp_path, hook_file=hook, assets=[asset])


def test_compile_options_that_are_default_are_not_kept(tmp_path: Path) -> None:
    """Only what differs from the default is worth recording."""
    settings = _resolve(
        tmp_path,
        compile_options={"jax_numpy_rank_promotion": "raise", "numpy_dtype_promotion": "standard"},
    )

    assert {"numpy_rank_promotion": "raise"} == settings.compile_options
