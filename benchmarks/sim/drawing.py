"""Pictures for the pages: how they look, and that the same figures give the same bytes.

What lives here: the only door to matplotlib. What does not: what is drawn (the scenarios).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["COLOURS", "DASHES", "Figure", "label_ends", "new_figure", "save", "style"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by people who do not see all colours. Source: Okabe, Ito, "Color Universal Design"."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))

_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and searchable
    "svg.hashsalt": "hloserve",  # else the names inside are random
    "path.simplify": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def style() -> AbstractContextManager[None]:
    """How pictures look that are drawn and saved meanwhile."""
    return mpl.rc_context(_STYLE)


def new_figure(
    title: str, rows: int = 1, columns: int = 1, *, height_in: float = 2.9, **options: Any
) -> tuple[Figure, Sequence[Any]]:
    """A picture as wide as a page, and its axes, row by row.

    Args:
        title: what one sees, as a sentence.
        rows: of axes.
        columns: of axes.
        height_in: of all, inches.
        options: of `Figure.subplots`.
    """
    figure = Figure(figsize=(7.4, height_in), layout="constrained")
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def label_ends(axes: Any, lines: Sequence[tuple[str, float, float, str]]) -> None:
    """Write names beside points of lines: text, x, y, colour."""
    for text, x, y, colour in lines:
        axes.annotate(
            text, (x, y), xytext=(4, 0), textcoords="offset points", color=colour, va="center"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a picture; the end of its name says which kind: ``.svg`` or ``.png``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_svg = path.suffix == ".svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None} if is_svg else None, dpi=110)
    if is_svg:  # as editors and git like it
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
