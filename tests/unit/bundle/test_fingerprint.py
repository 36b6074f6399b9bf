"""What counts as a change of a bundle."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hloserve.bundle.fingerprint import take_fingerprint


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A directory with a manifest, a program and an asset in a directory of its own."""
    directory = tmp_path / "m"
    (directory / "words").mkdir(parents=True)
    for name in ("manifest.yaml", "model.v1.b8.mlir", "words/vocab.txt"):
        (directory / name).write_text("text")
    return directory


def _rewrite(path: Path) -> None:
    path.write_text("more text")


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _forbid(path: Path) -> None:
    path.chmod(0o600)


def _swap(path: Path) -> None:
    """Another file of the same size and time."""
    times = path.stat()
    other = path.with_name("other")
    other.write_text("tex2")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("name", ["manifest.yaml", "model.v1.b8.mlir", "words/vocab.txt"])
@pytest.mark.parametrize("change", [_rewrite, _touch, _swap, _forbid, os.unlink, os.mkfifo])
def test_every_file_counts(bundle: Path, name: str, change: Callable[[Path], None]) -> None:
    """Its size, time, inode and mode, its disappearance, and a stranger beside it."""
    before = take_fingerprint(bundle)

    change(bundle / name if change is not os.mkfifo else bundle / (name + ".fifo"))

    assert before != take_fingerprint(bundle)


@pytest.mark.parametrize(
    "name", [".cache/executable", "__pycache__/model.pyc", "weights.tmp-12-ab", "words/x.tmp-1"]
)
def test_what_servers_write_does_not_count(bundle: Path, name: str) -> None:
    """Caches and unfinished files come and go without a reload."""
    before = take_fingerprint(bundle)

    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("derived")

    assert before == take_fingerprint(bundle)


def test_rename_keeps_the_fingerprint(bundle: Path) -> None:
    """So a renamed bundle is known again."""
    before = take_fingerprint(bundle)

    renamed = bundle.rename(bundle.with_name("n"))

    assert before == take_fingerprint(renamed)
    assert take_fingerprint(bundle) is None


def test_links_are_followed(bundle: Path, tmp_path: Path) -> None:
    """A bundle behind a link is that bundle, and a file that is swapped behind a link a change."""
    link = tmp_path / "link"
    link.symlink_to(bundle)
    assert take_fingerprint(bundle) == take_fingerprint(link)
    target = tmp_path / "elsewhere"
    target.write_text("1")
    (bundle / "linked").symlink_to(target)
    before = take_fingerprint(bundle)

    target.write_text("22")

    assert before != take_fingerprint(bundle)


def test_links_in_circles_and_into_nowhere_end(bundle: Path) -> None:
    """They are part of the state, and nothing is walked twice."""
    (bundle / "self").symlink_to(bundle)
    (bundle / "words" / "up").symlink_to(bundle)
    (bundle / "nowhere").symlink_to("missing")

    found = take_fingerprint(bundle)

    assert found is not None
    assert [("nowhere", -1), ("manifest.yaml", 4)] == [
        (name, size) for name, size, *_ in found.files if name in ("nowhere", "manifest.yaml")
    ][::-1]
    assert len(found.files) == 4
