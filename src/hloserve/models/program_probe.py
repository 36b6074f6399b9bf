"""Reading a program in another process first, because StableHLO's reader may not survive it.

What lives here: `ProgramProbe` and what its child process does. What does not: reading itself
(`hloserve.engine.mlir`). A damaged artifact can end the process that reads it, within jaxlib: 2 of
1,200 bundles with a few wrong bytes did. Who checks bundles of others must not end so. One thread;
the child lives until `close`.
"""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["ProgramProbe"]


class ProgramProbe:
    """A child process that reads program files, one after the other.

    Use it as a context manager, or close it. The child starts with the first file.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def try_to_read(self, program: Path) -> str:
        """Read a file in the child.

        Returns:
            Why it must not be read in this process; empty when it may be, right or wrong.
        """
        child = self._child or self._start()
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"
        try:
            child.stdin.write(json.dumps(str(program)) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:  # it ended
            answer = ""
        if answer:
            return ""
        status = child.wait()
        self.close()
        return (
            f"reading it ends the process ({_name_of(status)}), also a server's: the file is"
            " damaged; copy or export it again"
        )

    def _start(self) -> "subprocess.Popen[str]":
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._child

    def close(self) -> None:
        """End the child. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            child.communicate()

    def __enter__(self) -> "ProgramProbe":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _name_of(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def _serve() -> None:
    """The child: a path per line in, a line per file that was survived out."""
    from hloserve.bundle.files import read_bounded
    from hloserve.core.errors import ProgramProblem
    from hloserve.engine.mlir import read_program
    from hloserve.models.program_plan import MAX_PROGRAM_BYTES

    for line in sys.stdin:
        with suppress(OSError, ProgramProblem):  # whoever asked reads it again, and tells
            read_program(read_bounded(Path(json.loads(line)), MAX_PROGRAM_BYTES), "program")
        sys.stdout.write("survived\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
