"""Freed memory is used again, without a fault for each of its pages."""

import subprocess
import sys

import pytest

from hloserve.server.allocator import keep_freed_memory

_CYCLES = 20
_PIECES, _PIECE_BYTES = 3, 16 * 2**20

# Results of three programs, made and freed in turn: as large as what the default takes for garbage.
_SCRIPT = f"""
import resource, sys, threading
import numpy as np
from hloserve.server.allocator import keep_freed_memory

if "kept" in sys.argv:
    assert keep_freed_memory()

def cycle():
    pieces = [np.ones({_PIECE_BYTES}, np.uint8) for _ in range({_PIECES})]

def run():
    for _ in range(3):
        cycle()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({_CYCLES}):
        cycle()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=run)
if "thread" in sys.argv:
    thread.start()
    thread.join()
else:
    run()
"""


def _faults(*arguments: str) -> int:
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("where", ["main", "thread"])
def test_large_results_that_were_freed_are_used_again(where: str) -> None:
    """A page is a fault once, and not again for every result."""
    by_default, kept = _faults(where), _faults(where, "kept")

    assert by_default > 10 * kept


@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_TRIM_THRESHOLD_": "1"}, {"GLIBC_TUNABLES": "a=b:glibc.malloc.hugetlb=1"}],
    ids=["variable", "tunable"],
)
def test_settings_of_an_operator_are_left_alone(environment: dict[str, str]) -> None:
    """Whoever sets the allocator in the environment has the last word."""
    assert not keep_freed_memory(environment)
