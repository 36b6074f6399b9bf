"""Regions of shared memory: keys, bounds, copies, and objects that shrink."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from support.shared_objects import SharedObject, mappings_of

from hloserve.core.errors import BadRequest, RegionCutShort, RegionNotRegistered
from hloserve.core.requests import Placement
from hloserve.wire.shared_memory import Region, exists, open_region

PAGE = 4096


def _read(region: Region, offset: int, nbytes: int) -> bytes:
    target = np.empty(nbytes, np.uint8)
    region.read(offset, target)
    return target.tobytes()


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 5])
def test_bytes_are_those_of_the_object_from_the_offset_on(slash: str, offset: int) -> None:
    """Reading and writing copy; offsets need not be those of pages."""
    with SharedObject(5 * PAGE) as shared:
        shared.bytes[:] = np.arange(5 * PAGE) % 251
        region = open_region("r", slash + shared.key, offset, 100)
        copy = np.empty(10, np.uint8)

        region.read(90, copy)
        expected = shared.bytes[offset + 90 : offset + 100].tolist()
        assert expected == copy.tolist()

        copy[:] = 7
        assert expected == shared.bytes[offset + 90 : offset + 100].tolist()

        region.write(2, b"abc")
        assert b"abc" == shared.bytes[offset + 2 : offset + 5].tobytes()
        region.close()


@pytest.mark.parametrize("nbytes", [0, 1, 256 * 1024 - 1, 256 * 1024, 9 * 2**20])
def test_copies_of_every_size_arrive(nbytes: int) -> None:
    """Small copies keep the interpreter's lock, large ones do not."""
    with SharedObject(nbytes + 3) as shared:
        region = open_region("r", shared.key, 0, nbytes + 3)
        data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)

        region.write(3, data.data)
        assert data.tobytes() == shared.bytes[3:].tobytes() == _read(region, 3, nbytes)
        region.close()


@pytest.mark.parametrize(
    "key",
    ["", "/", "//", ".", "..", "/..", "../shm/{}", "a/{}", "//{}", "/{}/", "x\0{}", 256 * "a"],
)  # fmt: skip
def test_keys_are_names_of_objects_and_nothing_else(key: str) -> None:
    """No paths, no dots, no more bytes than a name can have."""
    with SharedObject(PAGE) as shared:
        wanted = key.format(shared.key)

        with pytest.raises(BadRequest, match="is no name of an object"):
            open_region("r", wanted, 0, 1)
        assert not exists(wanted)


def test_links_pipes_and_directories_are_no_objects(tmp_path: Path) -> None:
    """A link could lead anywhere, and opening a pipe could wait for ever."""
    (tmp_path / "file").write_bytes(b"x" * 8)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")

    open_region("r", "file", 0, 8, tmp_path).close()
    for name in ("link", "directory", "pipe", "absent"):
        with pytest.raises(BadRequest, match=r"region 'r'|no shared memory"):
            open_region("r", name, 0, 1, tmp_path)
    assert exists("file", tmp_path)
    assert not any(exists(name, tmp_path) for name in ("link", "directory", "pipe", "absent"))


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (0, 0), (0, -1), (-1, 1), (0, PAGE + 1), (PAGE, 1), (PAGE - 1, 2), (2**62, 2**62),
        (2**63 - 1, 1), (1, 2**63 - 1), (2**64 - 1, 1), (1, 2**64 - 1), (2**64 - 1, 2**64 - 1),
    ],
)  # fmt: skip
def test_parts_outside_of_the_object_are_refused(offset: int, byte_size: int) -> None:
    """However large the numbers."""
    with SharedObject(PAGE) as shared, pytest.raises(BadRequest, match="region 'r'"):
        open_region("r", shared.key, offset, byte_size)


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, 65), (64, 1), (65, 0), (-1, 1), (0, -1), (2**62, 2**62), (2**63 - 1, 1), (1, 2**64 - 1)],
)
def test_places_outside_of_the_region_are_refused(offset: int, nbytes: int) -> None:
    """Although the object goes on behind it."""
    with SharedObject(PAGE) as shared:
        region = open_region("r", shared.key, 0, 64)

        with pytest.raises(BadRequest, match=r"input 'x': .* not inside shared memory region 'r'"):
            region.check_bounds("input 'x'", Placement("r", offset, nbytes))
        region.check_bounds("input 'x'", Placement("r", 64, 0))
        region.check_bounds("input 'x'", Placement("r", 0, 64))
        region.close()


@pytest.mark.parametrize("nbytes", [64, 8 * 2**20])
@pytest.mark.parametrize("offset", [0, PAGE + 8])
def test_object_that_shrinks_is_an_error_and_not_the_end(nbytes: int, offset: int) -> None:
    """Reading and writing both fail, at once and from then on."""
    with SharedObject(offset + nbytes) as shared:
        region = open_region("r", shared.key, offset, nbytes)
        shared.resize(0)

        for _ in range(2):
            with pytest.raises(RegionCutShort, match=r"'r' has lost.* shorter .* or .* is full"):
                _read(region, 0, nbytes)
            with pytest.raises(RegionCutShort):
                region.write(0, b"x" * nbytes)
        region.close()
        assert not region.is_mapped


def test_object_that_shrinks_during_the_copies_ends_no_copy_with_a_crash() -> None:
    """Two threads copy in both directions while the object is cut and restored."""
    nbytes = 4 * 2**20
    ends: set[str] = set()
    is_over = threading.Event()

    def copy(is_read: bool) -> None:
        target = np.empty(nbytes, np.uint8)
        for _ in range(60):
            try:
                region = open_region("r", shared.key, 0, nbytes)
            except BadRequest:
                ends.add("too short to open")
                continue
            try:
                region.read(0, target) if is_read else region.write(0, target.data)
                ends.add("copied")
            except RegionCutShort:
                ends.add("cut")
            finally:
                region.close()

    def cut() -> None:
        while not is_over.is_set():
            shared.resize(PAGE)
            shared.resize(nbytes)

    with SharedObject(nbytes) as shared:
        copiers = [threading.Thread(target=copy, args=(is_read,)) for is_read in (True, False)]
        cutter = threading.Thread(target=cut)
        for thread in (*copiers, cutter):
            thread.start()
        for thread in copiers:
            thread.join()
        is_over.set()
        cutter.join()

        assert ends <= {"copied", "cut", "too short to open"}
        assert 0 == mappings_of(shared.key) - 1


def test_closed_region_copies_nothing_and_holds_nothing() -> None:
    """Closing twice does no harm."""
    with SharedObject(PAGE) as shared:
        region = open_region("r", shared.key, 0, PAGE)
        assert 2 == mappings_of(shared.key)

        region.close()
        region.close()

        assert 1 == mappings_of(shared.key)
        with pytest.raises(RegionNotRegistered):
            _read(region, 0, 1)


def test_closing_while_others_read_takes_the_memory_away_after_the_last() -> None:
    """500 regions come and go under readers; none of them crashes or leaks."""
    nbytes = 256 * 1024
    regions: list[Region] = []
    is_over = threading.Event()

    def read() -> None:
        target = np.empty(nbytes, np.uint8)
        while not is_over.is_set():
            for region in regions[-2:]:
                try:
                    region.read(0, target)
                except RegionNotRegistered:
                    continue

    with SharedObject(nbytes) as shared:
        readers = [threading.Thread(target=read) for _ in range(3)]
        for thread in readers:
            thread.start()
        for _ in range(500):
            regions.append(open_region("r", shared.key, 0, nbytes))
            if len(regions) > 1:
                regions[-2].close()
        regions[-1].close()
        is_over.set()
        for thread in readers:
            thread.join()

        assert not any(region.is_mapped for region in regions)
        assert 1 == mappings_of(shared.key)
