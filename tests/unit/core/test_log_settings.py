"""What the log shows, and changing it while it is written."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from hloserve.core.logging import EventHandler, LogSettings, log_event

SEVERITIES = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The package's logger, with nothing but what the test adds, and as it was afterwards."""
    logger = logging.getLogger("hloserve")
    handlers, level = logger.handlers[:], logger.level
    logger.propagate = False
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = True


def _written(logger: logging.Logger, handler: EventHandler, stream: io.StringIO) -> list[str]:
    logger.addHandler(handler)
    for name, level in SEVERITIES.items():
        log_event(logger, name, level=level)
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error", "critical"]),
        ("info", ["info", "warning", "error", "critical"]),
        ("warning", ["warning", "error", "critical"]),
        ("error", ["error", "critical"]),
    ],
)
def test_level_shows_what_is_as_severe_and_worse(
    logger: logging.Logger, level: str, expected: list[str]
) -> None:
    """A level is the least severe that is written."""
    stream = io.StringIO()

    handler = EventHandler(LogSettings.of_level("json", level), stream)

    assert expected == _written(logger, handler, stream)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LogSettings("json", shows_info=False, verbose_level=3), ["debug", "warning", "error"]),
        (LogSettings("json", shows_warnings=False), ["info", "error"]),
        (LogSettings("json", shows_errors=False), ["info", "warning"]),
        (LogSettings("json", shows_errors=False, shows_warnings=False, shows_info=False), []),
    ],
)
def test_each_severity_is_shown_or_not_by_itself(
    logger: logging.Logger, settings: LogSettings, expected: list[str]
) -> None:
    """Severities are no ladder; what is worse than an error goes with the errors."""
    stream = io.StringIO()

    found = _written(logger, EventHandler(settings, stream), stream)

    assert expected == [event for event in found if event != "critical"]
    assert settings.shows_errors is ("critical" in found)


def test_settings_act_on_the_next_record(logger: logging.Logger) -> None:
    """Form and severity of a log that is being written can be changed."""
    stream = io.StringIO()
    handler = EventHandler(LogSettings("text", shows_info=False), stream)
    logger.addHandler(handler)

    log_event(logger, "hidden")
    handler.apply(LogSettings("json"))
    log_event(logger, "shown")

    assert json.loads(stream.getvalue())["event"] == "shown"
