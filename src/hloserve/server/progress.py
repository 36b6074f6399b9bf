"""Loading, drawn on a terminal.

What lives here: what is said of the start: how many bundles of how many, what is compiled, and how
long it may still take. What does not: the line itself (`hloserve.core.terminal_line`), and the log,
which tells the same to machines (`server.model_events`).

Rules.
1. Load threads only post: the drawing is done on the loop thread.
2. What is loaded after the start is not drawn: the log tells of it.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from typing_extensions import override

from hloserve.core.clock import Later
from hloserve.core.terminal_line import TerminalLine
from hloserve.engine.dispatcher import Post
from hloserve.models.progress import NoProgress, Progress

__all__ = ["PostedProgress", "TerminalProgress", "build_progress", "keep_drawing"]


def build_progress(post: Post, *, is_shown: bool) -> Progress:
    """A drawing on standard error that load threads may call, or nothing.

    Args:
        post: brings a call to the loop thread.
        is_shown: draw.
    """
    return PostedProgress(post, TerminalProgress(sys.stderr)) if is_shown else NoProgress()


def keep_drawing(progress: Progress, later: Later) -> None:
    """Draw every second: a bar that stands still for a minute looks like a server that hangs.

    Threading: loop thread, once.
    """
    if isinstance(progress, PostedProgress) and progress.tick():
        later(1.0, keep_drawing, progress, later)


@dataclass(slots=True)
class _Bundle:
    started_s: float
    programs: int = 0
    compiled: int = 0
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        """What its other programs take, if they take as long."""
        return (
            self.spent_s / self.compiled * (self.programs - self.compiled) if self.compiled else 0
        )


class TerminalProgress(Progress):
    """Draws on one line until the start is decided; finished bundles scroll away above it.

    Args:
        stream: a terminal.
        now_s: tells how long a bundle takes already.

    Threading: one thread.
    """

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._line = TerminalLine(stream)
        self._now_s = now_s
        self._total = 0
        self._done = 0
        self._seconds: list[float] = []
        self._active: dict[str, _Bundle] = {}

    @override
    def bundles_found(self, bundles: int) -> None:
        self._total = bundles

    @override
    def bundle_started(self, name: str) -> None:
        if not self._is_over:
            self._active[name] = _Bundle(self._now_s())
            self._draw()

    @override
    def programs_found(self, name: str, programs: int) -> None:
        if name in self._active:
            self._active[name].programs = programs
            self._draw()

    @override
    def program_compiled(
        self, name: str, program: str, seconds: float, *, is_restored: bool
    ) -> None:
        if name in self._active:
            bundle = self._active[name]
            bundle.compiled += 1
            bundle.spent_s += seconds
            self._draw()

    @override
    def bundle_warning(self, name: str, warning: str) -> None:
        if name in self._active:
            self._line.say(f"  ! {name}: {warning}")

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        if name in self._active:
            programs = self._active[name].programs
            self._seconds.append(seconds)
            self._end(name, f"  ✓ {name}  {programs} programs in {seconds:.1f} s")

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        if not self._is_over:
            self._end(name, f"  ✗ {name}: {reason}")

    def tick(self) -> bool:
        """Draw again, since time has passed; false when there will be nothing more to draw."""
        if self._active:
            self._draw()
        return not self._is_over or not self._total

    @property
    def _is_over(self) -> bool:
        return self._done >= self._total

    def _end(self, name: str, line: str) -> None:
        self._line.say(line)
        self._active.pop(name, None)
        self._done += 1
        if self._active:
            self._draw()

    def _draw(self) -> None:
        parts = [self._describe(name, bundle) for name, bundle in sorted(self._active.items())]
        left_s = self._left_s()
        left = f", about {left_s:.0f} s left" if left_s >= 0.5 else ""
        self._line.draw(self._done, self._total, f"{', '.join(parts)}{left}")

    def _describe(self, name: str, bundle: _Bundle) -> str:
        text = (
            f"{name} {bundle.compiled}/{bundle.programs}" if bundle.programs else f"{name} reading"
        )
        elapsed_s = self._now_s() - bundle.started_s
        return f"{text} ({elapsed_s:.0f} s)" if elapsed_s >= 1 else text

    def _left_s(self) -> float:
        """Seconds that what is known of takes, and the rest if it takes as long as the others."""
        at_once = max(len(self._active), 1)
        waiting = max(self._total - self._done - len(self._active), 0)
        mean_s = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
        active_s = max((bundle.left_s for bundle in self._active.values()), default=0.0)
        return active_s + waiting * mean_s / at_once


class PostedProgress(Progress):
    """Brings what load threads tell to the loop thread.

    Args:
        post: `loop.call_soon_threadsafe`.
        hears: is called there.
    """

    def __init__(self, post: Post, hears: TerminalProgress) -> None:
        self._post = post
        self._hears = hears

    def tick(self) -> bool:
        """See `TerminalProgress`. Loop thread."""
        return self._hears.tick()

    def _tell(self, method: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has closed: the process is ending
            self._post(method, *arguments)

    @override
    def bundles_found(self, bundles: int) -> None:
        self._tell(self._hears.bundles_found, bundles)

    @override
    def bundle_started(self, name: str) -> None:
        self._tell(self._hears.bundle_started, name)

    @override
    def programs_found(self, name: str, programs: int) -> None:
        self._tell(self._hears.programs_found, name, programs)

    @override
    def program_compiled(
        self, name: str, program: str, seconds: float, *, is_restored: bool
    ) -> None:
        compiled = partial(self._hears.program_compiled, is_restored=is_restored)
        self._tell(compiled, name, program, seconds)

    @override
    def bundle_warning(self, name: str, warning: str) -> None:
        self._tell(self._hears.bundle_warning, name, warning)

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        self._tell(self._hears.bundle_ready, name, seconds)

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        self._tell(self._hears.bundle_failed, name, reason)
