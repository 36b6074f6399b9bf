"""Comparing a bundle with what is expected of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models_bundles import affine, write_affine

from hloserve.bundle.manifest import load_manifest
from hloserve.core.errors import BadRequest, ExportProblem
from hloserve.core.tensors import Array, Tensors
from hloserve.export.comparison.comparing import (
    CompareReport,
    SampleResult,
    Tolerances,
    compare_arrays,
    compare_samples,
)
from hloserve.export.comparison.references import load_reference
from hloserve.export.comparison.samples import Sample, find_samples, read_expected, read_inputs
from hloserve.models.bundle_runner import BundleRunner

HOOK = """
from hloserve import register_model
register_model(
    preprocess=lambda tensors: {"x": tensors[0].array * 2},
    postprocess=lambda tensors: {"y": tensors[0].array + 1},
)
"""


def save(path: Path, array: Array) -> None:
    """Save an array, with the directories that lead there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def rows(count: int) -> Array:
    """Rows of four."""
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of x @ w + b, for batches of 1 and 4."""
    return write_affine(tmp_path / "models")


def run_all(bundle: Path, directory: Path, limits: Tolerances | None = None) -> CompareReport:
    """Compare a bundle with the expected outputs in a directory."""
    manifest = load_manifest(bundle)
    samples = find_samples(directory, manifest.inputs, manifest.outputs)

    def expect(sample: Sample, _: Tensors) -> Tensors:
        return read_expected(sample, manifest.outputs)

    limits = limits or Tolerances()
    with BundleRunner(bundle) as runner:
        results = compare_samples(
            samples, manifest.inputs, manifest.outputs, runner.run, expect, limits
        )
    return CompareReport(manifest.name, "expected", limits, tuple(results))


@pytest.mark.xla
def test_directories_and_files_are_samples(bundle: Path, tmp_path: Path) -> None:
    """Each way to lay a sample and its expected outputs out is found."""
    directory = tmp_path / "samples"
    save(directory / "one" / "x.npy", rows(2))
    save(directory / "one" / "expected" / "y.npy", affine(rows(2)))
    save(directory / "two" / "x.npy", rows(1))
    save(directory / "two" / "y.npy", affine(rows(1)))
    save(directory / "flat.npy", rows(4))
    save(directory / "expected" / "flat.npy", affine(rows(4)))
    save(directory / "other.npy", rows(3))
    save(directory / "expected" / "other" / "y.npy", affine(rows(3)))
    report = run_all(bundle, directory)

    assert [sample.name for sample in report.samples] == ["flat", "one", "other", "two"]
    assert report.passed, report.rows()


@pytest.mark.xla
def test_a_missing_batch_axis_is_added_and_large_samples_are_split(
    bundle: Path, tmp_path: Path
) -> None:
    """One row may be saved without its axis, and 11 rows run as 4, 4 and 3 padded to 4."""
    save(tmp_path / "s" / "lone.npy", rows(1)[0])
    save(tmp_path / "s" / "expected" / "lone.npy", affine(rows(1))[0])
    save(tmp_path / "s" / "many.npy", rows(11))
    save(tmp_path / "s" / "expected" / "many.npy", affine(rows(11)))
    save(tmp_path / "s" / "none.npy", rows(0))
    save(tmp_path / "s" / "expected" / "none.npy", affine(rows(0)))
    report = run_all(bundle, tmp_path / "s")

    assert report.passed, report.rows()


@pytest.mark.xla
def test_hooks_run_as_on_a_server(tmp_path: Path) -> None:
    """What clients get is compared, not what the program returns."""
    bundle = write_affine(tmp_path / "models", hook=HOOK)
    save(tmp_path / "s" / "a.npy", rows(2))
    save(tmp_path / "s" / "expected" / "a.npy", affine(rows(2) * 2) + 1)

    assert run_all(bundle, tmp_path / "s").passed


@pytest.mark.xla
def test_every_failure_is_one_of_its_sample(bundle: Path, tmp_path: Path) -> None:
    """The others are compared all the same, and the report says what is wrong where."""
    directory = tmp_path / "s"
    good = affine(rows(1))
    for name, array, expected in (
        ("dtype", rows(1).astype(np.float64), good),
        ("far", rows(1), good + np.array([0, 1, 0], np.float32)),
        ("good", rows(1), good),
        ("shape", np.zeros((1, 5), np.float32), good),
        ("taller", rows(1), affine(rows(2))),
        ("kind", rows(1), good.astype(np.int64)),
        ("wide", rows(1), good.astype(np.float64)),
    ):
        save(directory / f"{name}.npy", array)
        save(directory / "expected" / f"{name}.npy", expected)
    save(directory / "unknown.npy", rows(1))
    (directory / "broken.npy").write_text("no array")
    report = run_all(bundle, directory)
    failures = {row[0]: row[2] for row in report.rows()}

    assert not report.passed
    assert "is not an array that numpy.save wrote" in failures["broken"]
    assert "dtype is float64" in failures["dtype"]
    assert "1 of 3 are not close: [0, 1] is " in failures["far"]
    assert failures["good"] == "passed"
    assert "shape is [1, 5]" in failures["shape"]
    assert "shape is [1, 3], expected [2, 3]" in failures["taller"]
    assert "there is no expected output" in failures["unknown"]
    assert "dtype is float32, expected int64" in failures["kind"]
    assert failures["wide"] == "passed"
    assert "2 of 9 samples passed" in report.headline()
    assert "| good | y | passed |" in report.to_markdown()
    assert report.to_json()["passed"] is False


def test_a_sample_of_several_inputs_needs_a_directory(tmp_path: Path) -> None:
    """Which input would a lone file be?"""
    spec = load_manifest(write_affine(tmp_path)).inputs[0]
    save(tmp_path / "s" / "a.npy", rows(1))
    with pytest.raises(BadRequest, match="make a directory per sample"):
        find_samples(tmp_path / "s", [spec, spec], [spec])


def test_an_empty_directory_says_what_belongs_there(tmp_path: Path) -> None:
    """The message has the names of the files."""
    spec = load_manifest(write_affine(tmp_path)).inputs[0]
    (tmp_path / "s").mkdir()
    with pytest.raises(BadRequest, match=r"holds no samples; .*x\.npy"):
        find_samples(tmp_path / "s", [spec], [])


def test_an_output_with_the_name_of_an_input_lies_in_expected_only(tmp_path: Path) -> None:
    """The input is not taken for its own expected output."""
    spec = load_manifest(write_affine(tmp_path)).inputs[0]
    save(tmp_path / "s" / "a" / "x.npy", rows(1))
    (sample,) = find_samples(tmp_path / "s", [spec], [spec])

    with pytest.raises(BadRequest, match="no expected output"):
        read_expected(sample, [spec])
    save(tmp_path / "s" / "a" / "expected" / "x.npy", rows(2))
    assert read_expected(sample, [spec])["x"].shape == (2, 4)
    assert read_inputs(sample, [spec])["x"].shape == (1, 4)


def test_the_norm_forgives_a_few_elements() -> None:
    """Both figures are in the result; which one decides is a choice."""
    want = np.ones(10_000, np.float32)
    got = want.copy()
    got[7] += 0.05
    by_element = compare_arrays("y", got, want, Tolerances())
    by_norm = compare_arrays("y", got, want, Tolerances(norm_wise=True))

    assert not by_element.passed
    assert by_element.why == "1 of 10000 are not close: [7] is 1.0499999523162842, expected 1.0"
    assert by_norm.passed
    assert by_norm.norm_error == pytest.approx(5e-4, rel=1e-3)
    assert not compare_arrays("y", got * 2, want, Tolerances(norm_wise=True)).passed


def test_nan_and_infinity_must_be_where_they_are_expected() -> None:
    """They pass against themselves and nothing else."""
    want = np.array([np.nan, np.inf, -np.inf, 1], np.float32)

    assert compare_arrays("y", want.copy(), want, Tolerances()).passed
    for place in range(4):
        for other in (np.nan, np.inf, -np.inf, 1.0):
            got = want.copy()
            got[place] = other
            same = got[place] == want[place] or (np.isnan(other) and np.isnan(want[place]))
            assert compare_arrays("y", got, want, Tolerances()).passed == same
            assert compare_arrays("y", got, want, Tolerances(norm_wise=True)).passed == same


def test_integers_and_bools_are_equal_or_not() -> None:
    """No tolerance applies to them."""
    want = np.array([1000, 2], np.int64)
    result = compare_arrays("y", want + np.array([1, 0]), want, Tolerances(rtol=0.5))

    assert result.why == "1 of 2 differ: [0] is 1001, expected 1000"
    assert compare_arrays("y", want, want, Tolerances()).passed
    flags = np.array([True, False])
    assert not compare_arrays("y", ~flags, flags, Tolerances()).passed


def test_a_python_reference_returns_an_array_a_tuple_or_a_dict(tmp_path: Path) -> None:
    """It is called with the inputs in the order of the bundle."""
    outputs = load_manifest(write_affine(tmp_path)).outputs
    code = tmp_path / "source.py"
    code.write_text(
        "def one(x): return x[:, :3]\n"
        "def many(x): return (x[:, :3],)\n"
        "def some(x): return {'y': x[:, :3]}\n"
        "def two(x): return x, x\n"
        "def other(x): return {'z': x}\n"
        "def bad(x): raise RuntimeError('no')\n"
    )
    for name in ("one", "many", "some"):
        reference = load_reference(f"{code}:{name}", outputs)
        assert reference({"x": rows(2)})["y"].shape == (2, 3)
    for name, message in (("two", "returned 2 results"), ("other", "'z'"), ("bad", "no")):
        with pytest.raises(ExportProblem, match=message):
            load_reference(f"{code}:{name}", outputs)({"x": rows(1)})
    with pytest.raises(ExportProblem, match="missing"):
        load_reference(f"{code}:missing", outputs)


def test_nothing_compared_is_nothing_passed() -> None:
    """A report without samples does not pass."""
    assert not CompareReport("m", "r", Tolerances(), ()).passed
    assert CompareReport("m", "r", Tolerances(), (SampleResult("a"),)).passed


def test_a_torchscript_file_is_a_reference(tmp_path: Path) -> None:
    """It runs on the CPU, without gradients, whatever its dtypes."""
    torch = pytest.importorskip("torch")
    from hloserve.export.torchscript.loading import quiet

    outputs = load_manifest(write_affine(tmp_path)).outputs

    class First(torch.nn.Module):  # type: ignore[name-defined]  # torch is imported late
        def forward(self, x: Any) -> Any:
            return x[:, :3].to(torch.bfloat16)

    with quiet():
        torch.jit.save(torch.jit.trace(First(), torch.ones(2, 4)), tmp_path / "model.pt")
    result = load_reference(str(tmp_path / "model.pt"), outputs)({"x": rows(2)})

    assert str(result["y"].dtype) == "bfloat16"
    assert result["y"].astype(np.float32).tolist() == rows(2)[:, :3].tolist()
    with pytest.raises(ExportProblem, match=r"missing\.pt"):
        load_reference(str(tmp_path / "missing.pt"), outputs)
