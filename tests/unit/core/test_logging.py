"""Log events in both forms."""

import io
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from hloserve.core.logging import JsonFormatter, TextFormatter, configure, log_event

HOSTILE = 'resnet\n2026-01-01T00:00:00.000Z INFO forged\x1b[2J\u202e"'


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose records go nowhere else."""
    logger = logging.getLogger("hloserve.tests.events")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()
    logger.propagate = True


def _lines(logger: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    return stream


def test_text_line_is_time_level_event_and_fields(logger: logging.Logger) -> None:
    """A text line has the event after time and level, then each field as name=value."""
    stream = _lines(logger, TextFormatter())

    log_event(logger, "model_loaded", model="resnet", seconds=1.9312345, sizes=[1, 8])

    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert "INFO model_loaded model=resnet seconds=1.93123 sizes=[1, 8]\n" == rest


def test_json_line_holds_the_same_fields(logger: logging.Logger) -> None:
    """A JSON line is one object with time, level, event, logger and the fields."""
    stream = _lines(logger, JsonFormatter())

    log_event(logger, "model_loaded", model="resnet", seconds=1.5, sizes=(1, 8), ok=True, cap=None)

    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert {
        "level": "info",
        "event": "model_loaded",
        "logger": "hloserve.tests.events",
        "model": "resnet",
        "seconds": 1.5,
        "sizes": [1, 8],
        "ok": True,
        "cap": None,
    } == line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("value", [HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}, Exception(HOSTILE)])
def test_value_cannot_forge_a_line(
    logger: logging.Logger, formatter: logging.Formatter, value: object
) -> None:
    """Whatever a value holds, its event stays on one line and sends nothing to a terminal."""
    stream = _lines(logger, formatter)

    log_event(logger, "model_loaded", model=value)

    line = stream.getvalue()
    assert 1 == line.count("\n")
    assert line[:-1].isprintable()


def test_text_value_that_could_be_misread_is_quoted(logger: logging.Logger) -> None:
    """A text value with blanks, quotes or an equals sign is quoted, so that fields stay apart."""
    stream = _lines(logger, TextFormatter())

    log_event(logger, "e", a="x y", b='q"q', c="k=v", d="", e="/plain/path:1")

    assert 'e a="x y" b="q\\"q" c="k=v" d="" e=/plain/path:1' in stream.getvalue()


def test_field_with_a_reserved_name_keeps_both(logger: logging.Logger) -> None:
    """A field called like one of the line's own keys does not replace it."""
    stream = _lines(logger, JsonFormatter())

    log_event(logger, "loaded", event="other", time=1)

    line = json.loads(stream.getvalue())
    assert ("loaded", "other", 1) == (line["event"], line["field_event"], line["field_time"])


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize(
    "value",
    [
        _Unprintable(),
        float("nan"),
        float("inf"),
        10**4000,
        b"\xff",
        object(),
        "x" * 10**6,
        "\ud800",
    ],
)
def test_every_value_can_be_logged(
    logger: logging.Logger, formatter: logging.Formatter, value: Any
) -> None:
    """Logging never fails for the sake of a value, and no value makes an endless line."""
    stream = _lines(logger, formatter)

    log_event(logger, "odd", value=value)

    line = stream.getvalue()
    assert len(line) < 3000
    line.encode()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_traceback_stays_with_its_event(
    logger: logging.Logger, formatter: logging.Formatter
) -> None:
    """A logged error brings its traceback; in text it is indented, so it is no event of its own."""
    stream = _lines(logger, formatter)
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        log_event(logger, "hook_failed", level=logging.ERROR, error=error)

    first, *more = stream.getvalue().rstrip("\n").split("\n")
    assert "hook_failed" in first
    assert all(line.startswith("    ") and line.isprintable() for line in more)
    assert "ValueError" in stream.getvalue()


def test_level_that_is_off_costs_no_formatting(logger: logging.Logger) -> None:
    """An event below the level is not formatted at all."""
    stream = _lines(logger, TextFormatter())
    logger.setLevel(logging.WARNING)

    log_event(logger, "quiet", value=_Unprintable())

    assert "" == stream.getvalue()


@pytest.fixture
def restored_root() -> Iterator[None]:
    """Put the process's log back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("hloserve")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("restored_root")
def test_configure_replaces_what_was_configured_before() -> None:
    """Configuring twice leaves one handler, of the last form."""
    first, second = io.StringIO(), io.StringIO()
    configure("text", "info", first)
    configure("json", "debug", second)

    log_event(logging.getLogger("hloserve.x"), "fine", level=logging.DEBUG)
    logging.getLogger("elsewhere").info("not ours")

    assert "" == first.getvalue()
    assert ["fine"] == [json.loads(line)["event"] for line in second.getvalue().splitlines()]


def _raise_in_turn(texts: list[str]) -> None:
    """Raise an error for each text, the later ones while the earlier are being handled."""
    if len(texts) > 1:
        try:
            _raise_in_turn(texts[:-1])
        except ValueError as error:
            raise ValueError(texts[-1]) from error
    raise ValueError(texts[-1])


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "texts",
    [["begin " + "y" * 10_000_000], ["begin", *["y" * 100_000] * 80, "end"]],
    ids=["long", "many"],
)
def test_traceback_is_bounded_whatever_the_error_says(
    logger: logging.Logger, form: str, texts: list[str]
) -> None:
    """Where it began and how it ended are kept."""
    stream = _lines(logger, TextFormatter() if form == "text" else JsonFormatter())

    with pytest.raises(ValueError, match=r"^(begin|end|second)") as caught:
        _raise_in_turn(texts)
    log_event(logger, "request_failed", level=logging.ERROR, error=caught.value, request_id="a")
    written = stream.getvalue()

    assert len(written) < 50_000
    assert "ValueError: begin" in written
    assert (" more ..." in written) == (len(texts) > 1)
    assert texts[-1] in written or written.rstrip('"}\n').endswith("yyy...")


def test_traceback_of_usual_length_is_whole(logger: logging.Logger) -> None:
    """As Python prints it."""
    stream = _lines(logger, JsonFormatter())

    with pytest.raises(ValueError, match=r"^(begin|end|second)") as caught:
        _raise_in_turn(["first", "second"])
    log_event(logger, "request_failed", level=logging.ERROR, error=caught.value)

    expected = "".join(traceback.format_exception(caught.value)).rstrip("\n")
    assert expected == json.loads(stream.getvalue())["traceback"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_message_of_another_library_is_bounded(logger: logging.Logger, form: str) -> None:
    """It may have in it what a client sent."""
    stream = _lines(logger, TextFormatter() if form == "text" else JsonFormatter())

    logger.error("callback of %s", "x" * 1_000_000)

    assert len(stream.getvalue()) < 3_000
