"""Reading a program in another process first, because StableHLO's reader may not survive it.

What lives here: `ProgramProbe`, what its child process does, and `ProbedReader`, which asks it.
What does not: reading itself (`hloserve.engine.programs.mlir`). A damaged artifact can end the
process that reads it, within jaxlib: 2 of 1,200 bundles with a few wrong bytes did. Neither a check
nor a server that serves other models must end so.
"""

import hashlib
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from typing_extensions import override

from hloserve.bundle.files import read_bounded
from hloserve.core.errors import ProgramProblem
from hloserve.engine.backend import Backend, Program, ProgramReader
from hloserve.engine.programs.executable_cache import ExecutableCache
from hloserve.engine.programs.signature import TensorType

__all__ = ["MAX_PROGRAM_BYTES", "ProbedReader", "ProgramProbe"]

_LENGTH = struct.Struct("<Q")
_SURVIVED = b"."
MAX_PROGRAM_BYTES = 2 << 30
"""Far beyond any program whose weights are where they belong; compilers take no more anyway."""


class ProgramProbe:
    """A child process that reads programs, one after the other.

    Use it as a context manager, or close it; it can be used again afterwards. The child starts
    with the first program, or with `start`, since it takes half a second.

    Threading: any thread; one program at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the child, so that it is there when it is needed. Idempotent."""
        with self._lock:
            self._started()

    def try_to_read(self, program: Path) -> str:
        """Read a file in the child; one that cannot be read at all is left to the caller.

        Returns:
            Why it must not be read in this process; empty when it may be, right or wrong.
        """
        try:
            return self.try_artifact(read_bounded(program, MAX_PROGRAM_BYTES))
        except OSError:
            return ""

    def try_artifact(self, artifact: bytes) -> str:
        """Read the content of a program file in the child; likewise."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None, "it is a pipe"
            assert child.stdout is not None, "it is a pipe"
            try:
                child.stdin.write(_LENGTH.pack(len(artifact)))
                child.stdin.write(artifact)
                child.stdin.flush()
                answer = child.stdout.read(1)
            except OSError:  # it ended
                answer = b""
            if answer == _SURVIVED:
                return ""
            status = child.wait()
            self._end()
        return (
            f"reading it ends the process ({_name_of(status)}), also a server's: the file is"
            " damaged; copy or export it again"
        )

    def close(self) -> None:
        """End the child. Idempotent."""
        with self._lock:
            self._end()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(OSError):  # it ended in the middle of a program
                child.communicate()
            child.wait()

    def __enter__(self) -> "ProgramProbe":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ProbedReader(ProgramReader):
    """Reads a program here only if a child process survived that.

    Args:
        backend: reads.
        probe: tries first.
        cache: remembers what was survived, so that a warm start tries nothing; None remembers
            nothing.

    Threading: any thread.
    """

    def __init__(
        self, backend: Backend, probe: ProgramProbe, cache: ExecutableCache | None
    ) -> None:
        self._backend = backend
        self._probe = probe
        self._cache = cache

    @override
    def read_program(self, artifact: bytes, source: str) -> Program:
        key = f"readable-{hashlib.sha256(artifact).hexdigest()}"
        if self._cache is None or self._cache.read(key) is None:
            why_not = self._probe.try_artifact(artifact)
            if why_not:
                raise ProgramProblem(source, why_not)
            if self._cache is not None:
                self._cache.write(key, b"")
        return self._backend.read_program(artifact, source)

    @override
    def specialise(self, program: Program, inputs: Sequence[TensorType]) -> Program:
        return self._backend.specialise(program, inputs)


def _name_of(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def _serve() -> None:
    """The child: a length and a program in, a byte out for each that was survived."""
    from hloserve.engine.programs.mlir import read_program

    programs, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := programs.read(_LENGTH.size)) == _LENGTH.size:
        artifact = programs.read(*_LENGTH.unpack(head))
        with suppress(ProgramProblem):  # whoever asked reads it again, and tells
            read_program(artifact, "program")
        answers.write(_SURVIVED)
        answers.flush()


if __name__ == "__main__":
    _serve()
