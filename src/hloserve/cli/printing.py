"""What commands print: tables, JSON, and text from elsewhere that is safe for a terminal.

What lives here: layout. What does not: what is printed. Main thread.
"""

import json
from collections.abc import Sequence

import click

__all__ = ["error_text", "print_findings", "print_json", "print_table", "safe"]


def safe(text: object) -> str:
    """The text with everything escaped that a terminal could act on."""
    return "".join(c if c.isprintable() else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def error_text(message: str) -> str:
    """An error of one or more lines, as this program tells errors."""
    return "\n".join(f"error: {safe(line)}" for line in message.splitlines() or [""])


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Print rows in columns, with a heading; nothing when there are no rows."""
    if not rows:
        return
    cells = [[safe(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo((indent + "  ".join(padded)).rstrip())


def print_findings(title: str, findings: Sequence[str]) -> None:
    """Print a list of sentences under a title; nothing when there are none."""
    if findings:
        click.echo(f"{title}:")
    for finding in findings:
        click.echo(f"  - {safe(finding)}")
