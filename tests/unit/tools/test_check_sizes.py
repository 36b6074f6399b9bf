"""The size check."""

from pathlib import Path

from tools.check_sizes import FILE_LINES, FUNCTION_LINES, findings


def test_long_files_and_functions_are_reported(tmp_path: Path) -> None:
    """A file over its bound and a function over its bound are reported with their lengths."""
    file = tmp_path / "long.py"
    body = "    pass\n" * FUNCTION_LINES
    file.write_text(f"def short():\n    pass\n\n\ndef long():\n{body}" + "\n" * FILE_LINES)

    of_file, of_function = findings(file)

    assert f"{file}: " in of_file
    assert f"{file}:5: long has {FUNCTION_LINES + 1} lines" in of_function


def test_sizes_at_the_bound_are_fine(tmp_path: Path) -> None:
    """A file and a function exactly at their bounds are accepted."""
    file = tmp_path / "fine.py"
    body = "    pass\n" * (FUNCTION_LINES - 1)
    file.write_text(f"def fine():\n{body}" + "\n" * (FILE_LINES - FUNCTION_LINES))

    assert [] == list(findings(file))


def test_docstring_is_no_part_of_a_function(tmp_path: Path) -> None:
    """A function may be documented at any length."""
    file = tmp_path / "documented.py"
    text = "line\n" * FUNCTION_LINES
    file.write_text(f'def documented():\n    """One.\n\n{text}    """\n    pass\n')

    assert [] == list(findings(file))


def test_file_may_say_why_it_is_long(tmp_path: Path) -> None:
    """A file whose first lines give a reason for its size is not reported."""
    file = tmp_path / "table.py"
    file.write_text('"""A table."""\n# size: one table, better whole\n' + "x = 1\n" * FILE_LINES)

    assert [] == list(findings(file))
