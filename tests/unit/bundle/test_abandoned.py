"""What writers that died leave behind is removed by the next one, and nothing else is."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hloserve.bundle.disk import Disk
from hloserve.bundle.placing import place_bundle
from hloserve.core.errors import BundleProblem

FILES = {"manifest.yaml": (b"text",), "weights.safetensors": (b"bytes",)}

_WRITER = """
import sys
from pathlib import Path
from hloserve.bundle.disk import Disk
from hloserve.bundle.placing import place_bundle
def wait(step):
    if step == "write weights.safetensors":
        print("there", flush=True)
        sys.stdin.read()
files = {"manifest.yaml": (b"text",), "weights.safetensors": (b"bytes",)}
place_bundle(Path(sys.argv[1]), files, overwrite=False, disk=Disk(wait))
"""


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _start_writer(target: Path) -> subprocess.Popen[bytes]:
    """A process in the middle of writing."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    assert b"there\n" == writer.stdout.readline()
    return writer


def test_killed_writers_are_cleaned_up_after_and_others_left_alone(tmp_path: Path) -> None:
    """Whose process is gone is removed by the next writer; who still writes finishes."""
    with _start_writer(tmp_path / "dead") as dead, _start_writer(tmp_path / "alive") as alive:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert 2 == len(_names(tmp_path))

        place_bundle(tmp_path / "m", FILES, overwrite=False)

        (left,) = [name for name in _names(tmp_path) if name.startswith(".")]
        assert left.startswith(".alive.tmp-")
        alive.communicate(timeout=30)
    assert ["alive", "m"] == _names(tmp_path)


def test_names_of_others_stay(tmp_path: Path) -> None:
    """Only directories with a name that writers give are theirs."""
    names = [".m.tmp-mine", ".m.tmp-1-0123456", "m.tmp-1-01234567", ".git"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".file.tmp-1-01234567").touch()

    place_bundle(tmp_path / "m", FILES, overwrite=False)

    assert {*names, "m", ".file.tmp-1-01234567"} == set(_names(tmp_path))


def test_what_may_be_the_bundle_stays(tmp_path: Path) -> None:
    """A crash between two renames leaves the old and the new bundle under temporary names."""
    names = [".m.tmp-1-01234567", ".m.tmp-1-01234567-old"]
    for name in names:
        (tmp_path / name).mkdir()

    place_bundle(tmp_path / "n", FILES, overwrite=False)

    assert {*names, "n"} == set(_names(tmp_path))


def test_without_locks_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks, what nobody touched for an hour is abandoned."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for name, age_s in ((".a.tmp-1-01234567", 7200), (".b.tmp-1-01234567", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").touch()
        for path in (tmp_path / name / "weights", tmp_path / name):
            then = path.stat().st_mtime - age_s
            os.utime(path, (then, then))

    place_bundle(tmp_path / "m", FILES, overwrite=False)

    assert [".b.tmp-1-01234567", "m"] == _names(tmp_path)


def test_directory_that_is_taken_for_abandoned_is_made_again(tmp_path: Path) -> None:
    """Between making and locking it another writer may remove it."""
    taken: list[Path] = []

    class Thief(Disk):
        def make_directory(self, path: Path, *, parents: bool = True) -> None:
            super().make_directory(path, parents=parents)
            if path.name.startswith(".m") and len(taken) < 2:
                taken.append(path)
                path.rmdir()

    place_bundle(tmp_path / "m", FILES, overwrite=False, disk=Thief())

    assert 2 == len(taken)
    assert ["m"] == _names(tmp_path)


def test_endless_thief_is_an_error(tmp_path: Path) -> None:
    """It is told after some tries."""

    class Thief(Disk):
        def make_directory(self, path: Path, *, parents: bool = True) -> None:
            super().make_directory(path, parents=parents)
            if path.name.startswith("."):
                path.rmdir()

    with pytest.raises(BundleProblem, match="again and again"):
        place_bundle(tmp_path / "m", FILES, overwrite=False, disk=Thief())


def test_a_check_that_refuses_leaves_nothing(tmp_path: Path) -> None:
    """It sees the whole bundle under a temporary name, and what it raises is let through."""
    seen: list[str] = []

    def refuse(directory: Path) -> None:
        seen.extend(_names(directory))
        raise KeyError("no")

    with pytest.raises(KeyError):
        place_bundle(tmp_path / "m", FILES, overwrite=False, check=refuse)
    assert sorted(FILES) == seen
    assert [] == _names(tmp_path)
