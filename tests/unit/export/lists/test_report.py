"""The report of a run over a list."""

import json
from pathlib import Path

from hloserve.export.lists.report import to_json, to_markdown
from hloserve.export.lists.run import Outcome
from hloserve.export.report import ExportReport, ProgramReport

REPORT = ExportReport(
    "a", Path("models/a"), "jax", "once", (ProgramReport("model.b1.mlir", 1, 9),), 1, 8, 99
)
OUTCOMES = (
    Outcome("a", "success", batch_sizes=(1, 8), seconds=1.25, report=REPORT),
    Outcome("b|<i>", "failed", "one | two\nthree"),
    Outcome("c", "partial", "only batch size 1: too large", (1,)),
    Outcome("d", "skipped", "it is there already"),
    Outcome("e", "success"),
)


def test_markdown_counts_explains_and_lists() -> None:
    """Counts come first, then what is not a success and why, then what is."""
    text = to_markdown("Export of m.yaml", OUTCOMES)

    head, sections = text.split("\n\n## ", 1)
    assert head == (
        "# Export of m.yaml\n\n| outcome | models |\n|---|--:|\n| success | 2 |\n| partial | 1 |\n"
        "| failed | 1 |\n| skipped | 1 |"
    )
    titles = [section.splitlines()[0] for section in sections.split("\n## ")]
    assert ["Failed", "Partial", "Skipped", "Succeeded", "a"] == titles
    assert "| b\\|&lt;i> | one \\| two<br>three |" in text
    assert "| a | 1, 8 | 1.2 |\n| e | - | 0.0 |" in text
    assert "model.b1.mlir" in text


def test_interrupted_run_says_what_it_did_not_reach() -> None:
    """A report of half a run cannot be taken for a whole one."""
    assert "**Interrupted**; not reached: y, z." in to_markdown("t", (), ["y", "z"])


def test_json_holds_the_same() -> None:
    """Machines read counts, outcomes and the exporter's reports."""
    found = json.loads(json.dumps(to_json(OUTCOMES, ["z"])))

    assert {"success": 2, "partial": 1, "failed": 1, "skipped": 1} == found["counts"]
    assert ["z"] == found["not_reached"]
    first, second, *_ = found["models"]
    assert ("a", "success", [1, 8]) == (first["model"], first["outcome"], first["batch_sizes"])
    assert "jax" == first["report"]["framework"]
    assert ("one | two\nthree", None) == (second["reason"], second["report"])
