"""Changes to the disk, each one a step with a name."""

import os
import stat
from pathlib import Path

import pytest

from hloserve.bundle.disk import DISK, Disk


def test_new_file_is_written_once(tmp_path: Path) -> None:
    """Chunks are joined; an existing file is not touched."""
    DISK.write_new(tmp_path / "f", [b"12", memoryview(b"34"), b""])
    DISK.sync_directory(tmp_path)

    assert b"1234" == (tmp_path / "f").read_bytes()
    with pytest.raises(FileExistsError):
        DISK.write_new(tmp_path / "f", [b"x"])


def test_chunk_of_any_elements_is_written_as_bytes(tmp_path: Path) -> None:
    """A view of words is longer in bytes than in elements."""
    DISK.write_new(tmp_path / "f", [memoryview(bytearray(8)).cast("I")])

    assert bytes(8) == (tmp_path / "f").read_bytes()


def test_file_takes_mode_and_owner_of_another(tmp_path: Path) -> None:
    """What stands in for a file is readable by the same users."""
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "a").chmod(0o640)

    DISK.write_new(tmp_path / "b", [b"x"], like=os.stat(tmp_path / "a"))

    made = os.stat(tmp_path / "b")
    assert 0o640 == stat.S_IMODE(made.st_mode)
    assert (os.getuid(), os.getgid()) == (made.st_uid, made.st_gid)


def test_every_change_is_announced_before_it_is_made(tmp_path: Path) -> None:
    """Whoever listens can stop it."""
    steps: list[str] = []
    disk = Disk(steps.append)

    disk.make_directory(tmp_path)  # there is one: nothing changes
    disk.make_directory(tmp_path / "d" / "e")
    disk.write_new(tmp_path / "a", [b"1", b"", b"2"])
    disk.link(tmp_path / "a", tmp_path / "b")
    disk.rename(tmp_path / "b", tmp_path / "c")
    disk.rename_directory(tmp_path / "d", tmp_path / "f")
    disk.sync_directory(tmp_path)
    disk.remove(tmp_path / "c")
    disk.remove(tmp_path / "nothing")
    disk.remove_tree(tmp_path / "f")

    assert ["a"] == os.listdir(tmp_path)
    assert [
        *("make directory e", "create a", "write a", "write a", "sync a", "link a as b"),
        *("rename b to c", "rename d to f", f"sync directory {tmp_path.name}"),
        *("remove c", "remove nothing", "remove f"),
    ] == steps


def test_second_name_of_a_link_is_the_link(tmp_path: Path) -> None:
    """What it leads to gets no new name."""
    (tmp_path / "link").symlink_to("nowhere")

    DISK.link(tmp_path / "link", tmp_path / "other")

    assert "nowhere" == os.readlink(tmp_path / "other")
