"""`hloserve migrate-weights`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.migration_bundles import WEIGHTS, bits, files_of, write_legacy

from hloserve.bundle import read_bundle_weights
from hloserve.bundle.locking import bundle_lock
from hloserve.cli.main import run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model repository of two legacy bundles."""
    for name in ("a", "b"):
        write_legacy(tmp_path / name)
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = run(["migrate-weights", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_repository_is_migrated(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per bundle and a total; a second time there is nothing to do."""
    assert 0 == run(["migrate-weights", str(repository), "--mode", "copy", "--jobs", "2"])
    *lines, total = capsys.readouterr().out.splitlines()
    expected = [f"{repository}/a: migrated in", f"{repository}/b: migrated in"]
    assert expected == sorted(line[: len(expected[0])] for line in lines)
    assert "2 bundles: 2 migrated" == total

    assert 0 == run(["migrate-weights", str(repository), "--mode", "copy"])
    assert "2 bundles: 2 nothing to do" in capsys.readouterr().out
    for name in ("a", "b"):
        assert bits(WEIGHTS) == bits(read_bundle_weights(repository / name))


def test_dry_run_tells_every_step(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And changes nothing."""
    before = files_of(repository / "a")

    assert 0 == run(["migrate-weights", str(repository / "a"), "--mode", "replace", "--dry-run"])

    title, *steps = capsys.readouterr().out.splitlines()
    assert f"{repository}/a: would be migrated" == title
    assert 6 == len(steps)
    assert before == files_of(repository / "a")


def test_one_that_fails_is_told_and_the_others_are_migrated(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1."""
    (repository / "a" / "manifest.yaml").write_text("{format_version: '2.0'}")

    status, report = _json(capsys, str(repository), "--mode", "replace")

    assert (1, False) == (status, report["ok"])
    by_name = {Path(entry["bundle"]).name: entry for entry in report["bundles"]}
    assert ("failed", []) == (by_name["a"]["outcome"], by_name["a"]["steps"])
    assert "executable_inputs is missing" in by_name["a"]["reason"]
    assert "migrated" == by_name["b"]["outcome"]
    assert ["make_copy", "name_copy", "raise_version", "swap", "unname_copy", "remove_copy"] == (
        by_name["b"]["steps"]
    )
    assert 0 < by_name["b"]["seconds"]


def test_verification_needs_no_mode(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It proves what can be proved, and fails where a copy is not what it should be."""
    run(["migrate-weights", str(repository / "a"), "--mode", "copy"])
    capsys.readouterr()

    status, report = _json(capsys, str(repository), "--verify-only")
    assert 0 == status
    assert ["nothing_to_do", "verified"] == sorted(e["outcome"] for e in report["bundles"])

    copy = repository / "a" / "weights.T.safetensors"
    copy.write_bytes(copy.read_bytes()[:-1] + b"\xff")
    status, report = _json(capsys, str(repository / "a"), "--verify-only")
    assert (1, "failed") == (status, report["bundles"][0]["outcome"])


def test_mode_has_to_be_said(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no harmless default."""
    assert 2 == run(["migrate-weights", str(repository)])

    assert "--mode copy or --mode replace" in capsys.readouterr().err


def test_directory_that_is_no_bundle_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than to do nothing and say nothing."""
    (tmp_path / "empty").mkdir()

    assert 1 == run(["migrate-weights", str(tmp_path / "empty"), "--mode", "copy"])
    assert "FAILED: manifest.yaml is missing" in capsys.readouterr().out


def test_progress_is_drawn_on_a_terminal(repository: Path) -> None:
    """Bundles done, and what is being done; the report stays free of it."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "hloserve.cli.main", "migrate-weights", "--mode", "copy"]
    ended = subprocess.run(
        [*command, str(repository)],
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        timeout=50,
        check=True,
    )
    os.close(follower)
    drawn = os.read(leader, 1 << 16).decode()
    os.close(leader)

    assert "0/2 " in drawn
    assert "a: write weights.T.safetensors and prove it" in drawn
    assert "2 bundles: 2 migrated" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_interrupted_command_leaves_bundles_that_load(repository: Path) -> None:
    """It waits for the lock of a bundle; Ctrl-C ends it with status 130."""
    command = [sys.executable, "-m", "hloserve.cli.main", "migrate-weights", "--mode", "copy"]
    leader, follower = os.openpty()
    with bundle_lock(repository / "a"):
        process = subprocess.Popen(
            [*command, str(repository / "a")], stdout=subprocess.DEVNULL, stderr=follower
        )
        os.close(follower)
        drawn = b""
        while b"waiting for another process" not in drawn:
            drawn += os.read(leader, 1 << 16)
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(50)
    os.close(leader)

    assert bits(WEIGHTS) == bits(read_bundle_weights(repository / "a"))


def test_stale_copy_is_told_by_show_and_check(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By all who read weights, in the same words."""
    bundle = repository / "a"
    run(["migrate-weights", str(bundle), "--mode", "copy"])
    write_legacy(repository / "other", weights={"w": WEIGHTS["w"]})
    os.replace(repository / "other" / "weights.safetensors", bundle / "weights.safetensors")
    capsys.readouterr()

    run(["show", str(bundle)])
    shown = capsys.readouterr().out
    run(["check", "--no-hooks", str(bundle)])
    checked = capsys.readouterr().out

    for text in (shown, checked):
        assert "weights.T.safetensors is stale: weights.safetensors has changed since" in text
