"""Putting a finished directory in the place of its name."""

import errno
import os
from pathlib import Path

import pytest

from hloserve.bundle.replacing import (
    Rename,
    RenameRule,
    place_new,
    rename_by_kernel,
    replace_directory,
)


def rename_without_rules(source: Path, target: Path, rule: RenameRule) -> bool:
    """A file system that knows no rules."""
    return False


ways = pytest.mark.parametrize("rename", [rename_by_kernel, rename_without_rules])


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A directory that is ready to be placed."""
    path = tmp_path / ".m.tmp-1"
    path.mkdir()
    (path / "new").write_text("")
    return path


@ways
def test_directory_takes_a_free_name(finished: Path, rename: Rename) -> None:
    """Afterwards there is nothing but the new name."""
    target = finished.with_name("m")

    place_new(finished, target, rename)

    assert ["m"] == os.listdir(target.parent)
    assert ["new"] == os.listdir(target)


@ways
@pytest.mark.parametrize("kind", ["empty", "link", "file"])
def test_taken_name_is_not_given_away(finished: Path, rename: Rename, kind: str) -> None:
    """Even an empty directory, which a plain rename would replace."""
    target = finished.with_name("m")
    if kind == "empty":
        target.mkdir()
    elif kind == "link":
        target.symlink_to("nowhere")
    else:
        target.write_text("")

    with pytest.raises(FileExistsError):
        place_new(finished, target, rename)

    assert ["new"] == os.listdir(finished)


@ways
def test_taken_name_is_replaced(finished: Path, rename: Rename) -> None:
    """The old directory is gone, with all it held."""
    target = finished.with_name("m")
    (target / "deep").mkdir(parents=True)

    replace_directory(finished, target, rename)

    assert ["m"] == os.listdir(target.parent)
    assert ["new"] == os.listdir(target)


@ways
def test_link_is_replaced_and_not_what_it_points_to(finished: Path, rename: Rename) -> None:
    """A repository may be made of links."""
    target, elsewhere = finished.with_name("m"), finished.with_name("elsewhere")
    elsewhere.mkdir()
    target.symlink_to("elsewhere")

    replace_directory(finished, target, rename)

    assert ["elsewhere", "m"] == sorted(os.listdir(target.parent))
    assert not target.is_symlink()


def test_failure_between_two_renames_is_undone(finished: Path) -> None:
    """Without an exchange, the old directory gets its name back."""
    target = finished.with_name("m")
    target.mkdir()
    (target / "old").write_text("")

    def lose(source: Path, target: Path, rule: RenameRule) -> bool:
        source.rename(source.with_name(".lost"))
        return False

    with pytest.raises(FileNotFoundError):
        replace_directory(finished, target, lose)

    assert ["old"] == os.listdir(target)


def test_rule_that_is_not_known_is_no_error(tmp_path: Path) -> None:
    """The kernel says the same of a rule it does not know as of a directory put into itself."""
    (tmp_path / "a").mkdir()

    assert not rename_by_kernel(tmp_path / "a", tmp_path / "a" / "b", RenameRule.MUST_BE_FREE)


def test_kernel_says_why_it_refuses(tmp_path: Path) -> None:
    """Another reason than the rule is an error with its names."""
    with pytest.raises(FileNotFoundError) as caught:
        rename_by_kernel(tmp_path / "a", tmp_path / "b", RenameRule.EXCHANGE)

    assert errno.ENOENT == caught.value.errno
    assert str(tmp_path / "a") == caught.value.filename
