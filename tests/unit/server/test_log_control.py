"""Log settings as clients see them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from hloserve.core.errors import BadRequest, NotImplementedYet, NotPossibleNow
from hloserve.core.logging import EventHandler, LogSettings, log_event
from hloserve.server.log_control import LogControl


@pytest.fixture
def stream() -> io.StringIO:
    """Where the log goes."""
    return io.StringIO()


@pytest.fixture
def control(stream: io.StringIO) -> Iterator[LogControl]:
    """Control over a JSON log of level info, which alone gets the package's records."""
    logger = logging.getLogger("hloserve")
    level = logger.level
    handler = EventHandler(LogSettings("json"), stream)
    logger.addHandler(handler)
    logger.propagate = False
    yield LogControl(handler)
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(level)


def test_settings_have_their_published_names(control: LogControl) -> None:
    """Names and kinds are Triton's."""
    assert control.read() == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "json",
    }


def test_what_was_read_can_be_written(control: LogControl) -> None:
    """Writing the settings back changes nothing and is no error."""
    assert control.read() == control.update(control.read())


def test_change_acts_on_the_log_and_is_answered(control: LogControl, stream: io.StringIO) -> None:
    """Details appear, and the answer has the new settings."""
    settings = control.update({"log_verbose_level": 2, "log_info": False})
    log_event(logging.getLogger("hloserve.x"), "detail", level=logging.DEBUG)
    log_event(logging.getLogger("hloserve.x"), "normal")

    assert (settings["log_verbose_level"], settings["log_info"]) == (2, False)
    assert "detail" in stream.getvalue()
    assert "normal" not in stream.getvalue()


def test_format_changes_with_the_next_record(control: LogControl, stream: io.StringIO) -> None:
    """`default` goes back to the form that the server started with."""
    control.update({"log_format": "text"})
    control.update({"log_format": "default"})

    lines = stream.getvalue().splitlines()
    assert "log_settings_changed" in lines[0]
    assert not lines[0].startswith("{")
    assert json.loads(lines[1])["settings"]["log_format"] == "json"


def test_setting_without_a_value_goes_back_to_the_start(control: LogControl) -> None:
    """None undoes a change."""
    before = control.read()
    control.update({"log_info": False, "log_verbose_level": 1, "log_format": "text"})

    assert before == control.update(dict.fromkeys(before))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"log_infos": True}, "'log_infos' is no log setting; there are log_file, log_info"),
        ({"log_info": 1}, "log_info is 1, expected true or false"),
        ({"log_verbose_level": -1}, "log_verbose_level is -1, expected an integer from 0"),
        ({"log_verbose_level": True}, "log_verbose_level is True"),
        ({"log_verbose_level": 2**32}, "from 0 to 4294967295"),
        ({"log_format": "ISO8601"}, "log_format is 'ISO8601', expected 'text', 'json'"),
        ({"log_file": 3}, "log_file is 3, expected a string"),
    ],
)
def test_bad_setting_is_refused_and_changes_nothing(
    control: LogControl, changes: dict[str, Any], expected: str
) -> None:
    """The message has the name, the value and what would do."""
    before = control.read()
    with pytest.raises(BadRequest) as caught:
        control.update({"log_error": False, **changes})

    assert expected in str(caught.value)
    assert before == control.read()


def test_all_findings_are_told_at_once(control: LogControl) -> None:
    """Two mistakes are one answer."""
    with pytest.raises(BadRequest) as caught:
        control.update({"log_info": "yes", "log_colour": "red"})

    assert "log_info" in str(caught.value)
    assert "log_colour" in str(caught.value)


def test_another_file_is_not_served(control: LogControl) -> None:
    """Where the log goes is the operator's business."""
    with pytest.raises(NotImplementedYet, match="standard error"):
        control.update({"log_file": "/tmp/log"})


def test_log_that_is_not_ours_is_left_alone() -> None:
    """Embedded in another process, only reading works."""
    control = LogControl(None)

    assert control.read() == control.update(control.read())
    with pytest.raises(NotPossibleNow, match="not the server's to change"):
        control.update({"log_info": False})
