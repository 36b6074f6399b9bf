"""Tables, JSON and safe text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloserve.cli.printing import error_text, print_findings, print_json, print_table, safe


@given(st.text(max_size=40))
def test_safe_text_does_nothing_to_a_terminal(text: str) -> None:
    """Whatever a text holds, what is printed is printable, and printable text is unchanged."""
    assert safe(text).isprintable()
    assert not text.isprintable() or text == safe(text)


def test_error_has_its_mark_on_every_line() -> None:
    """Each line of an error says that it is one."""
    assert "error: a\nerror: b" == error_text("a\nb")
    assert "error: " == error_text("")


def test_table_has_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as their widest cell, and a cell cannot break its row."""
    print_table(("A", "LONG"), [("x" * 3, 1), ("\n", "")])
    print_table(("A",), [])

    assert "A    LONG\nxxx  1\n\\n\n" == capsys.readouterr().out


def test_findings_are_listed_under_their_title(capsys: pytest.CaptureFixture[str]) -> None:
    """Findings have a title, and no title stands without findings."""
    print_findings("problems", ["a", "b\x07"])
    print_findings("warnings", [])

    assert "problems:\n  - a\n  - b\\x07\n" == capsys.readouterr().out


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed as JSON is JSON: a number that JSON lacks is our mistake."""
    print_json({"a": [1]})

    assert {"a": [1]} == json.loads(capsys.readouterr().out)
    with pytest.raises(ValueError, match="JSON"):
        print_json(float("nan"))
