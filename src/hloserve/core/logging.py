"""Log lines as events with fields, for people or for machines.

What lives here: `log_event` and the two ways to write a record. What does not: who logs what. Any
thread.

Rules.
1. An event is a constant word; what varies is in the fields.
2. No value can forge a line or steer a terminal: control characters are escaped in both forms.
3. Logging a value never raises: what JSON cannot hold is written as text.
4. Texts are bounded, those of exceptions too, which hooks make: whoever logs waits for the writing.
"""

import datetime
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import TracebackException
from typing import Any, Literal, TextIO, TypeAlias

from typing_extensions import override

__all__ = [
    "EventHandler",
    "JsonFormatter",
    "LogFormat",
    "LogSettings",
    "TextFormatter",
    "configure",
    "installed_handler",
    "log_event",
]

LogFormat: TypeAlias = Literal["text", "json"]

_ATTRIBUTE = "hloserve_fields"
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+", re.ASCII)  # printable, no blank, quote, "=" or backslash
_MAX_VALUE = 2000
_MAX_TRACE_END = 16_384  # characters at the beginning of a traceback, and as many at its end


def log_event(
    logger: logging.Logger,
    event: str,
    /,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **fields: object,
) -> None:
    """Log one event.

    Args:
        logger: the module's logger.
        event: what happened, one word with underscores, always the same for this place.
        level: a level of `logging`.
        error: an exception whose traceback is to be kept.
        fields: what varies; units are in the names.

    Example:
        >>> log_event(logging.getLogger("doc"), "model_loaded", model="resnet", seconds=1.93)
    """
    if logger.isEnabledFor(level):
        logger.log(level, event, exc_info=error, extra={_ATTRIBUTE: fields}, stacklevel=2)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a log shows, and how.

    Attributes:
        format: "text" for people, "json" for one object per line.
        shows_errors: errors are written.
        shows_warnings: warnings are.
        shows_info: events of normal operation are.
        verbose_level: above 0, details for debugging are.
    """

    format: LogFormat
    shows_errors: bool = True
    shows_warnings: bool = True
    shows_info: bool = True
    verbose_level: int = 0

    @classmethod
    def of_level(cls, format: LogFormat, level: str) -> "LogSettings":
        """Everything from a level on: "debug", "info", "warning" or "error"."""
        least = logging.getLevelName(level.upper())
        return cls(
            format,
            shows_warnings=least <= logging.WARNING,
            shows_info=least <= logging.INFO,
            verbose_level=int(least <= logging.DEBUG),
        )

    def shows(self, level: int) -> bool:
        """True when records of that severity are written."""
        if level >= logging.ERROR:
            return self.shows_errors
        if level >= logging.WARNING:
            return self.shows_warnings
        return self.shows_info if level >= logging.INFO else self.verbose_level > 0

    @property
    def least_level(self) -> int:
        """The least severe level that is written."""
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        return next((level for level in levels if self.shows(level)), logging.CRITICAL + 1)


class EventHandler(logging.StreamHandler[TextIO]):
    """Writes the records of a process; what it shows can be changed while it does.

    Args:
        settings: what to show at first.
        stream: where to.
        erases_line: as for `configure`.

    Attributes:
        settings: what it shows now.
    """

    def __init__(self, settings: LogSettings, stream: TextIO, *, erases_line: bool = False) -> None:
        super().__init__(stream)
        self._erases_line = erases_line
        self.settings = settings
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        """Show other records, or show them otherwise, from the next one on."""
        self.setFormatter(
            JsonFormatter()
            if settings.format == "json"
            else TextFormatter(erases_line=self._erases_line)
        )
        self.settings = settings
        logging.getLogger("hloserve").setLevel(settings.least_level)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self.settings.shows(record.levelno):
            super().emit(record)


def configure(
    format: LogFormat = "text",
    level: str = "info",
    stream: TextIO | None = None,
    *,
    erases_line: bool = False,
) -> EventHandler:
    """Send this process's log to standard error, replacing earlier handlers.

    Args:
        format: "text" for people, "json" for one object per line.
        level: the least severe level of our own records; other libraries' start at "warning".
        stream: where to, instead of standard error.
        erases_line: the stream is a terminal on which something may be drawn on the present line;
            each text line takes its place.

    Returns:
        What writes the log, for changing its settings later.
    """
    handler = EventHandler(
        LogSettings.of_level(format, level), stream or sys.stderr, erases_line=erases_line
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    return handler


def installed_handler() -> EventHandler | None:
    """What writes this process's log, if `configure` has set it up."""
    handlers = logging.getLogger().handlers
    return next((each for each in handlers if isinstance(each, EventHandler)), None)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO model_loaded model=resnet seconds=1.93``.

    Args:
        erases_line: begin each line by erasing what the terminal shows there.
    """

    def __init__(self, *, erases_line: bool = False) -> None:
        super().__init__()
        self._prefix = "\r\x1b[2K" if erases_line else ""

    @override
    def format(self, record: logging.LogRecord) -> str:
        words = [_instant(record), record.levelname, _escape(_shortened(record.getMessage()))]
        words += [f"{name}={_as_text(value)}" for name, value in _fields(record).items()]
        line = self._prefix + " ".join(words)
        trace = _traceback(record)
        if trace:
            line += "\n" + "\n".join("    " + _escape(part) for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, logger, then the fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "event": _shortened(record.getMessage()),
            "logger": record.name,
        }
        for name, value in _fields(record).items():
            line[f"field_{name}" if name in line else name] = _as_json(value)
        trace = _traceback(record)
        if trace:
            line["traceback"] = trace
        return json.dumps(line)  # ASCII: what a terminal could act on is \u-escaped


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, _ATTRIBUTE, {})
    return fields


def _instant(record: logging.LogRecord) -> str:
    instant = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    """The traceback of a record; of a long one the beginning and the end, which has the error."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    kind, error, trace = record.exc_info
    head: list[str] = []
    tail: deque[str] = deque()
    head_room = tail_room = _MAX_TRACE_END
    skipped = 0
    for whole in TracebackException(kind, error, trace, compact=True).format():
        piece = _shortened(whole.removesuffix("\n"))
        if not tail and head_room >= len(piece):
            head.append(piece)
            head_room -= len(piece)
            continue
        tail.append(piece)
        tail_room -= len(piece)
        while tail_room < 0:
            gone = tail.popleft()
            tail_room += len(gone)
            skipped += 1
    if skipped:
        head.append(f"... {skipped} more ...")
    return "\n".join((*head, *tail))


def _as_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool | int):
        return _number(value)
    text = _string(value)
    if not isinstance(value, str):
        return _escape(text)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _as_json(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else _number(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no NaN and no infinity
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    return _string(value)


def _number(value: int) -> str:
    return str(value) if abs(value) < 10**300 else "huge"


def _string(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001  # rule 3: a broken __str__ costs its value, no more
        text = f"<{type(value).__name__}, {type(error).__name__} on str()>"
    return _shortened(text)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def _escape(text: str) -> str:
    """The text on one line, without anything that a terminal acts on."""
    if text.isprintable():
        return text
    return json.dumps(text)[1:-1].replace('\\"', '"')
