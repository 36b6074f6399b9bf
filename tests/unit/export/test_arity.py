"""The arity of bundles: arguments of the programs against inputs and weights."""

import doctest
import shutil
from pathlib import Path

import pytest
from support.models_bundles import affine_text, identity_text, replace_in, write_affine

from hloserve.core.errors import ProgramProblem, WeightsProblem
from hloserve.export import arity
from hloserve.export.arity import assert_bundle_arity, bundle_arity_report, bundle_entry_arity


def test_the_arguments_of_a_program_are_counted(tmp_path: Path) -> None:
    """From a path or from the bytes of the file."""
    path = tmp_path / "model.mlir"
    path.write_text(affine_text(2))

    assert bundle_entry_arity(path) == 3
    assert bundle_entry_arity(str(path)) == 3
    assert bundle_entry_arity(path.read_bytes()) == 3
    assert bundle_entry_arity(identity_text().encode()) == 0


def test_what_is_not_a_program_is_an_error() -> None:
    """One module on its own has no report to put the reason in."""
    with pytest.raises(ProgramProblem, match="not a StableHLO program"):
        bundle_entry_arity(b"\xff\xfe")


def test_a_bundle_in_order_is_servable(tmp_path: Path) -> None:
    """Inputs and weights add up to what each program takes."""
    report = bundle_arity_report(write_affine(tmp_path))

    assert (report.name, report.n_inputs, report.n_weights, report.expected) == ("affine", 1, 2, 3)
    assert [module.module_file for module in report.modules] == ["model.b1.mlir", "model.b4.mlir"]
    assert [module.entry_args for module in report.modules] == [3, 3]
    assert report.servable
    assert assert_bundle_arity(report_of := tmp_path / "affine") == bundle_arity_report(report_of)


def test_a_program_that_takes_another_number_is_told_and_raises_nothing(tmp_path: Path) -> None:
    """A directory of bundles can be looked through."""
    bundle = write_affine(tmp_path)
    (bundle / "model.b4.mlir").write_text(identity_text("4x4xf32", "4x3xf32"))
    report = bundle_arity_report(bundle)

    assert [module.servable for module in report.modules] == [True, False]
    assert report.modules[1].entry_args == 2
    assert not report.servable
    with pytest.raises(ProgramProblem, match=r"model.b4.mlir: the program takes 2 arguments"):
        assert_bundle_arity(bundle)


def test_arguments_of_other_types_are_not_servable(tmp_path: Path) -> None:
    """The number alone is right when two arguments are exchanged."""
    bundle = write_affine(tmp_path, sizes=(1,))
    path = bundle / "model.b1.mlir"
    path.write_text(identity_text("1x3xf32", "1x4xf32", "4x3xf32"))
    report = bundle_arity_report(bundle)

    assert report.modules[0].entry_args == report.expected
    assert not report.servable
    assert "input 'x' (argument 0): shape" in report.modules[0].why[0]


def test_an_unreadable_program_is_part_of_the_report(tmp_path: Path) -> None:
    """What is damaged has no number, and a reason."""
    bundle = write_affine(tmp_path)
    (bundle / "model.b4.mlir").write_bytes(b"ML\xefR damaged")
    report = bundle_arity_report(bundle)

    assert report.modules[1].entry_args is None
    assert "model.b4.mlir" in report.modules[1].why[0]


def test_missing_weights_and_missing_programs_are_errors(tmp_path: Path) -> None:
    """There is no number to compare."""
    bundle = write_affine(tmp_path)
    without = shutil.copytree(bundle, tmp_path / "copies" / "affine")
    (without / "weights.safetensors").unlink()
    for program in bundle.glob("*.mlir"):
        program.unlink()

    with pytest.raises(WeightsProblem, match="missing"):
        bundle_arity_report(without)
    with pytest.raises(ProgramProblem, match="no program"):
        bundle_arity_report(bundle)


def test_the_weights_file_of_the_manifest_and_its_argument_order_count(tmp_path: Path) -> None:
    """A tensor that is no argument is not counted, wherever the file is."""
    bundle = write_affine(tmp_path)
    weights = bundle / "weights.safetensors"
    content = weights.read_bytes()
    both, one = b'"[\\"w\\",\\"b\\"]"', b'"[\\"w\\"]"'
    assert both in content
    weights.unlink()
    (bundle / "weights.T.safetensors").write_bytes(content.replace(both, one.ljust(len(both))))
    replace_in(
        bundle / "manifest.yaml", "batching:", "weights_file: weights.T.safetensors\nbatching:"
    )
    report = bundle_arity_report(bundle)

    assert report.n_weights == 1
    assert not report.servable


def test_an_open_program_is_compared_where_it_is_fixed(tmp_path: Path) -> None:
    """A batch axis of any size fits any."""
    bundle = write_affine(tmp_path, sizes=(1,))
    (bundle / "model.b1.mlir").rename(bundle / "model.mlir")
    (bundle / "model.mlir").write_text(affine_text("?"))

    assert bundle_arity_report(bundle).servable


def test_a_meta_model_has_nothing_that_could_disagree(tmp_path: Path) -> None:
    """It is a function over other models."""
    bundle = tmp_path / "both"
    bundle.mkdir()
    (bundle / "manifest.yaml").write_text(
        'format_version: "2.1"\nkind: meta\nmeta: {calls: [a]}\n'
        "client_inputs: [{name: x, dtype: f32, shape: a, dims: {a: 3}}]\n"
        "client_outputs: [{name: y, dtype: f32, shape: a, dims: {a: 3}}]\n"
    )
    (bundle / "model.py").write_text("")

    assert assert_bundle_arity(bundle).servable


def test_examples_of_the_docstrings_are_true() -> None:
    """What a docstring shows is what happens."""
    result = doctest.testmod(arity)

    assert result.attempted > 0
    assert result.failed == 0
