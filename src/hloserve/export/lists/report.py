"""The report of a run over an export list, in Markdown and as plain values.

What lives here: layout. What does not: the run (`hloserve.export.lists.run`). Pure functions; any
thread.
"""

from collections.abc import Sequence
from typing import Any

from hloserve.export.lists.run import Outcome, Verdict

__all__ = ["VERDICTS", "count_outcomes", "to_json", "to_markdown"]

VERDICTS: tuple[Verdict, ...] = ("success", "partial", "failed", "skipped")


def count_outcomes(outcomes: Sequence[Outcome]) -> dict[Verdict, int]:
    """How many models each verdict has, zeros among them."""
    return {v: sum(outcome.verdict == v for outcome in outcomes) for v in VERDICTS}


def to_markdown(title: str, outcomes: Sequence[Outcome], missed: Sequence[str] = ()) -> str:
    """Counts, tables of what is not a success, what is, and a section per exported model.

    Args:
        title: what was run.
        outcomes: of the models, in order.
        missed: models that an interrupted run did not come to.
    """
    lines = [f"# {_cell(title)}", ""]
    if missed:
        lines += [f"**Interrupted**; not reached: {', '.join(map(_cell, missed))}.", ""]
    lines += ["| outcome | models |", "|---|--:|"]
    lines += [f"| {verdict} | {count} |" for verdict, count in count_outcomes(outcomes).items()]
    for verdict in ("failed", "partial", "skipped"):
        rows = [outcome for outcome in outcomes if outcome.verdict == verdict]
        if rows:
            lines += ["", f"## {verdict.capitalize()}", "", "| model | reason |", "|---|---|"]
            lines += [f"| {_cell(row.model)} | {_cell(row.reason)} |" for row in rows]
    rows = [outcome for outcome in outcomes if outcome.verdict == "success"]
    if rows:
        lines += ["", "## Succeeded", "", "| model | batch sizes | seconds |", "|---|---|--:|"]
        lines += [f"| {_cell(row.model)} | {_sizes(row)} | {row.seconds:.1f} |" for row in rows]
    sections = [outcome.report.to_markdown() for outcome in outcomes if outcome.report]
    return "\n".join([*lines, *(f"\n{section.rstrip()}" for section in sections)]) + "\n"


def to_json(outcomes: Sequence[Outcome], missed: Sequence[str] = ()) -> dict[str, Any]:
    """Plain values, for `json.dumps`."""
    return {
        "counts": count_outcomes(outcomes),
        "not_reached": list(missed),
        "models": [
            {
                "model": outcome.model,
                "outcome": outcome.verdict,
                "reason": outcome.reason,
                "batch_sizes": list(outcome.batch_sizes),
                "seconds": round(outcome.seconds, 3),
                "report": outcome.report.to_json() if outcome.report else None,
            }
            for outcome in outcomes
        ],
    }


def _sizes(outcome: Outcome) -> str:
    return ", ".join(map(str, outcome.batch_sizes)) or "-"


def _cell(text: str) -> str:
    """Text of a model's author in one cell of a table."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return "<br>".join(line for line in escaped.splitlines() if line)
