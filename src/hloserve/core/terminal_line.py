"""One line of a terminal that is drawn over, with finished lines that scroll away above it.

What lives here: the drawing. What does not: what is said (`hloserve.server.progress`,
`hloserve.cli.export_progress`). One thread at a time per line.
"""

from typing import TextIO

__all__ = ["TerminalLine"]

_CLEAR_LINE = "\r\x1b[2K"
_BAR_COLUMNS = 24


class TerminalLine:
    """The last line of a terminal.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, done: int, total: int | None, text: str) -> None:
        """Draw a bar with its count, and what is being done; None when the total is not known."""
        full = round(done / total * _BAR_COLUMNS) if total else 0
        bar = "█" * full + "░" * (_BAR_COLUMNS - full)
        self._write(f"  {bar} {done}/{total or '?'} {text}", end="")

    def say(self, line: str) -> None:
        """Leave a line for good, in place of the bar."""
        self._write(line, end="\n")

    def clear(self) -> None:
        """Take the bar away."""
        self._write("", end="")

    def _write(self, text: str, end: str) -> None:
        self._stream.write(f"{_CLEAR_LINE}{_printable(text)}{end}")
        self._stream.flush()


def _printable(text: str) -> str:
    """Text of a bundle's author must not move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
