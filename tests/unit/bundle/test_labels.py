"""Labels of classes: declared by output, read from text files."""

from pathlib import Path

import pytest

from hloserve.bundle import IOSpec, load_manifest, write_bundle
from hloserve.bundle.labels import load_labels
from hloserve.core.errors import BundleProblem, ManifestProblem


def write(root: Path, labels: object, **files: bytes) -> Path:
    """A bundle whose output `y` has classes."""
    return write_bundle(
        root / "m",
        "m",
        [IOSpec("x", "f32", (1, 2), batch_axis=0)],
        [IOSpec("y", "f32", (1, 3), batch_axis=0)],
        {1: "module {}"},
        {},
        labels=labels,  # type: ignore[arg-type]  # tests give wrong ones, too
        files={f"{name}.txt": content for name, content in files.items()},
    )


def test_each_line_is_the_label_of_a_class(tmp_path: Path) -> None:
    """Line ends of both kinds, empty lines in between, and a final newline that adds nothing."""
    bundle = write(tmp_path, {"y": "names.txt"}, names="Katze\n\nBär\r\n".encode())

    labels = load_labels(bundle, load_manifest(bundle))

    assert {"y": (b"Katze", b"", "Bär".encode())} == labels


def test_labels_do_not_raise_the_format_version(tmp_path: Path) -> None:
    """Older readers ignore the key with a warning, and serve the same numbers."""
    bundle = write(tmp_path, {"y": "names.txt"}, names=b"a\nb\nc\n")

    assert "2.1" == load_manifest(bundle).format_version


def test_an_empty_file_has_no_labels(tmp_path: Path) -> None:
    """No line, no label."""
    bundle = write(tmp_path, {"y": "names.txt"}, names=b"")

    assert {"y": ()} == load_labels(bundle, load_manifest(bundle))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"z": "names.txt"}, "there is no output 'z'"),
        ({"y": "../names.txt"}, "inside the bundle"),
        ({"y": 5}, "inside the bundle"),
        ({5: "names.txt"}, "is no name"),
        (["names.txt"], "must be a mapping"),
    ],
)
def test_wrong_declarations_are_findings(tmp_path: Path, labels: object, expected: str) -> None:
    """The key is refused with what is wrong about it."""
    bundle = write(tmp_path, {"y": "names.txt"}, names=b"a")
    lines = (bundle / "manifest.yaml").read_text().splitlines()
    changed = [f"labels: {labels!r}" if line.startswith("labels:") else line for line in lines]
    (bundle / "manifest.yaml").write_text("\n".join(changed))

    with pytest.raises(ManifestProblem, match=expected):
        load_manifest(bundle)


def test_files_that_cannot_be_read_are_findings(tmp_path: Path) -> None:
    """A missing file, or one that is no text, is named with its output."""
    bundle = write(tmp_path, {"y": "names.txt"}, names=b"\xff")
    manifest = load_manifest(bundle)

    with pytest.raises(BundleProblem, match=r"names\.txt: labels of output 'y' are not UTF-8"):
        load_labels(bundle, manifest)
    (bundle / "names.txt").unlink()
    with pytest.raises(BundleProblem, match=r"names\.txt: labels of output 'y' cannot be read"):
        load_labels(bundle, manifest)
