"""One process at a time changes a bundle."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hloserve.bundle.locking import LOCK_FILE, bundle_lock


def test_lock_is_made_where_servers_keep_their_files(tmp_path: Path) -> None:
    """And stays there: to remove it would let two processes lock two files."""
    with bundle_lock(tmp_path) as lock:
        assert lock.is_held

    assert [LOCK_FILE] == os.listdir(tmp_path / ".cache")


def test_second_one_waits_until_the_first_is_done(tmp_path: Path) -> None:
    """Threads of one process, too; it is told that it waits."""
    waits, order = threading.Event(), []

    def second() -> None:
        with bundle_lock(tmp_path, on_wait=waits.set):
            order.append("second")

    with bundle_lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
        order.append("first")
    thread.join(10)

    assert ["first", "second"] == order


def test_dead_process_holds_nothing(tmp_path: Path) -> None:
    """The kernel frees the lock of a process that was killed."""
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from hloserve.bundle.locking import bundle_lock\n"
        "with bundle_lock(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert -9 == killed.returncode

    with bundle_lock(tmp_path, on_wait=lambda: pytest.fail("somebody holds it")) as lock:
        assert lock.is_held


def test_deleted_cache_is_noticed(tmp_path: Path) -> None:
    """Then others may hold a lock of the same name."""
    with bundle_lock(tmp_path) as lock:
        shutil.rmtree(tmp_path / ".cache")

        assert not lock.is_held
        with bundle_lock(tmp_path) as other:
            assert other.is_held
            assert not lock.is_held


def test_lock_that_was_deleted_while_waiting_is_taken_again(tmp_path: Path) -> None:
    """The file that was waited for is nobody's any more."""
    waits, held = threading.Event(), []

    def second() -> None:
        with bundle_lock(tmp_path, on_wait=waits.set) as lock:
            held.append(lock.is_held)

    with bundle_lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
        shutil.rmtree(tmp_path / ".cache")
    thread.join(10)

    assert [True] == held


class _Interrupted(Exception):
    """Whatever ends a wait."""


def test_wait_that_is_interrupted_leaves_no_file_open(tmp_path: Path) -> None:
    """The descriptor is closed, whatever ends the wait."""

    def interrupt() -> None:
        raise _Interrupted

    with (
        bundle_lock(tmp_path),
        pytest.raises(_Interrupted),
        bundle_lock(tmp_path, on_wait=interrupt),
    ):
        pytest.fail("it is held by another one")


def test_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """What `.cache` holds may come from whoever made the bundle."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / LOCK_FILE).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match=LOCK_FILE), bundle_lock(tmp_path):
        pytest.fail("it is a link")

    assert [".cache"] == os.listdir(tmp_path)
