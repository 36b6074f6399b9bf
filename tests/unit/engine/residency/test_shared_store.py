"""One copy of weights for all processes of a node."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from support.engine_residency import numbers, write_weights

from hloserve.bundle.weights import WeightsFile
from hloserve.core.errors import WeightsProblem
from hloserve.engine.backend import ALIGNMENT_BYTES
from hloserve.engine.residency.host_weights import FileIdentity, HostCopy, WeightsSource
from hloserve.engine.residency.shared_store import SharedStore

PEER = """
import sys
from pathlib import Path
from hloserve.bundle.weights import WeightsFile
from hloserve.engine.residency.host_weights import WeightsSource
from hloserve.engine.residency.shared_store import SharedStore

weights = WeightsFile.open(sys.argv[2])
if sys.argv[3] == "half":
    # Stop in the middle of a fill, with the file half written.
    whole = weights.read_pieces
    def read_pieces(tensor, buffer):
        for piece in whole(tensor, buffer):
            yield piece
            print("half", flush=True)
            sys.stdin.read(1)
    weights.read_pieces = read_pieces
copy = WeightsSource("m", weights, SharedStore(directory=Path(sys.argv[1]))).read()
print(float(copy.arrays[0][0, 0]), flush=True)
sys.stdin.read(1)
copy.release(is_unused=True)
"""


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """A directory in the place of `/dev/shm`."""
    directory = tmp_path / "shm"
    directory.mkdir()
    return directory


def _weights(tmp_path: Path, value: float = 3, name: str = "w.safetensors") -> Path:
    return write_weights(tmp_path / name, numbers(value), np.array([value], np.int8), numbers(5, 2))


def _acquire(shm: Path, path: Path, model: str = "m", mode: int = 0o660) -> HostCopy:
    with WeightsFile.open(path) as weights:
        return WeightsSource(model, weights, SharedStore(mode, shm)).read()


def _names(shm: Path) -> list[str]:
    return sorted(os.listdir(shm))


@contextmanager
def _peer(shm: Path, path: Path, how: str = "whole") -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the weights until it is told to end."""
    command = [sys.executable, "-c", PEER, str(shm), str(path), how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.close()
    assert process.wait(60) == 0


@contextmanager
def _stranger() -> Iterator[None]:
    """Another user for a while, where this one is root and may open everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_weights_are_those_of_the_file_and_aligned(shm: Path, tmp_path: Path) -> None:
    """Arrays lie in one file, read-only, each at a multiple of 64 bytes."""
    copy = _acquire(shm, _weights(tmp_path))

    expected = [numbers(3), np.array([3], np.int8), numbers(5, 2)]
    for want, have in zip(expected, copy.arrays, strict=True):
        np.testing.assert_array_equal(want, have)
        assert have.ctypes.data % ALIGNMENT_BYTES == 0
        assert not have.flags.writeable
    assert 1 == len(_names(shm))
    copy.release(is_unused=True)
    assert [] == _names(shm)


def test_legacy_weights_are_shared_in_program_order(shm: Path, tmp_path: Path) -> None:
    """They are permuted once, by whoever fills the file."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_weights(tmp_path / "w", array, layout="legacy")
    copies = [_acquire(shm, path) for _ in range(2)]

    for copy in copies:
        np.testing.assert_array_equal(array, copy.arrays[0])
        copy.release(is_unused=True)


def test_second_acquisition_joins_and_the_last_out_removes(shm: Path, tmp_path: Path) -> None:
    """Two models of the same file in one process have one copy."""
    path = _weights(tmp_path)
    first = _acquire(shm, path)
    before = os.stat(shm / _names(shm)[0])

    second = _acquire(shm, path)

    assert before.st_mtime_ns == os.stat(shm / _names(shm)[0]).st_mtime_ns, "it was filled again"
    first.release(is_unused=True)
    assert 1 == len(_names(shm))
    second.release(is_unused=True)
    assert [] == _names(shm)


@pytest.mark.parametrize("is_unused", [True, False])
def test_memory_goes_at_once_when_nobody_reads_it_any_more(
    tmp_path: Path, *, is_unused: bool
) -> None:
    """Whoever still refers to an array, as XLA does, does not keep it; a reader does."""
    with TemporaryDirectory(dir="/dev/shm") as shm:
        copy = _acquire(Path(shm), _weights(tmp_path))
        array = copy.arrays[0]

        copy.release(is_unused=is_unused)

        assert [] == os.listdir(shm)
        assert (0 if is_unused else 3) == array[0, 0]


def test_memory_that_another_one_shares_stays_when_one_needs_it_no_more(
    shm: Path, tmp_path: Path
) -> None:
    """Each has a lock of its own, also within one process."""
    path = _weights(tmp_path)
    one, other = _acquire(shm, path), _acquire(shm, path)

    one.release(is_unused=True)

    assert 3 == other.arrays[0][0, 0]
    other.release(is_unused=True)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_permissions_are_those_of_the_setting(shm: Path, tmp_path: Path, mode: int) -> None:
    """The umask of whoever creates the file has no say."""
    copy = _acquire(shm, _weights(tmp_path), mode=mode)

    assert mode == os.stat(shm / _names(shm)[0]).st_mode & 0o777
    copy.release(is_unused=True)


def test_changed_file_is_another_copy_and_the_old_one_is_swept(shm: Path, tmp_path: Path) -> None:
    """What nobody uses any more goes when a newer version of the model comes."""
    old = _acquire(shm, _weights(tmp_path, 3))
    (abandoned,) = _names(shm)
    os.link(shm / abandoned, tmp_path / "kept")
    old.release(is_unused=True)
    os.link(tmp_path / "kept", shm / abandoned)  # as after a crash
    used = _acquire(shm, _weights(tmp_path, 4), "other")

    new = _acquire(shm, _weights(tmp_path, 5))

    assert 5.0 == new.arrays[0][0, 0]
    assert abandoned not in _names(shm)
    assert 2 == len(_names(shm))
    for copy in (used, new):
        copy.release(is_unused=True)


def test_other_models_and_strange_files_are_left_alone(shm: Path, tmp_path: Path) -> None:
    """Only files of this naming are looked at."""
    names = ["hlow-m", "hlow-m-short", "other", "hlow-m2-" + "0" * 32]
    for name in names:
        (shm / name).write_bytes(b"x")

    copy = _acquire(shm, _weights(tmp_path))
    copy.release(is_unused=True)

    assert sorted(names) == _names(shm)


def test_second_process_joins_without_filling(shm: Path, tmp_path: Path) -> None:
    """The copy outlives either process, and goes with the last."""
    path = _weights(tmp_path)
    copy = _acquire(shm, path)
    filled = os.stat(shm / _names(shm)[0]).st_mtime_ns

    with _peer(shm, path) as peer:
        assert "3.0" == _line(peer)
        copy.release(is_unused=True)
        assert 1 == len(_names(shm))
        assert filled == os.stat(shm / _names(shm)[0]).st_mtime_ns
        _end(peer)

    assert [] == _names(shm)


def test_copy_of_a_killed_process_is_used_by_the_next(shm: Path, tmp_path: Path) -> None:
    """SIGKILL leaves the file; whoever comes finds it complete."""
    path = _weights(tmp_path)
    with _peer(shm, path) as peer:
        _line(peer)
        peer.send_signal(signal.SIGKILL)
        peer.wait(60)
    filled = os.stat(shm / _names(shm)[0]).st_mtime_ns

    copy = _acquire(shm, path)

    assert filled == os.stat(shm / _names(shm)[0]).st_mtime_ns
    assert 3.0 == copy.arrays[0][0, 0]
    copy.release(is_unused=True)
    assert [] == _names(shm)


def test_half_filled_copy_is_filled_by_the_next(shm: Path, tmp_path: Path) -> None:
    """A process that dies while it fills the file leaves one that nobody takes for complete."""
    path = _weights(tmp_path)
    with _peer(shm, path, "half") as peer:
        assert "half" == _line(peer)
        peer.send_signal(signal.SIGKILL)
        peer.wait(60)
    assert 1 == len(_names(shm))

    copy = _acquire(shm, path)

    np.testing.assert_array_equal(numbers(5, 2), copy.arrays[2])
    copy.release(is_unused=True)
    assert [] == _names(shm)


def test_filler_is_waited_for(shm: Path, tmp_path: Path) -> None:
    """Who comes while another process fills the file gets it when it is complete."""
    path = _weights(tmp_path)
    with _peer(shm, path, "half") as peer:
        assert "half" == _line(peer)
        pauses = []

        def pause(_: float) -> None:
            pauses.append(1)
            if len(pauses) == 1:
                assert peer.stdin is not None
                peer.stdin.write("xxx")  # one for each tensor: it goes on to the end
                peer.stdin.flush()
                peer.stdout.readline()  # type: ignore[union-attr]
                peer.stdout.readline()  # type: ignore[union-attr]
                assert "3.0" == _line(peer)

        with WeightsFile.open(path) as weights:
            copy = WeightsSource("m", weights, SharedStore(0o660, shm, pause)).read()
        assert pauses
        assert 3.0 == copy.arrays[0][0, 0]
        copy.release(is_unused=True)
        _end(peer)


def test_file_that_was_removed_while_it_was_locked_is_made_again(shm: Path, tmp_path: Path) -> None:
    """A lock counts only while the name means the locked file."""
    path = _weights(tmp_path)
    first = _acquire(shm, path)
    place = shm / _names(shm)[0]
    place.unlink()

    second = _acquire(shm, path)

    first.release(is_unused=True)
    assert place.exists(), "the file of the second was removed by the first"
    second.release(is_unused=True)


def test_full_shared_memory_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Memory is reserved before it is written: an error at load, and no signal later."""
    full = Path("/dev/shm") / f"hlow-test-{os.getpid()}"
    full.mkdir()
    try:
        free = os.statvfs(full).f_bavail * os.statvfs(full).f_frsize
        path = tmp_path / "w"
        write_weights(path, numbers(1))
        with WeightsFile.open(path) as weights:
            huge = weights.arguments[0].__class__(
                "w", weights.arguments[0].dtype, (1,), 0, 2 * free
            )
            weights.arguments = (huge,)
            store = SharedStore(directory=full)
            with pytest.raises(WeightsProblem, match=r"has no room .*--shm-size.*shared_host"):
                store.acquire("m", weights, "token")
        assert [] == _names(full)
    finally:
        full.rmdir()


def test_room_is_made_of_what_dead_processes_left(shm: Path, tmp_path: Path) -> None:
    """Closing the store sweeps what nobody uses, of whichever model."""
    held = _acquire(shm, _weights(tmp_path), "used")
    (used,) = _names(shm)
    (shm / ("hlow-gone-" + "a" * 32)).write_bytes(b"left")

    SharedStore(directory=shm).close()

    assert [used] == _names(shm)
    held.release(is_unused=True)


def test_files_of_strangers_are_not_trusted(shm: Path, tmp_path: Path) -> None:
    """Whoever can place a file there must not decide what a model answers."""
    path = _weights(tmp_path)
    copy = _acquire(shm, path)
    (name,) = _names(shm)
    content = (shm / name).read_bytes()
    copy.release(is_unused=True)
    (shm / name).write_bytes(content)
    try:
        os.chown(shm / name, 12345, 12345)
    except PermissionError:
        pytest.skip("giving files to others needs root")

    with pytest.raises(WeightsProblem, match="belongs to user 12345"):
        _acquire(shm, path)

    copy = _acquire(shm, path, mode=0o666)
    copy.release(is_unused=True)


def test_links_are_not_followed(shm: Path, tmp_path: Path) -> None:
    """A link in the place of the file is an error."""
    path = _weights(tmp_path)
    copy = _acquire(shm, path)
    (name,) = _names(shm)
    copy.release(is_unused=True)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (shm / name).symlink_to(victim)

    with pytest.raises(WeightsProblem, match=r"shared memory .*hlow-m-"):
        _acquire(shm, path)

    assert b"precious" == victim.read_bytes()


def test_copy_that_this_user_may_not_open_is_an_error_that_says_what_to_do(
    shm: Path, tmp_path: Path
) -> None:
    """The file is named, and who may share it."""
    path = _weights(tmp_path)
    copy = _acquire(shm, path, mode=0o600)
    (name,) = _names(shm)
    os.chmod(shm / name, 0)
    with WeightsFile.open(path) as weights, _stranger():
        source = WeightsSource("m", weights, SharedStore(directory=shm))
        with pytest.raises(WeightsProblem, match=rf"{name}: Permission denied; .* of one group"):
            source.read()
    copy.release(is_unused=True)


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    """There are systems without `/dev/shm`."""
    with pytest.raises(WeightsProblem, match="No such file"):
        _acquire(tmp_path / "nowhere", _weights(tmp_path))


def test_locks_are_held_for_life_and_let_go(shm: Path, tmp_path: Path) -> None:
    """Nobody can have the file for itself while a copy lives."""
    copy = _acquire(shm, _weights(tmp_path))
    fd = os.open(shm / _names(shm)[0], os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    copy.release(is_unused=True)

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_names_tell_contents_apart(shm: Path, tmp_path: Path) -> None:
    """Shape, name, type and the file's identity are in the digest; the same file has one name."""
    base = np.zeros((2, 4), np.float32)
    files = {
        "shape": write_weights(tmp_path / "shape", base.reshape(4, 2)),
        "type": write_weights(tmp_path / "type", base.view(np.int32)),
        "same": write_weights(tmp_path / "same", base),
        "other": write_weights(tmp_path / "other", base),
    }
    copies = [_acquire(shm, path) for path in files.values()]
    again = _acquire(shm, files["same"])

    assert 4 == len(_names(shm))
    for copy in (*copies, again):
        copy.release(is_unused=True)


def test_identity_of_a_file_tells_writing_from_what_is_harmless(tmp_path: Path) -> None:
    """Permissions, links and removal change no bytes; writing does, whatever time it claims."""
    path = _weights(tmp_path)
    fd = os.open(path, os.O_RDWR)
    try:
        before = FileIdentity.of(fd)
        os.chmod(path, 0o600)
        os.link(path, tmp_path / "link")
        assert "" == before.why_written(FileIdentity.of(fd))
        path.unlink()
        assert "" == before.why_written(FileIdentity.of(fd))

        now = FileIdentity.of(fd)
        stat = os.fstat(fd)
        os.pwrite(fd, b"\0", stat.st_size - 1)
        os.utime(fd, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert "status" in now.why_written(FileIdentity.of(fd))
        os.pwrite(fd, b"\0", stat.st_size - 1)
        assert "it was written" == now.why_written(FileIdentity.of(fd))
        os.pwrite(fd, b"\0", stat.st_size)
        assert "bytes" in now.why_written(FileIdentity.of(fd))
    finally:
        os.close(fd)
