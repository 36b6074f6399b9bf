"""What a look at the repositories sees."""

from dataclasses import replace
from pathlib import Path

from hloserve.models.repository_look import look_at


def _bundle(root: Path, name: str) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "manifest.yaml").write_text("kind: model")
    return directory


def test_bundles_are_directories_with_a_manifest(tmp_path: Path) -> None:
    """Files, empty directories, hidden ones and unfinished ones are none."""
    _bundle(tmp_path, "good")
    _bundle(tmp_path, ".hidden")
    _bundle(tmp_path, ".good.tmp-1-ab")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")

    assert {"good"} == look_at([tmp_path]).bundles.keys()


def test_only_included_names_are_seen(tmp_path: Path) -> None:
    """Others are not even looked at."""
    _bundle(tmp_path, "a")
    _bundle(tmp_path, "b")

    assert {"b"} == look_at([tmp_path], include=["b", "c"]).bundles.keys()


def test_linked_bundles_and_repositories_are_seen(tmp_path: Path) -> None:
    """The name is that of the link."""
    real = _bundle(tmp_path / "store", "v3")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "production").symlink_to(real)
    (tmp_path / "linked").symlink_to(tmp_path / "models")

    look = look_at([tmp_path / "linked"])

    assert [tmp_path / "linked" / "production"] == [f.path for f in look.bundles.values()]


def test_repository_that_cannot_be_read_keeps_its_models(tmp_path: Path) -> None:
    """An unmounted disk is no removal; the others are looked at."""
    gone, there = tmp_path / "gone", tmp_path / "there"
    _bundle(gone, "a")
    _bundle(there, "b")
    before = look_at([gone, there])
    gone.rename(tmp_path / "elsewhere")

    after = look_at([gone, there], before=before)

    assert before.bundles == after.bundles
    assert {gone: "No such file or directory"} == after.unreadable
    assert {"b"} == look_at([gone, there]).bundles.keys()


def test_empty_directory_on_another_file_system_is_an_unmounted_disk(tmp_path: Path) -> None:
    """Its models stay; one on the same file system is empty because somebody emptied it."""
    _bundle(tmp_path, "a")
    seen = look_at([tmp_path])
    (tmp_path / "a").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    elsewhere = replace(seen, devices={tmp_path: -1})

    assert {"a"} == look_at([tmp_path], before=elsewhere).bundles.keys()
    assert "unmounted?" in look_at([tmp_path], before=elsewhere).unreadable[tmp_path]
    assert not look_at([tmp_path], before=seen).bundles


def test_bundle_that_cannot_be_looked_into_is_there(tmp_path: Path) -> None:
    """Only what is not there is gone; a link in a circle stands for whatever else may be wrong."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.yaml").symlink_to("manifest.yaml")
    before = look_at([tmp_path])
    (tmp_path / "b").symlink_to("b")

    assert {"a"} == before.bundles.keys()
    assert {"a"} == look_at([tmp_path], before=before).bundles.keys()


def test_second_bundle_of_a_name_is_a_problem_of_the_first(tmp_path: Path) -> None:
    """The one that was there first keeps the name, and both places are told."""
    first = _bundle(tmp_path / "x", "m")
    before = look_at([tmp_path / "w", tmp_path / "x"])

    second = _bundle(tmp_path / "w", "m")

    (found,) = look_at([tmp_path / "w", tmp_path / "x"], before=before).bundles.values()
    assert first == found.path
    assert f"another bundle has the same name: {second}; rename one of them" == found.problem
