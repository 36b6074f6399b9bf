"""Writing bundles of meta models."""

from pathlib import Path
from typing import Any

import pytest

from hloserve.bundle import IOSpec, load_manifest, write_meta_bundle
from hloserve.core.errors import BundleProblem

RUN = "from hloserve import register_meta_model\nregister_meta_model(run=print)\n"
X = IOSpec("x", "f32", (1, 4), batch_axis=0)
Y = IOSpec("y", "f32", (-1, 6))


def _write(root: Path, name: str = "m", **more: Any) -> Path:
    arguments: dict[str, Any] = {
        "calls": ["a", "b"],
        "client_inputs": [X],
        "client_outputs": [Y],
        "model_py": RUN,
    }
    return write_meta_bundle(root / name, name, **(arguments | more))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Kind, calls, client specs and the hook file; of the oldest format that has them."""
    bundle = _write(tmp_path, description="two stages", files={"words.txt": "a\nb\n"})

    manifest = load_manifest(bundle)

    assert ("meta", "2.0", ("a", "b")) == (manifest.kind, manifest.format_version, manifest.calls)
    assert "two stages" == manifest.description
    assert (["x"], ["y"]) == ([s.name for s in manifest.inputs], [s.name for s in manifest.outputs])
    assert ((None, 4), (None, 6)) == (manifest.inputs[0].shape, manifest.outputs[0].shape)
    assert () == manifest.warnings
    assert RUN == (bundle / "model.py").read_text()
    assert ["manifest.yaml", "model.py", "words.txt"] == sorted(p.name for p in bundle.iterdir())


def test_one_that_calls_none_and_takes_strings(tmp_path: Path) -> None:
    """An empty list stays one; strings need the newer format."""
    bundle = _write(tmp_path, calls=[], client_inputs=[IOSpec("text", "bytes", (1,), batch_axis=0)])

    manifest = load_manifest(bundle)

    assert ("2.2", ()) == (manifest.format_version, manifest.calls)


def test_labels_and_provenance_are_written(tmp_path: Path) -> None:
    """A diff becomes a file, as in any bundle."""
    bundle = _write(
        tmp_path,
        labels={"y": "words.txt"},
        files={"words.txt": "a\n"},
        provenance={"git_commit": "abc", "git_diff": "+1"},
    )

    manifest = load_manifest(bundle)

    assert {"y": "words.txt"} == manifest.labels
    assert {"git_commit": "abc", "git_diff_file": "working_tree.patch"} == manifest.provenance
    assert "+1\n" == (bundle / "working_tree.patch").read_text()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"calls": ["a", "a"]}, "meta.calls repeats 'a'"),
        ({"calls": ["m"]}, "meta.calls holds the bundle itself"),
        ({"client_inputs": []}, "client_inputs is empty; kind meta needs at least one tensor"),
        ({"client_inputs": [X, X]}, "client_inputs"),
        ({"files": {"model.py": ""}}, "'model.py' is a name that the bundle uses itself"),
        ({"name": "a.tmp-b"}, "servers skip such directories"),
    ],
    ids=["repeated", "itself", "empty", "twice", "hook file", "name"],
)
def test_what_no_server_would_load_is_not_written(
    tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    """The finding says why; the directory stays as it was."""
    with pytest.raises(BundleProblem, match=text):
        _write(tmp_path, **more)

    assert [] == list(tmp_path.iterdir())


def test_bundle_is_replaced_only_if_asked_for(tmp_path: Path) -> None:
    """In one step, and not when the check raises."""
    _write(tmp_path)
    with pytest.raises(BundleProblem, match="exists"):
        _write(tmp_path)

    def refuse(directory: Path) -> None:
        raise RuntimeError(directory.name)

    with pytest.raises(RuntimeError):
        _write(tmp_path, calls=["c"], overwrite=True, check=refuse)
    assert ("a", "b") == load_manifest(tmp_path / "m").calls
    _write(tmp_path, calls=["c"], overwrite=True)
    assert ("c",) == load_manifest(tmp_path / "m").calls
