"""How far an export is: a bar on a terminal, plain lines elsewhere.

What lives here: what is said. What does not: the line of the terminal
(`hloserve.core.terminal_line`). Written to standard error, so that standard output holds the report
alone. Main thread.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import click
from typing_extensions import override

from hloserve.cli.printing import safe
from hloserve.core.terminal_line import TerminalLine
from hloserve.export.lists.run import Outcome, RunListener

if TYPE_CHECKING:
    from hloserve.export.lists.run import Verdict

__all__ = ["PlainProgress", "TerminalProgress", "build_progress"]

_MARKS: "dict[Verdict, str]" = {"success": "✓", "partial": "~", "failed": "✗", "skipped": "-"}


def build_progress() -> "RunListener":
    """A drawing where somebody looks, else lines."""
    return TerminalProgress(sys.stderr) if sys.stderr.isatty() else PlainProgress(sys.stderr)


class TerminalProgress(RunListener):
    """Draws on one line: model, steps, what is being done and the seconds so far.

    Args:
        stream: a terminal.
        clock: seconds from any start on.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = TerminalLine(stream)
        self._clock = clock
        self._start_s = clock()
        self._model = ""

    @override
    def model_started(self, model: str, number: int, models: int) -> None:
        self._start_s = self._clock()
        self._model = f"{model} ({number} of {models})" if models > 1 else model
        self._line.draw(0, None, f"{self._model}: loading")

    @override
    def step(self, what: str, done: int, total: int) -> None:
        spent_s = self._clock() - self._start_s
        self._line.draw(done, total, f"{self._model}: {what} ({spent_s:.0f} s so far)")

    @override
    def model_ended(self, outcome: Outcome) -> None:
        self._line.say(f"  {_MARKS[outcome.verdict]} {_summary(outcome)}")

    @override
    def ended(self) -> None:
        self._line.clear()


class PlainProgress(RunListener):
    """Writes a line per step, for logs.

    Args:
        stream: where to.
        clock: seconds from any start on.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start_s = clock()
        self._model = ""

    @override
    def model_started(self, model: str, number: int, models: int) -> None:
        self._start_s, self._model = self._clock(), model

    @override
    def step(self, what: str, done: int, total: int) -> None:
        spent_s = self._clock() - self._start_s
        self._say(f"{self._model}: {done + 1}/{total} {what} (after {spent_s:.1f} s)")

    @override
    def model_ended(self, outcome: Outcome) -> None:
        self._say(f"{outcome.verdict}: {_summary(outcome)}")

    def _say(self, line: str) -> None:
        click.echo(safe(line), file=self._stream)


def _summary(outcome: Outcome) -> str:
    reason = "; ".join(outcome.reason.splitlines())
    what = f": {reason}" if reason else f" in {outcome.seconds:.1f} s"
    sizes = ", ".join(map(str, outcome.batch_sizes))
    return f"{outcome.model}{what}{f' (batch sizes {sizes})' if sizes else ''}"
