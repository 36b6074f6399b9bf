"""Recorded requests: read, written, replayed, and refused by line."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.sim.__main__ import main
from benchmarks.sim.replaying import ModelFigures, read_models, replayed
from benchmarks.sim.traces import TraceProblem, read_trace, write_trace
from benchmarks.sim.traffic import Arrival, merged, poisson

_CSV = "at_s,model,rows,timeout_s\n0.0125,search,1,0.2\n\n0.018,embed,4,\n"
_JSON = (
    '{"at_s": 0.0125, "model": "search", "rows": 1, "timeout_s": 0.2}\n'
    '{"at_s": 0.018, "model": "embed", "rows": 4}\n'
)


@pytest.mark.parametrize("text", [_CSV, _JSON])
def test_both_kinds_say_the_same(tmp_path: Path, text: str) -> None:
    """A trace is CSV or one JSON object per line; values that are not given are the usual ones."""
    trace = tmp_path / "trace"
    trace.write_text(text)

    assert [
        Arrival(12_500_000, "search", 1, 0.2),
        Arrival(18_000_000, "embed", 4, None),
    ] == read_trace(trace)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "found none"),
        ("at_s,model\n", 1, "found none"),
        ("time,model\n0,a\n", 1, "expected names of at_s, model, rows, timeout_s"),
        ("at_s,model\n0,a\n1\n", 3, "expected 2 values, got 1"),
        ("at_s,model\n0,a\n\nsoon,a\n", 4, "at_s is 'soon', expected a number"),
        ("at_s,model\n-1,a\n", 2, "expected 0 or more"),
        ("at_s,model\n0,\n", 2, "model is missing"),
        ("at_s,model,rows\n0,a,1.5\n", 2, "expected a whole number from 1 on"),
        ("at_s,model,timeout_s\n0,a,0\n", 2, "expected more than 0"),
        ("at_s,model\n1,a\n0.5,a\n", 3, "sort by at_s"),
        ('{"at_s": 0, "model": "a"}\n{"at_s": 1\n', 2, "not JSON"),
        ('{"at_s": 0, "model": "a"}\n[1]\n', 2, "expected a JSON object"),
        ('{"at_s": 0, "model": "a", "row": 1}\n', 1, "'row' is none of"),
        ('{"at_s": NaN, "model": "a"}\n', 1, "expected a number"),
        ('{"at_s": true, "model": "a"}\n', 1, "expected a number"),
        ('{"at_s": 0, "model": 3}\n', 1, "model is 3, expected a name"),
    ],
)
def test_a_bad_line_is_told_by_its_number(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    """What is wrong is told with the number of the line, as an editor counts."""
    trace = tmp_path / "trace"
    trace.write_text(text)

    with pytest.raises(TraceProblem) as caught:
        read_trace(trace)

    assert (str(trace), line) == (caught.value.source, caught.value.line)
    assert reason in caught.value.reason


_FIGURES = {
    "a": ModelFigures(costs_s={1: 0.004, 8: 0.012}, weight=2, weight_bytes=10**8),
    "b": ModelFigures(costs_s={1: 0.02}, weight_bytes=2 * 10**8),
}


def test_a_written_trace_replays_as_its_requests(tmp_path: Path) -> None:
    """What was written and read again gives what the requests themselves give."""
    chance = Random(5)
    arrivals = merged(
        (poisson(chance, "a", 50, 5, rows=2, timeout_s=0.5), poisson(chance, "b", 20, 5))
    )
    trace = tmp_path / "trace.csv"
    write_trace(trace, arrivals)

    assert arrivals == read_trace(trace)
    assert replayed(arrivals, _FIGURES, 2 * 10**8) == replayed(
        read_trace(trace), _FIGURES, 2 * 10**8
    )


def test_a_replay_tells_of_each_discipline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command replays a trace under each discipline and prints a line for each model."""
    trace, models = tmp_path / "trace.csv", tmp_path / "models.json"
    trace.write_text("at_s,model\n0,a\n0,a\n0.001,b\n")
    models.write_text(json.dumps({"a": {"costs_s": {"1": 0.01}}, "b": {"costs_s": {"1": 0.02}}}))

    status = main(["--trace", str(trace), "--models", str(models)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert ["fair", "fair original", "fifo", "edf"] == lines[::3]
    assert all("share  50.0%" in line for line in lines if line.startswith("  "))


@pytest.mark.parametrize(
    ("trace", "models", "told"),
    [
        ("at_s,model\n0,a\nx,a\n", '{"a": {"costs_s": {"1": 0.01}}}', "line 3"),
        ("at_s,model\n0,b\n", '{"a": {"costs_s": {"1": 0.01}}}', "does not describe 'b'"),
        ("at_s,model\n0,a\n", '{"a": {"costs_s": {"1": 0}}}', "$[...].costs_s[...]"),
        ("at_s,model\n0,a\n", '{"a": {"cost_s": {"1": 1}}}', "unknown field `cost_s`"),
        ("at_s,model\n0,a\n", None, "models.json"),
    ],
)
def test_a_file_that_is_wrong_is_no_traceback(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trace: str,
    models: str | None,
    told: str,
) -> None:
    """A mistake in either file ends the command with a sentence that tells where it is."""
    (tmp_path / "trace").write_text(trace)
    if models is not None:
        (tmp_path / "models.json").write_text(models)

    status = main(["--trace", str(tmp_path / "trace"), "--models", str(tmp_path / "models.json")])

    assert status == 2
    assert told in capsys.readouterr().err


def test_models_are_read_with_their_weights(tmp_path: Path) -> None:
    """Sizes are numbers, although JSON writes them as text."""
    models = tmp_path / "models.json"
    models.write_text('{"a": {"costs_s": {"1": 0.004, "8": 0.012}, "weight": 2}}')

    assert {"a": ModelFigures(costs_s={1: 0.004, 8: 0.012}, weight=2)} == read_models(models)
