"""The door to the disk."""

import os
from pathlib import Path

import pytest

from hloserve.bundle.files import open_regular, read_bounded


def test_regular_file_is_read_up_to_the_bound(tmp_path: Path) -> None:
    """The bound itself is allowed; links are followed."""
    (tmp_path / "f").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("f")

    assert b"1234" == read_bounded(tmp_path / "link", 4)
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_bounded(tmp_path / "f", 3)


def test_large_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    """Its size is enough; here a hole that would be more than memory."""
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 42)

    with pytest.raises(OSError, match="larger than 2147483648 bytes"):
        read_bounded(tmp_path / "f", 1 << 31)


def test_file_that_has_no_size_is_read_whole() -> None:
    """What the kernel makes up on reading says that it is empty."""
    status = read_bounded(Path("/proc/self/status"), 1 << 20)

    assert b"\nThreads:" in status
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bounded(Path("/proc/self/status"), 4)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A device or a fifo is refused without blocking."""
    os.mkfifo(tmp_path / "fifo")

    for path, reason in (
        (tmp_path / "fifo", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "a directory"),
    ):
        with pytest.raises(OSError, match=reason):
            open_regular(path)
