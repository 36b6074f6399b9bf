"""Files that the security of a server depends on."""

import logging
import os
from pathlib import Path

import pytest

from hloserve.core.errors import ConfigProblem
from hloserve.server.secret_files import WatchedFiles, read_secret


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that its owner alone can read."""
    file = tmp_path / "secret"
    file.write_bytes(b"content")
    file.chmod(0o600)
    return file


def test_a_private_file_is_read_in_silence(secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Readable by the owner, or by its group too."""
    for mode in (0o600, 0o640, 0o400):
        secret.chmod(mode)
        assert b"content" == read_secret(str(secret), "access.tokens_file")

    assert not caplog.records


@pytest.mark.parametrize(("is_secret", "warnings"), [(True, 1), (False, 0)])
def test_a_secret_that_everybody_can_read_is_warned_of(
    secret: Path, caplog: pytest.LogCaptureFixture, is_secret: bool, warnings: int
) -> None:
    """It is served nevertheless: mounted secrets of containers are often like this."""
    secret.chmod(0o644)

    assert b"content" == read_secret(str(secret), "tls.key", is_secret=is_secret)

    assert ["secret_is_readable"] * warnings == [r.getMessage() for r in caplog.records]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_file_that_everybody_can_change_is_refused(secret: Path) -> None:
    """Anybody could let himself in."""
    secret.chmod(0o602)

    with pytest.raises(ConfigProblem, match="may be changed by every user"):
        read_secret(str(secret), "access.tokens_file")


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe that nobody writes to does not hold the server up."""
    os.mkfifo(tmp_path / "pipe", 0o600)

    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigProblem, match="is not a file"):
            read_secret(str(path), "access.tokens_file")


def test_a_missing_file_is_told_with_its_setting(tmp_path: Path) -> None:
    """The reason is the system's."""
    with pytest.raises(ConfigProblem, match=r"tls\.key: No such file"):
        read_secret(str(tmp_path / "none"), "tls.key")


def test_a_huge_file_is_refused(secret: Path) -> None:
    """It is not read to its end."""
    with secret.open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(ConfigProblem, match="is larger than 1048576 bytes"):
        read_secret(str(secret), "access.tokens_file")


def test_a_change_counts_once_it_is_over(secret: Path) -> None:
    """A file that is being written is not read; each change is told once."""
    watched = WatchedFiles((str(secret), ""))
    assert not watched.has_changed()

    secret.write_bytes(b"half")
    assert not watched.has_changed()
    secret.write_bytes(b"half and half")
    assert not watched.has_changed()

    assert watched.has_changed()
    assert not watched.has_changed()


def test_a_replaced_or_removed_file_has_changed(secret: Path, tmp_path: Path) -> None:
    """Renaming over it, as mounted secrets do, is a change, and so is removal."""
    watched = WatchedFiles((str(secret),))
    other = tmp_path / "other"
    other.write_bytes(b"content")
    os.utime(other, ns=(secret.stat().st_atime_ns, secret.stat().st_mtime_ns))

    other.replace(secret)
    assert [False, True] == [watched.has_changed() for _ in range(2)]

    secret.unlink()
    assert [False, True, False] == [watched.has_changed() for _ in range(3)]
