"""What needs which format version, and the one feature that does: an open batch axis."""

from pathlib import Path

import pytest
from support import bundle_examples as examples
from support.bundle_examples import make_bundle, model, parse

from hloserve.bundle.layout import find_programs
from hloserve.bundle.versions import DYNAMIC_BATCH, check_features, needed_version
from hloserve.core.errors import ManifestProblem, ProgramProblem

X = '{name: x, dtype: f32, shape: "an", dims: {a: 3}}'


def findings_of(text: str, *, has_hook_file: bool = False) -> tuple[str, ...]:
    """What is wrong with a manifest."""
    with pytest.raises(ManifestProblem) as caught:
        parse(text, has_hook_file=has_hook_file)
    return caught.value.findings


@pytest.mark.parametrize("oldest", ["2.0", "2.1"])
def test_oldest_version_that_has_every_feature_is_written(oldest: str) -> None:
    """The more readers the better."""
    assert oldest == needed_version([], oldest)
    assert "2.2" == needed_version([DYNAMIC_BATCH], oldest)


def test_unreadable_version_has_one_finding_only() -> None:
    """Whether a feature is allowed cannot be said without a version."""
    assert [] == check_features("", [DYNAMIC_BATCH])


DYNAMIC = "batching: {dynamic: true, compiled_batch_sizes: [1, 8]}\n"


def _dynamic(text: str, version: str = '"2.2"') -> str:
    return text.replace('"2.1"', version)


def test_dynamic_batch_is_read() -> None:
    """One program serves every batch size; the manifest lists those to compile."""
    manifest = parse(_dynamic(model(f"[{X}]", f"[{X}]", DYNAMIC)))

    assert (True, (1, 8)) == (manifest.is_dynamic, manifest.compiled_batch_sizes)
    assert () == manifest.warnings


@pytest.mark.parametrize("version", ['"2.1"', "2.0", "2"])
def test_dynamic_batch_needs_the_version_that_has_it(version: str) -> None:
    """A reader of an older version skips the key and would serve something else."""
    (finding,) = findings_of(_dynamic(model(f"[{X}]", f"[{X}]", DYNAMIC), version))

    assert "batching.dynamic needs format_version '2.2', got '2" in finding
    assert "write '2.2'" in finding


@pytest.mark.parametrize("version", ['"2.2"', '"2.1"'])
def test_dynamic_false_is_the_default(version: str) -> None:
    """Saying that a bundle is not dynamic needs no new reader."""
    more = "batching: {dynamic: false, compiled_batch_sizes: [1, 8]}"

    assert not parse(_dynamic(model(f"[{X}]", f"[{X}]", more), version)).is_dynamic


@pytest.mark.parametrize(
    ("batching", "word"),
    [
        ("{dynamic: true}", "compiled_batch_sizes is empty"),
        ("{dynamic: true, compiled_batch_sizes: []}", "compiled_batch_sizes is empty"),
        ("{dynamic: true, compiled_batch_sizes: [0]}", "must be an integer above 0"),
        ("{dynamic: 1, compiled_batch_sizes: [1]}", "dynamic must be true or false, got 1 (int)"),
        ("{dynamic: any, compiled_batch_sizes: [1]}", "got 'any' (str)"),
    ],
)
def test_faults_of_dynamic_batch(batching: str, word: str) -> None:
    """The key is a boolean, and a dynamic bundle says which sizes to compile."""
    (finding,) = findings_of(_dynamic(model(f"[{X}]", f"[{X}]", f"batching: {batching}")))

    assert word in finding


def test_dynamic_batch_needs_a_batch_axis() -> None:
    """Without the axis there is nothing to specialise."""
    unbatched = '{name: y, dtype: f32, shape: "a", dims: {a: 3}}'

    findings = findings_of(_dynamic(model(f"[{unbatched}]", "[]", DYNAMIC)))

    assert any("dynamic is true, but no executable input has a batch axis" in f for f in findings)


def test_meta_model_is_not_dynamic() -> None:
    """A meta model has no program."""
    findings = findings_of(_dynamic(examples.META) + DYNAMIC, has_hook_file=True)

    assert any("batching.dynamic is only for kind model" in finding for finding in findings)


def test_dynamic_bundle_has_one_program(tmp_path: Path) -> None:
    """Programs for single sizes beside it could only contradict it."""
    manifest = _dynamic(model(f"[{X}]", f"[{X}]", DYNAMIC))
    files = ("model.mlir", "model.b8.mlir", "model.b1.mlir")
    bundle = make_bundle(tmp_path / "m", manifest, None, *files)

    with pytest.raises(ProgramProblem) as caught:
        find_programs(bundle, parse(manifest))

    (finding,) = caught.value.findings
    assert "so model.mlir is the only program, but there are 'model.b1.mlir'" in finding


def test_dynamic_bundle_without_program_is_refused(tmp_path: Path) -> None:
    """The one file has to be there."""
    manifest = _dynamic(model(f"[{X}]", f"[{X}]", DYNAMIC))

    with pytest.raises(ProgramProblem, match=r"no program: neither model\.mlir"):
        find_programs(make_bundle(tmp_path / "m", manifest), parse(manifest))
