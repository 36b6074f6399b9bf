"""What a loader does not mind, and an author should know."""

from pathlib import Path

import pytest
from support import bundle_examples as examples
from support.bundle_examples import make_bundle, parse

from hloserve.bundle.layout import find_programs
from hloserve.bundle.structure import check_files, check_name, check_version
from hloserve.bundle.weights import WeightsFile


@pytest.mark.parametrize("name", [".hidden", "m.tmp-7"])
def test_name_that_servers_skip_is_told(tmp_path: Path, name: str) -> None:
    """A bundle under such a name is never served."""
    (finding,) = check_name(tmp_path / name)

    assert ("warning", ".") == (finding.severity, finding.place)
    assert "servers skip it" in finding.text
    assert [] == check_name(tmp_path / "m")


def test_files_of_a_directory_that_is_gone_are_not_checked(tmp_path: Path) -> None:
    """The manifest's own error says it."""
    assert [] == check_files(tmp_path / "m", parse(examples.AFFINE), ())


def test_hooks_of_another_server_beside_ours_are_told(tmp_path: Path) -> None:
    """A bundle for both servers holds both files; nothing of ours reads the other."""
    bundle = make_bundle(tmp_path / "m", examples.AFFINE, None, "model.mlir")
    (bundle / "model.jl").write_text("")
    (bundle / "model.py").write_text("")
    (bundle / "private.safetensors").write_bytes(b"")  # may be the hook's
    manifest = parse(examples.AFFINE)

    (finding,) = check_files(bundle, manifest, find_programs(bundle, manifest))

    assert ("model.jl", "warning") == (finding.place, finding.severity)


@pytest.mark.parametrize(
    ("version", "weights", "count"),
    [
        ("2.0", examples.legacy_weights(), 0),
        ("2.0", examples.xla_weights(), 1),
        ("2", examples.xla_weights(), 1),
        ("2.1", examples.legacy_weights(), 0),
        ("2.1", examples.xla_weights(), 0),
        ("2.2", examples.xla_weights(), 1),
    ],
)
def test_version_is_neither_too_old_nor_too_new(
    tmp_path: Path, version: str, weights: bytes, count: int
) -> None:
    """A migrated copy beside the legacy file is the one mixture that is meant."""
    text = examples.AFFINE.replace('"2.1"', f'"{version}"')
    bundle = make_bundle(tmp_path / "m", text, weights)

    with WeightsFile.open(bundle / "weights.safetensors") as file:
        assert count == len(check_version(parse(text), file))
        migrated = parse(text + "weights_file: weights.T.safetensors\n")
        assert (version == "2.2") == len(check_version(migrated, file))
