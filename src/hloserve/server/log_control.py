"""The log's settings while the server runs: the logging extension of V2.

What lives here: names and checks of the settings. What does not: writing records
(`hloserve.core.logging`) and bytes (the services of the transports). Loop thread.

Rule: a setting that is accepted acts, and the answer says what holds now. One that could not act is
refused, unless it asks for what holds anyway: what was read can be written back.

Source: Triton's logging extension.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, cast

from hloserve.core.errors import BadRequest, NotImplementedYet, NotPossibleNow
from hloserve.core.logging import EventHandler, LogFormat, LogSettings, log_event

__all__ = ["LogControl", "LogValue"]

log = logging.getLogger(__name__)

LogValue: TypeAlias = bool | int | str
_Wanted: TypeAlias = LogValue | float | None  # no setting is a float, and the refusal says so

_DEFAULT_FORMAT = "default"
_LARGEST_LEVEL = 2**32 - 1
_FLAGS: Mapping[str, str] = {
    "log_info": "shows_info",
    "log_warning": "shows_warnings",
    "log_error": "shows_errors",
}
_KNOWN = ("log_file", *_FLAGS, "log_verbose_level", "log_format")


class LogControl:
    """Reads and changes what the log shows.

    Args:
        handler: writes the log; None when this process logs in a way of its own.
    """

    def __init__(self, handler: EventHandler | None) -> None:
        self._handler = handler
        self._initial = LogSettings("text") if handler is None else handler.settings

    def read(self) -> dict[str, LogValue]:
        """The settings that hold, by their published names."""
        settings = self._initial if self._handler is None else self._handler.settings
        return {
            "log_file": "",
            **{name: bool(getattr(settings, field)) for name, field in _FLAGS.items()},
            "log_verbose_level": settings.verbose_level,
            "log_format": settings.format,
        }

    def update(self, changes: Mapping[str, _Wanted]) -> dict[str, LogValue]:
        """Change settings, all or none; returns those that hold then.

        Args:
            changes: by published name; None puts a setting back to what the server started with.

        Raises:
            BadRequest: a name is unknown, or a value is not of its kind; all are told.
            NotImplementedYet: the log should go to another file.
            NotPossibleNow: this process logs in a way of its own.
        """
        settings = self._initial if self._handler is None else self._handler.settings
        findings: list[str] = []
        for name, value in changes.items():
            change = self._changes().get(name)
            if change is None:
                findings.append(f"{name!r} is no log setting; there are {', '.join(_KNOWN)}")
            else:
                settings = change(settings, name, value, findings)
        if findings:
            raise BadRequest("; ".join(findings))
        if changes.get("log_file"):
            raise NotImplementedYet(
                "changing log_file: the log goes to standard error, and where that goes"
            )
        self._apply(settings)
        return self.read()

    def _changes(self) -> "Mapping[str, _Change]":
        return {
            "log_file": _check_file,
            **dict.fromkeys(_FLAGS, self._set_flag),
            "log_verbose_level": self._set_verbosity,
            "log_format": self._set_format,
        }

    def _apply(self, settings: LogSettings) -> None:
        if self._handler is None:
            if settings != self._initial:
                raise NotPossibleNow("the log of this process is not the server's to change")
        elif settings != self._handler.settings:
            self._handler.apply(settings)
            log_event(log, "log_settings_changed", settings=self.read())

    def _set_flag(
        self, settings: LogSettings, name: str, value: _Wanted, findings: list[str]
    ) -> LogSettings:
        if value is not None and not isinstance(value, bool):
            findings.append(f"{name} is {value!r}, expected true or false")
            return settings
        shown: bool = getattr(self._initial, _FLAGS[name]) if value is None else value
        if name == "log_error":
            return replace(settings, shows_errors=shown)
        if name == "log_warning":
            return replace(settings, shows_warnings=shown)
        return replace(settings, shows_info=shown)

    def _set_verbosity(
        self, settings: LogSettings, name: str, value: _Wanted, findings: list[str]
    ) -> LogSettings:
        if value is None:
            return replace(settings, verbose_level=self._initial.verbose_level)
        if isinstance(value, bool) or not isinstance(value, int) or not _is_uint32(value):
            findings.append(f"{name} is {value!r}, expected an integer from 0 to {_LARGEST_LEVEL}")
            return settings
        return replace(settings, verbose_level=value)

    def _set_format(
        self, settings: LogSettings, name: str, value: _Wanted, findings: list[str]
    ) -> LogSettings:
        if value in (None, _DEFAULT_FORMAT):
            return replace(settings, format=self._initial.format)
        if value not in ("text", "json"):
            findings.append(
                f"{name} is {value!r}, expected 'text', 'json', or 'default' for the one that the"
                " server started with"
            )
            return settings
        return replace(settings, format=cast(LogFormat, value))


_Change: TypeAlias = Callable[[LogSettings, str, _Wanted, list[str]], LogSettings]


def _check_file(
    settings: LogSettings, name: str, value: _Wanted, findings: list[str]
) -> LogSettings:
    if value is not None and not isinstance(value, str):
        findings.append(f"{name} is {value!r}, expected a string")
    return settings


def _is_uint32(value: int) -> bool:
    return 0 <= value <= _LARGEST_LEVEL
