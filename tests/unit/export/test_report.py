"""The report of an export."""

import json
from pathlib import Path

from hloserve.export.report import ExportReport, OutputProof, ProgramReport, output_proofs

LOGITS = OutputProof("logits", "f32", 1.23456e-6, 0.5, 1e-3, True)
WORSE = OutputProof("logits", "f32", 5e-6, 0.5, 1e-3, True)
TABLE = OutputProof("table", "f32", 0.0, 0.0, 1e-3, False, "a note | with a bar")
PROGRAMS = (
    ProgramReport("model.b1.mlir", 1, 2048, {}, "1.0.0", 2, (LOGITS, TABLE), 1.5),
    ProgramReport("model.b8.mlir", 8, 2048, {"w": 4}, "1.0.0", 1, (WORSE, TABLE), 2.5),
    ProgramReport("model.b32.mlir", 32, 2048, {}, "1.0.0"),
)
REPORT = ExportReport(
    name="m",
    directory=Path("models/m"),
    framework="pytorch",
    tracing="once, batch open",
    programs=PROGRAMS,
    weights=1,
    weights_bytes=4096,
    bundle_bytes=10240,
    seconds={"trace": 1.0, "proof": 4.0},
    unused_inputs=("mask",),
    notes=("a note",),
    warnings=("a warning",),
)


def test_the_text_has_a_line_per_output() -> None:
    """What was proved, how well, and what was not run."""
    text = str(REPORT)

    assert "framework: pytorch, traced once, batch open" in text
    assert "1 weight of 4 KiB" in text
    assert "inputs that nothing depends on: mask" in text
    assert "types checked, not run" in text
    assert "2.5e-06" in text  # error/signal
    assert "constant" in text
    assert "8 w=4" in text
    assert text.endswith("warnings:\n  - a warning")


def test_markdown_is_a_table_that_holds() -> None:
    """Every row has as many cells as the head, whatever is in them."""
    rows = [line for line in REPORT.to_markdown().splitlines() if line.startswith("|")]

    assert len(rows) == 2 + 5
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_json_has_every_figure() -> None:
    """Plain values, with figures of three digits."""
    plain = json.loads(json.dumps(REPORT.to_json(), allow_nan=False))

    assert plain["programs"][0]["outputs"]["logits"]["error"] == 1.23e-6
    assert plain["programs"][2]["inputs_run"] == 0
    assert plain["seconds"] == {"trace": 1.0, "proof": 4.0}


def test_provenance_keeps_the_worst_of_each_output() -> None:
    """A manifest stays a page, however many programs there are."""
    proof = output_proofs(PROGRAMS)

    assert proof["programs_run"] == 2
    assert proof["programs_checked"] == 3
    assert proof["outputs"]["logits"] == (
        "error 5.0e-06, signal 5.0e-01, ratio 1.0e-05, tolerance 1e-03"
    )
    assert proof["outputs"]["table"] == "error 0.0e+00, constant"


def test_provenance_of_many_outputs_is_cut() -> None:
    """The worst ones stay, and the number of the others."""
    outputs = tuple(OutputProof(f"y{n}", "f32", n * 1e-6, 1.0, 1e-3, True) for n in range(1, 101))
    proof = output_proofs([ProgramReport("model.mlir", 0, 1, inputs_run=2, outputs=outputs)])

    assert len(proof["outputs"]) == 16
    assert "y100" in proof["outputs"]
    assert proof["outputs_left_out"] == 84


def test_the_ratio_of_no_error_is_zero() -> None:
    """Also without a signal; and an error without a signal is infinitely large."""
    assert TABLE.relative == 0
    assert OutputProof("y", "f32", 1.0, 0.0, 1e-3, False).relative == float("inf")
    assert PROGRAMS[0].worst == LOGITS
    assert PROGRAMS[2].worst is None
