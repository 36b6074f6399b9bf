"""Strings in bundles: for clients only, and stamped so that older readers refuse them."""

from pathlib import Path

import pytest

from hloserve.bundle import IOSpec, load_manifest, write_bundle
from hloserve.bundle.manifest import parse_manifest
from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BundleProblem, ManifestProblem

TEXT = IOSpec("text", "bytes", (1, 2), batch_axis=0)
HOOK = {"model.py": "from hloserve import register_model\n"}


def write(root: Path, client_inputs: list[IOSpec] | None = None, **more: object) -> Path:
    """A bundle of one number in and one out, whose clients send what is given."""
    arguments = {"files": HOOK, **more}
    return write_bundle(
        root / "m",
        "m",
        [IOSpec("x", "f32", (1, 2), batch_axis=0)],
        [IOSpec("y", "f32", (1, 2), batch_axis=0)],
        {1: "module {}"},
        {},
        client_inputs=client_inputs,
        **arguments,  # type: ignore[arg-type]  # what a test overrides
    )


def test_strings_of_clients_are_written_and_read(tmp_path: Path) -> None:
    """The token `bytes` comes back as the dtype of a client-facing tensor."""
    manifest = load_manifest(write(tmp_path, [TEXT]))

    assert BYTES is manifest.inputs[0].dtype
    assert (None, 2) == manifest.inputs[0].shape


def test_only_bundles_with_strings_need_the_newer_format(tmp_path: Path) -> None:
    """A reader of 2.1 refuses the version instead of misreading the dtype."""
    assert "2.2" == load_manifest(write(tmp_path / "a", [TEXT])).format_version
    assert "2.1" == load_manifest(write(tmp_path / "b")).format_version


def test_strings_in_an_older_manifest_are_refused(tmp_path: Path) -> None:
    """A manifest that says 2.1 may not hold what 2.1 has no word for."""
    text = (write(tmp_path, [TEXT]) / "manifest.yaml").read_text().replace('"2.2"', '"2.1"')

    with pytest.raises(ManifestProblem, match=r"dtype bytes needs format_version '2\.2'"):
        parse_manifest(text, name="m", has_hook_file=True, source="m")


@pytest.mark.parametrize("section", ["executable_inputs", "executable_outputs"])
def test_programs_take_and_return_no_strings(tmp_path: Path, section: str) -> None:
    """An executable tensor of strings is a finding that says where strings go."""
    number = [IOSpec("x", "f32", (1, 2), batch_axis=0)]
    inputs = [TEXT] if section == "executable_inputs" else number
    outputs = [TEXT] if section == "executable_outputs" else number

    with pytest.raises(BundleProblem, match=f"{section}: 'text' has dtype bytes.*client_inputs"):
        write_bundle(tmp_path / "m", "m", inputs, outputs, {1: "module {}"}, {})


def test_legacy_bundles_have_no_strings(tmp_path: Path) -> None:
    """What is for servers that know format 2.0 only cannot hold what they lack."""
    with pytest.raises(BundleProblem, match="dtype bytes"):
        write(tmp_path, [TEXT], layout="legacy")
    assert not list(tmp_path.iterdir())
