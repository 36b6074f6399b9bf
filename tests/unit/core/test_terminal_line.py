"""The line of a terminal that is drawn over."""

import io

from hloserve.core.terminal_line import TerminalLine

ERASE = "\r\x1b[2K"


def test_bar_is_drawn_over_and_lines_stay() -> None:
    """Each drawing replaces the one before it; what is said ends its line."""
    stream = io.StringIO()
    line = TerminalLine(stream)
    line.draw(1, 4, "one")
    line.draw(0, None, "two")
    line.say("three")
    line.clear()

    empty, first, second, third, last = stream.getvalue().split(ERASE)
    assert ("", "") == (empty, last)
    assert "  " + "█" * 6 + "░" * 18 + " 1/4 one" == first
    assert "  " + "░" * 24 + " 0/? two" == second
    assert "three\n" == third


def test_text_cannot_move_the_cursor() -> None:
    """Control characters are shown as question marks."""
    stream = io.StringIO()
    TerminalLine(stream).say("a\x1b[2J\nb")

    assert f"{ERASE}a?[2J?b\n" == stream.getvalue()
