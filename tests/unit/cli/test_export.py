"""`hloserve export`."""

import json
from pathlib import Path

import pytest
from support.export_targets import write_target

from hloserve import load_manifest
from hloserve.cli.main import run

LIST = """
output_root: models
report_path: out/report.md
targets:
  good: {target: 't.py:good'}
  bad: {target: 't.py:bad'}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a target and a list in it."""
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path / "t.py", """
        def good():
            print("hello from the target")
            return partial(fake_export, batch_sizes=[1, 2])
        def bad(): return partial(fake_export, largest=0)
        def stops(): raise KeyboardInterrupt
        def writes(): return partial(fake_export, dir="elsewhere/m")
    """)  # fmt: skip
    (tmp_path / "list.yaml").write_text(LIST)
    return tmp_path


def test_target_becomes_a_bundle_and_a_report(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The function's export is written below the repository, under the function's name."""
    exit_status = run(["export", "t.py:good", "--out", "models", "--report", "report.md"])

    told = capsys.readouterr()
    assert 0 == exit_status, told.err
    assert (1, 2) == load_manifest(directory / "models" / "good").compiled_batch_sizes
    assert "good: models/good" in told.out
    assert "good: 1/2 tracing (after 0.0 s)\ngood: 2/2 writing (after 0.0 s)\n" in told.err
    assert (directory / "report.md").read_text().startswith("## good")


def test_flags_win_over_the_options_of_the_target(directory: Path) -> None:
    """A flag takes the place of what the target said."""
    flags = ["--name", "small", "--batch-sizes", "4", "--description", "by hand"]

    assert 0 == run(["export", "t.py:good", "--out", "models", *flags])
    assert 0 == run(["export", "t.py:good", "--out", "models", *flags, "--overwrite"])

    manifest = load_manifest(directory / "models" / "small")
    assert ((4,), "by hand") == (manifest.compiled_batch_sizes, manifest.description)


def test_target_may_say_where_to(directory: Path) -> None:
    """A target with a directory of its own needs no --out."""
    assert 0 == run(["export", "t.py:writes"])
    assert (directory / "elsewhere" / "m" / "manifest.yaml").exists()


def test_json_is_all_that_standard_output_has(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json, what the user's code prints goes to standard error."""
    assert 0 == run(["export", "t.py:good", "--out", "models", "--json"])
    target = capsys.readouterr()
    assert 1 == run(["export", "list.yaml", "--json"])
    listed = capsys.readouterr()

    assert "good" == json.loads(target.out)["name"]
    assert "hello from the target" in target.err
    assert ["skipped", "failed"] == [m["outcome"] for m in json.loads(listed.out)["models"]]


def test_list_is_run_with_a_report(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model of a list is tried; one that fails makes the exit status 1."""
    exit_status = run(["export", "list.yaml"])

    told = capsys.readouterr()
    assert 1 == exit_status
    assert "1 success, 0 partial, 1 failed, 0 skipped\nreport: " in told.out
    assert "success: good in 0." in told.err
    assert "failed: bad: batch size 1 is too large" in told.err
    report = (directory / "out" / "report.md").read_text()
    assert "| bad | batch size 1 is too large |" in report
    assert "| good | 1, 2 |" in report


def test_part_of_a_list_writes_no_report(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--only takes some models and leaves the report of the whole list alone."""
    assert 0 == run(["export", "list.yaml", "--only", "good"])
    assert 0 == run(["export", "list.yaml", "--only", "good", "--force", "--report", "part.md"])

    assert "report: part.md" in capsys.readouterr().out
    assert not (directory / "out").exists()


def test_dry_run_says_what_would_be_done(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run runs no code and writes nothing."""
    run(["export", "list.yaml", "--only", "good"])
    capsys.readouterr()

    assert 0 == run(["export", "list.yaml", "--dry-run"])
    printed = capsys.readouterr()
    assert 0 == run(["export", "list.yaml", "--dry-run", "--json"])
    tasks = json.loads(capsys.readouterr().out)

    assert "good   skip    it is there already\nbad    export  -\n" in printed.out
    assert "" == printed.err
    assert {"model": "bad", "action": "export", "reason": ""} == tasks[1]
    assert not (directory / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_status", "told"),
    [
        (["t.py"], 2, "or a list that ends in .yaml"),
        (["t.py:good"], 2, "say where to: --out REPO"),
        (["t.py:good", "--name", "x"], 2, "--name needs --out"),
        (["t.py:good", "--out", "m", "--batch-sizes", "x"], 2, "--batch-sizes must be sizes like"),
        (["t.py:good", "--out", "m", "--batch", "1"], 2, "--batch"),
        (["t.py:good", "--out", "m", "--tolerance", "0"], 2, "tolerance"),
        (["t.py:good", "--out", "m", "--only", "a"], 2, "--only is for a list of models"),
        (["list.yaml", "--out", "m", "--asset", "t.py"], 2, "--out, --asset is for a target"),
        (["t.py:good", "--out", "m", "--report", "a/b"], 2, "--report: there is no directory 'a'"),
        (["list.yaml", "--force"], 2, "--force needs --only"),
        (["list.yaml", "--only", "god"], 2, "no model is called 'god'; did you mean 'good'?"),
        (["absent.yaml"], 2, "absent.yaml: cannot be read: No such file"),
        (["t.py:absent", "--out", "m"], 1, "error: export of 'absent': t.py has no 'absent'"),
        (["absent.py:f", "--out", "m"], 1, "there is no file"),
        (["t.py:bad", "--out", "m"], 1, "error: export of 'bad': batch size 1 is too large"),
        (["t.py:stops", "--out", "m"], 130, "error: interrupted"),
    ],
)
def test_mistake_is_a_message_and_a_status(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    exit_status: int,
    told: str,
) -> None:
    """Every mistake is told in words, and nothing is written."""
    assert exit_status == run(["export", *arguments])

    captured = capsys.readouterr()
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert ["list.yaml", "t.py"] == sorted(p.name for p in directory.iterdir() if p.is_file())


def test_existing_bundle_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --overwrite nothing is replaced."""
    run(["export", "t.py:good", "--out", "models"])

    assert 1 == run(["export", "t.py:good", "--out", "models"])
    assert "'models/good' exists already; --overwrite replaces it" in capsys.readouterr().err


def test_report_that_cannot_be_written_is_told_before_the_work(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report path in the way of a file fails at once; no model is exported."""
    (directory / "out").touch()

    assert 1 == run(["export", "list.yaml"])
    assert "out: File exists" in capsys.readouterr().err
    assert not (directory / "models").exists()


def test_directory_that_cannot_be_written_fails_its_models(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output directory of no use is told, once per model."""
    (directory / "models").touch()

    assert 1 == run(["export", "list.yaml"])
    assert "cannot be written: " in capsys.readouterr().err
