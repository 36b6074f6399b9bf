"""Loading, drawn on a terminal.

What lives here: what is said of a load: what is compiled and how long it may still take. What does
not: the line itself (`hloserve.core.terminal_line`), and the log, which tells the same to machines
(`server.startup`). Called on the start-up thread only.
"""

import sys
from typing import TextIO

from typing_extensions import override

from hloserve.core.terminal_line import TerminalLine
from hloserve.models.progress import NoProgress, Progress

__all__ = ["TerminalProgress", "build_progress"]


def build_progress(*, is_shown: bool) -> Progress:
    """A drawing on standard error, or nothing."""
    return TerminalProgress(sys.stderr) if is_shown else NoProgress()


class TerminalProgress(Progress):
    """Draws on one line; finished bundles scroll away above it.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._line = TerminalLine(stream)
        self._programs = 0
        self._compiled = 0
        self._spent_s = 0.0
        self._name = ""

    @override
    def bundle_started(self, name: str) -> None:
        self._name, self._programs, self._compiled, self._spent_s = name, 0, 0, 0.0
        self._draw("reading")

    @override
    def programs_found(self, name: str, programs: int) -> None:
        self._programs = programs
        self._draw("compiling")

    @override
    def program_compiled(self, name: str, program: str, seconds: float) -> None:
        self._compiled += 1
        self._spent_s += seconds
        left_s = self._spent_s / self._compiled * (self._programs - self._compiled)
        self._draw(f"compiled {program}, about {left_s:.0f} s left")

    @override
    def bundle_warning(self, name: str, warning: str) -> None:
        self._line.say(f"  ! {name}: {warning}")

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        self._line.say(f"  ✓ {name}  {self._programs} programs in {seconds:.1f} s")

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        self._line.say(f"  ✗ {name}: {reason}")

    def _draw(self, what: str) -> None:
        self._line.draw(self._compiled, self._programs or None, f"{self._name}: {what}")
