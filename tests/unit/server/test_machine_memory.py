"""How much memory a process may use."""

import os
from pathlib import Path

import pytest

from hloserve.server.machine_memory import usable_memory_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("own", "file", "expected"),
    [
        ("0::/a/b", "a/b/memory.max", 4096),
        ("0::/a/b", "a/memory.max", 4096),
        ("0::/elsewhere/../..", "memory.max", 4096),
        ("3:cpu:/x\n2:memory:/a", "memory/a/memory.limit_in_bytes", 4096),
        ("2:memory:/outside", "memory/memory.limit_in_bytes", 4096),
        ("3:cpu:/a", "a/memory.max", MACHINE),
    ],
)
def test_the_least_limit_on_the_way_counts(
    tmp_path: Path, own: str, file: str, expected: int
) -> None:
    """Of this process's group or one above; in a container its own group is at the top."""
    limit = tmp_path / "groups" / file
    limit.parent.mkdir(parents=True)
    limit.write_text("4096\n")
    (tmp_path / "own").write_text(own + "\n")

    assert expected == usable_memory_bytes(tmp_path / "groups", tmp_path / "own")


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    """Also where there are no control groups at all."""
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/\n")

    assert MACHINE == usable_memory_bytes(tmp_path, tmp_path / "own")
    assert MACHINE == usable_memory_bytes(tmp_path, tmp_path / "missing")
