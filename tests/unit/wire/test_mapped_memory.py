"""The handler of SIGBUS: only faults under our copies are survived."""

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import mmap, os, sys
from pathlib import Path
from hloserve.wire.mapped_memory import MappedMemory, MemoryCut

def make(name):
    fd = os.open(Path(sys.argv[1]) / name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8192)
    return fd

ours, foreign = make("ours"), make("foreign")
memory = MappedMemory(ours, 0, 8192)
if "late" in sys.argv[2]:  # somebody else takes the signal, and we take it back
    import faulthandler
    faulthandler.enable()
    MappedMemory(ours, 0, 8192).close()
os.ftruncate(ours, 0)
buffer = mmap.mmap(-1, 8192)
import ctypes
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
for nbytes in (64, 8192):
    try:
        memory.copy_out(0, address, nbytes)
    except MemoryCut:
        print("survived", flush=True)
mapped = mmap.mmap(foreign, 8192)
os.ftruncate(foreign, 0)
print(mapped[0])
"""


@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]], ids=["plain", "faulthandler"])
@pytest.mark.parametrize("order", ["early", "late"])
def test_fault_of_others_ends_the_process_as_without_us(
    tmp_path: object, options: list[str], order: str
) -> None:
    """And not in an endless loop, whoever else handles the signal, before or after us."""
    program = [sys.executable, *options, "-c", _PROGRAM, str(tmp_path), order]

    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)

    assert ("survived\n" * 2, -signal.SIGBUS) == (done.stdout, done.returncode), done.stderr
    is_told = "Fatal Python error: Bus error" in done.stderr
    assert is_told is (bool(options) or order == "late")
