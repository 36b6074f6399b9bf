"""Compiled programs on disk: found again, never trusted, never in the way."""

import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from hloserve.core.errors import BackendFailed
from hloserve.engine.backend import Executable, Program
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.programs.executable_cache import ExecutableCache, compile_cached

KEY = "0123abcd"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="hloserve")


@pytest.fixture
def cache(tmp_path: Path) -> ExecutableCache:
    """An empty cache with room for some kilobytes."""
    (tmp_path / "bundle").mkdir()
    return ExecutableCache(tmp_path / "bundle" / ".cache", 4096)


def _entry(cache: ExecutableCache) -> Path:
    (only,) = cache.directory.iterdir()
    return only


def _program(backend: FakeBackend, rows: int = 1) -> Program:
    kind = f"tensor<{rows}xf32>"
    text = {"function": "identity", "inputs": [kind], "outputs": [kind]}
    return backend.read_program(json.dumps(text).encode(), "model.mlir")


def test_what_was_written_is_read(cache: ExecutableCache) -> None:
    """Under its key, and under no other."""
    cache.write(KEY, b"machine code")

    assert b"machine code" == cache.read(KEY)
    assert cache.read("another") is None


def test_empty_cache_is_a_miss(cache: ExecutableCache) -> None:
    """The directory need not exist, and is not made by reading."""
    assert cache.read(KEY) is None
    assert not cache.directory.exists()


@pytest.mark.parametrize("at", [0, 8, 15, 16, 47, 48, 55, 59])
def test_damage_anywhere_is_a_miss_and_is_removed(cache: ExecutableCache, at: int) -> None:
    """No byte of a damaged entry reaches the compiler's library."""
    cache.write(KEY, b"machine code")
    content = bytearray(_entry(cache).read_bytes())
    assert 60 == len(content)
    content[at] ^= 1
    _entry(cache).write_bytes(content)

    assert cache.read(KEY) is None
    assert not list(cache.directory.iterdir())


@pytest.mark.parametrize("length", [0, 1, 47, 48, 59])
def test_entry_that_was_cut_short_is_a_miss(cache: ExecutableCache, length: int) -> None:
    """Whatever a crash of the machine left of it."""
    cache.write(KEY, b"machine code")
    os.truncate(_entry(cache), length)

    assert cache.read(KEY) is None


def test_entry_of_another_key_is_a_miss(cache: ExecutableCache) -> None:
    """An entry that was renamed or copied is of another program."""
    cache.write(KEY, b"machine code")
    _entry(cache).rename(cache.directory / "ffff.executable")

    assert cache.read("ffff") is None


@pytest.mark.parametrize("kind", ["directory", "fifo", "link to nowhere", "unreadable"])
def test_strange_entry_is_a_miss(cache: ExecutableCache, kind: str) -> None:
    """Nothing blocks, nothing raises."""
    cache.directory.mkdir(parents=True)
    path = cache.directory / f"{KEY}.executable"
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link to nowhere":
            path.symlink_to("nowhere")
        case _:
            path.write_bytes(b"x")
            path.chmod(0)

    assert cache.read(KEY) is None


def test_least_recently_used_entries_make_room(cache: ExecutableCache) -> None:
    """A read counts as use; the newest entry always stays."""
    for number, key in enumerate(["a", "b", "c"]):
        cache.write(key, bytes(1000))
        os.utime(cache.directory / f"{key}.executable", ns=(number, number))
    cache.read("a")

    cache.write("d", bytes(2000))

    assert [True, False, False, True] == [cache.read(key) is not None for key in "abcd"]


def test_entry_larger_than_the_cache_is_not_kept(cache: ExecutableCache) -> None:
    """It would push out everything and be next."""
    cache.write("a", bytes(100))

    cache.write("b", bytes(5000))

    assert cache.read("a") is not None
    assert cache.read("b") is None


def test_files_of_writers_that_died_are_removed_in_time(cache: ExecutableCache) -> None:
    """After an hour; one that is being written is left alone, and so are strangers' files."""
    cache.directory.mkdir(parents=True)
    for name in (f"x.tmp-{os.getpid()}-1", "x.tmp-1-2", "notes.txt"):
        (cache.directory / name).write_text("")
    os.utime(cache.directory / "x.tmp-1-2", (1, 1))
    os.utime(cache.directory / "notes.txt", (1, 1))

    cache.write(KEY, b"")

    left = {path.name for path in cache.directory.iterdir()}
    assert {f"{KEY}.executable", f"x.tmp-{os.getpid()}-1", "notes.txt"} == left


def test_cache_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    """A read-only mount, a full disk, a file in the way: compiling goes on without."""
    (tmp_path / "file").write_text("")
    blocked = ExecutableCache(tmp_path / "file" / ".cache", 4096)
    backend = FakeBackend()

    made = compile_cached(backend, _program(backend), "m", blocked)

    assert not made.is_restored
    assert ["m"] == backend.compiled


def test_bundle_that_was_removed_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    """An empty directory of its name would stand in the way of the next bundle."""
    cache = ExecutableCache(tmp_path / "gone" / ".cache", 4096)

    cache.write(KEY, b"machine code")

    assert not (tmp_path / "gone").exists()


def test_program_that_is_compiled_already_is_kept_too(cache: ExecutableCache) -> None:
    """A reload finds it in the old model; the next start finds it in the new bundle's cache."""
    backend = FakeBackend()
    first = compile_cached(backend, _program(backend), "m", None)

    again = compile_cached(backend, _program(backend), "m", cache, {first.key: first.executable})

    assert again.executable is first.executable
    assert ["m"] == backend.compiled
    assert cache.read(first.key) is not None


def test_warm_start_compiles_nothing(cache: ExecutableCache) -> None:
    """The first load compiles, the second restores; another program is compiled."""
    backend = FakeBackend()

    first = compile_cached(backend, _program(backend), "m", cache)
    second = compile_cached(backend, _program(backend), "m", cache)
    other = compile_cached(backend, _program(backend, rows=2), "m", cache)

    assert [False, True, False] == [first.is_restored, second.is_restored, other.is_restored]
    assert ["m", "m"] == backend.compiled
    assert first.executable == second.executable


def test_without_a_cache_everything_is_compiled(tmp_path: Path) -> None:
    """The operator's choice."""
    backend = FakeBackend()
    for _ in range(2):
        assert not compile_cached(backend, _program(backend), "m", None).is_restored


def test_entry_that_the_device_refuses_is_compiled_and_replaced(cache: ExecutableCache) -> None:
    """Intact and still not loadable, as after a change of the library that the key missed."""

    class Choosy(FakeBackend):
        """Restores what is of this version only."""

        refusals = 0

        @override
        def restore(self, payload: bytes, program: Program, model: str) -> Executable:
            if payload == b"old":
                self.refusals += 1
                raise BackendFailed("restoring", model, "of another version")
            return super().restore(payload, program, model)

    backend = Choosy()
    cache.write(backend.cache_key(_program(backend)), b"old")

    assert [False, True] == [
        compile_cached(backend, _program(backend), "m", cache).is_restored for _ in range(2)
    ]
    assert 1 == backend.refusals


def test_device_that_cannot_serialise_is_served_without(cache: ExecutableCache) -> None:
    """Nothing is kept and nothing fails."""

    class Mute(FakeBackend):
        """Cannot write its executables down."""

        @override
        def serialise(self, executable: Executable) -> bytes | None:
            return None

    backend = Mute()

    assert [False, False] == [
        compile_cached(backend, _program(backend), "m", cache).is_restored for _ in range(2)
    ]


def test_many_writers_share_a_directory(cache: ExecutableCache) -> None:
    """Workers of one node write and read at once; whatever is read is whole."""
    problems: list[object] = []

    def work(keys: Sequence[str]) -> None:
        for key in keys:
            cache.write(key, key.encode() * 20)
            payload = cache.read(key)
            if payload not in (None, key.encode() * 20):
                problems.append(payload)

    keys = [f"{number:04x}" for number in range(60)]
    threads = [threading.Thread(target=work, args=(keys,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert sum(path.stat().st_size for path in cache.directory.iterdir()) <= cache.limit_bytes
