"""Loading, drawn on a terminal."""

import io

import pytest

from hloserve.models.progress import NoProgress
from hloserve.server.progress import PostedProgress, TerminalProgress, build_progress

ERASE = "\r\x1b[2K"


@pytest.fixture
def stream() -> io.StringIO:
    """The terminal."""
    return io.StringIO()


def _last(stream: io.StringIO) -> str:
    return stream.getvalue().split(ERASE)[-1]


def test_bar_grows_with_the_bundles_and_tells_the_time_left(stream: io.StringIO) -> None:
    """The line says what is compiled, how far each bundle is, and about how long all take."""
    progress = TerminalProgress(stream)
    progress.bundles_found(4)
    progress.bundle_started("a")
    progress.bundle_ready("a", 2.0)
    progress.bundle_started("resnet")
    progress.programs_found("resnet", 4)
    progress.bundle_started("vit")
    progress.program_compiled("resnet", "model.b1.mlir", 3.0, is_restored=False)

    last = _last(stream)

    assert "1/4 resnet 1/4, vit reading, about 10 s left" in last
    assert (6, 18) == (last.count("█"), last.count("░"))


def test_finished_bundles_stay_and_the_bar_goes(stream: io.StringIO) -> None:
    """What is decided gets a line of its own: ready, failed or a warning."""
    progress = TerminalProgress(stream)
    progress.bundles_found(2)
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


def test_what_is_loaded_after_the_start_is_not_drawn(stream: io.StringIO) -> None:
    """The log tells of it; a bar would come and go between its lines."""
    progress = TerminalProgress(stream)
    progress.bundles_found(1)
    progress.bundle_started("a")
    progress.bundle_ready("a", 1.0)
    before = stream.getvalue()

    progress.bundle_started("late")
    progress.programs_found("late", 1)
    progress.program_compiled("late", "model.mlir", 1.0, is_restored=True)
    progress.bundle_warning("late", "odd")
    progress.bundle_ready("late", 1.0)
    progress.bundle_failed("later", "broken")

    assert before == stream.getvalue()


def test_bar_goes_on_while_a_program_compiles(stream: io.StringIO) -> None:
    """A second after the other, so that nobody takes it for hanging; it ends with the start."""
    seconds = [0.0]
    progress = TerminalProgress(stream, lambda: seconds[0])
    progress.bundles_found(1)
    progress.bundle_started("heavy")
    progress.programs_found("heavy", 2)
    seconds[0] = 61.0

    assert progress.tick()

    assert "0/1 heavy 0/2 (61 s)" in _last(stream)
    progress.bundle_ready("heavy", 70.0)
    assert not progress.tick()


def test_names_cannot_move_the_cursor(stream: io.StringIO) -> None:
    """Control characters of a bundle's author are shown as question marks."""
    progress = TerminalProgress(stream)
    progress.bundles_found(1)
    progress.bundle_failed("x\x1b[2J", "a\nb")

    assert stream.getvalue() == f"{ERASE}  ✗ x?[2J: a?b\n"


def test_load_threads_only_post(stream: io.StringIO) -> None:
    """The drawing happens where the posts run, and a loop that has closed is no error."""
    posts = []
    progress = PostedProgress(
        lambda function, *arguments: posts.append((function, arguments)), TerminalProgress(stream)
    )
    progress.bundles_found(1)
    progress.bundle_started("a")
    progress.programs_found("a", 1)
    progress.program_compiled("a", "model.mlir", 0.1, is_restored=False)
    progress.bundle_warning("a", "odd")
    progress.bundle_ready("a", 0.2)
    assert not stream.getvalue()

    for function, arguments in posts:
        function(*arguments)

    assert "✓ a  1 programs in 0.2 s" in _last(stream)

    def closed(function: object, *arguments: object) -> None:
        raise RuntimeError

    PostedProgress(closed, TerminalProgress(stream)).bundle_failed("a", "b")


def test_nothing_is_drawn_where_nobody_looks() -> None:
    """Without a terminal there is no drawing; the log tells the same."""
    assert isinstance(build_progress(print, is_shown=False), NoProgress)
    assert isinstance(build_progress(print, is_shown=True), PostedProgress)
