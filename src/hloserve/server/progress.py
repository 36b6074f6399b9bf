"""Loading, drawn on a terminal.

What lives here: one line that says what is loaded, what is compiled and how long it may still take.
What does not: the log, which tells the same to machines (`server.startup`). Called on the start-up
thread only.
"""

import sys
from typing import TextIO

from typing_extensions import override

from hloserve.models.progress import NoProgress, Progress

__all__ = ["TerminalProgress", "build_progress"]

_CLEAR_LINE = "\r\x1b[2K"
_BAR_COLUMNS = 24


def build_progress(*, is_shown: bool) -> Progress:
    """A drawing on standard error, or nothing."""
    return TerminalProgress(sys.stderr) if is_shown else NoProgress()


class TerminalProgress(Progress):
    """Draws on one line; finished bundles scroll away above it.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
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
        self._say(f"  ! {name}: {warning}")

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        self._say(f"  ✓ {name}  {self._programs} programs in {seconds:.1f} s")

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        self._say(f"  ✗ {name}: {reason}")

    def _say(self, line: str) -> None:
        self._stream.write(f"{_CLEAR_LINE}{_printable(line)}\n")
        self._stream.flush()

    def _draw(self, what: str) -> None:
        share = self._compiled / self._programs if self._programs else 0.0
        full = round(share * _BAR_COLUMNS)
        bar = "█" * full + "░" * (_BAR_COLUMNS - full)
        text = f"  {bar} {self._compiled}/{self._programs or '?'} {self._name}: {what}"
        self._stream.write(f"{_CLEAR_LINE}{_printable(text)}")
        self._stream.flush()


def _printable(text: str) -> str:
    """Text of a bundle's author must not move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
