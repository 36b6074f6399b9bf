"""Changelog fragments."""

from pathlib import Path

import pytest

from tools import changelog


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an empty changelog and two fragments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog.MARK}\n\n## 0.1.0\n")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("no fragment")
    (tmp_path / "changes" / "12.fixed.md").write_text("Fixed `x`.\n")
    (tmp_path / "changes" / "3-cli.added.md").write_text("Added `y`.\n")
    return tmp_path


def test_release_moves_the_fragments_into_the_changelog(project: Path) -> None:
    """A release has a section with its changes by kind, and no fragment is left."""
    assert 0 == changelog.main(["0.2.0"])

    text = (project / "CHANGELOG.md").read_text()
    parts = ("## 0.2.0", "### Added", "- Added `y`.", "### Fixed", "- Fixed `x`.", "## 0.1.0")
    places = [text.index(part) for part in (changelog.MARK, *parts)]
    assert sorted(places) == places
    assert ["README.md"] == [file.name for file in (project / "changes").iterdir()]


@pytest.mark.parametrize(
    "name", ["fixed.md", "x.fixed.md", "12.broken.md", "12.md", "12.fixed.txt"]
)
def test_fragment_with_a_wrong_name_is_reported(project: Path, name: str) -> None:
    """A fragment is named by its issue and its kind, so that none is forgotten."""
    (project / "changes" / name).write_text("Fixed `z`.\n")

    assert 1 == changelog.main(["--check"])


def test_fragment_is_a_sentence(project: Path) -> None:
    """A fragment without an end is reported; good ones are counted."""
    assert 0 == changelog.main(["--check"])
    (project / "changes" / "13.fixed.md").write_text("fixes")
    assert 1 == changelog.main(["--check"])


@pytest.mark.usefixtures("project")
def test_version_must_be_one() -> None:
    """Arguments that are no version change nothing."""
    assert 2 == changelog.main([])
    assert 2 == changelog.main(["next"])
