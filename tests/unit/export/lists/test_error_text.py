"""Errors, shortened for a report."""

import pytest

from hloserve.core.errors import ExportProblem
from hloserve.export.lists.error_text import short_error


def test_frames_and_rules_are_left_out() -> None:
    """Lines of a traceback tell nothing in a report."""
    text = """Traceback (most recent call last):
  File "a.py", line 1, in f
    ^^^^^
====================
RuntimeError: no lowering for aten.foo
While executing %x : [num_users=1] = call_function
  at layer 'conv1'"""

    assert "RuntimeError: no lowering for aten.foo\nat layer 'conv1'" == short_error(text)


def test_at_most_three_lines_and_five_hundred_characters_stay() -> None:
    """An error of pages stays short, and says that there is more."""
    assert "a\nb\nc ..." == short_error("a\nb\nc\nd\ne")
    assert 500 == len(short_error("x" * 9999))
    assert 500 >= len(short_error(ExportProblem("m", ["y" * 400, "z" * 400])))


def test_findings_are_lines() -> None:
    """A problem of the export is told by its findings alone."""
    assert "one\ntwo" == short_error(ExportProblem("m", ["one", "two"]))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (KeyError(), "KeyError: without a message"),
        (SyntaxError("bad", ("a.py", 3, 1, "x")), "SyntaxError: bad (a.py, line 3)"),
        ("====", "===="),
        ("", ""),
    ],
)
def test_exceptions_come_with_their_type(error: Exception | str, expected: str) -> None:
    """What kind of error it was is part of what is told."""
    assert expected == short_error(error)
