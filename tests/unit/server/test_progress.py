"""Loading, drawn on a terminal."""

import io

from hloserve.models.progress import NoProgress
from hloserve.server.progress import TerminalProgress, build_progress

ERASE = "\r\x1b[2K"


def test_bar_grows_with_the_programs_and_tells_the_time_left() -> None:
    """The line says how many programs of how many are compiled, and about how long it takes."""
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.bundle_started("resnet")
    progress.programs_found("resnet", 4)
    progress.program_compiled("resnet", "model.b1.mlir", 3.0)

    last = stream.getvalue().split(ERASE)[-1]

    assert "1/4 resnet" in last
    assert "about 9 s left" in last
    assert last.count("█") == 6
    assert last.count("░") == 18


def test_finished_bundles_stay_and_the_bar_goes() -> None:
    """What is decided gets a line of its own: ready, failed or a warning."""
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.bundle_started("good")
    progress.bundle_warning("good", "unknown key")
    progress.bundle_ready("good", 1.26)
    progress.bundle_started("bad")
    progress.bundle_failed("bad", "no weights")

    lines = [line for line in stream.getvalue().split(ERASE) if line.endswith("\n")]

    assert [line.strip() for line in lines] == [
        "! good: unknown key",
        "✓ good  0 programs in 1.3 s",
        "✗ bad: no weights",
    ]


def test_names_cannot_move_the_cursor() -> None:
    """Control characters of a bundle's author are shown as question marks."""
    stream = io.StringIO()
    TerminalProgress(stream).bundle_failed("x\x1b[2J", "a\nb")

    assert stream.getvalue() == f"{ERASE}  ✗ x?[2J: a?b\n"


def test_nothing_is_drawn_where_nobody_looks() -> None:
    """Without a terminal there is no drawing; the log tells the same."""
    assert isinstance(build_progress(is_shown=False), NoProgress)
    assert isinstance(build_progress(is_shown=True), TerminalProgress)
