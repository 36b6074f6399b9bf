"""`hloserve check`."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.models_bundles import affine_text, replace_in, write_affine

from hloserve.cli.main import run

pytestmark = pytest.mark.xla

DEMO = Path(__file__).parents[3] / "src/hloserve/demo_repository"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = run(["check", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_sound_bundle_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It says ok, what was looked at, and which jaxlib reads the programs."""
    assert 0 == run(["check", str(DEMO / "digits")])

    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        f"{DEMO / 'digits'}: ok (manifest, files, weights, 6 programs for jaxlib from 0.4.31 on,"
        " hooks)"
    )


def test_run_prints_a_line_per_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds to compile and to run, and bytes in and out."""
    assert 0 == run(["check", "--run", str(DEMO / "digits")])

    _, head, *rows = capsys.readouterr().out.splitlines()
    assert ["PROGRAM", "COMPILED", "IN", "RAN", "IN", "INPUTS", "OUTPUTS"] == head.split()
    assert 6 == len(rows)
    assert rows[0].startswith("  model.b1.mlir")
    assert rows[0].endswith("64 B    44 B")


def test_directory_without_bundles_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong path is told as such, and nothing that follows from it."""
    (tmp_path / "models" / "notes").mkdir(parents=True)

    assert 1 == run(["check", str(tmp_path / "models")])

    title, line = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'models'}: 1 error" == title
    assert "neither a bundle nor a model repository that holds one" in line


def test_findings_are_told_at_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors come first, each once, and the exit status is 1."""
    bundle = write_affine(tmp_path)
    (bundle / "model.b4.mlir").write_text(affine_text(8))
    (bundle / "model.b1.mlir").unlink()

    assert 1 == run(["check", str(bundle)])

    title, *lines = capsys.readouterr().out.splitlines()
    assert f"{bundle}: 1 error" == title
    assert lines[0].startswith("  error: model.b1.mlir is missing, though batching.compiled")
    (bundle / "model.b1.mlir").write_text(affine_text(1))
    assert 1 == run(["check", str(bundle)])
    title, *lines = capsys.readouterr().out.splitlines()
    assert f"{bundle}: 2 errors, 2 warnings" == title
    assert lines[0].startswith("  error: model.b4.mlir: input 'x' (argument 0): shape is (8, 4)")
    assert ["error", "error", "warning", "warning"] == [
        line.split(":")[0].strip() for line in lines
    ]


def test_warnings_fail_when_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--strict is for a pipeline that wants none."""
    bundle = str(write_affine(tmp_path))

    assert 0 == run(["check", bundle])
    assert ": ok, 2 warnings (manifest, files" in capsys.readouterr().out
    assert 1 == run(["check", bundle, "--strict"])
    assert 0 == run(["check", str(DEMO / "digits"), "--strict"])


def test_repository_means_all_of_its_bundles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told, and all together; one that is given twice counts once."""
    first, second = (write_affine(tmp_path, name) for name in ("a", "b"))
    replace_in(second / "manifest.yaml", "f32", "float32")
    (tmp_path / "notes").mkdir()

    assert 1 == run(["check", str(tmp_path), str(first)])

    lines = capsys.readouterr().out.splitlines()
    assert [f"{first}: ok, 2 warnings", f"{second}: 2 errors"] == [
        line.split(" (")[0] for line in lines if not line.startswith(" ") and "bundles" not in line
    ]
    assert "1 of 2 bundles ok, 2 errors, 2 warnings" == lines[-1]


def test_json_has_the_documented_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that read it may rely on the keys; see the page on checking."""
    bundle = write_affine(tmp_path, sizes=(4,))

    status, found = _json(capsys, "--run", str(bundle))

    assert 0 == status
    assert {"ok": True, "errors": 0, "warnings": 1} == {k: found[k] for k in list(found)[:3]}
    (told,) = found["bundles"]
    (run_told,) = told.pop("runs")
    assert {
        "bundle": str(bundle),
        "ok": True,
        "checked": ["manifest", "files", "weights", "programs", "hooks", "run"],
        "not_checked": {},
        "weights_bytes": 60,
        "programs": [
            {
                "file": "model.b4.mlir",
                "variant": None,
                "batch_sizes": [4],
                "bytes": len(affine_text(4)),
                "stablehlo_version": None,
                "jaxlib_version": None,
                "custom_calls": [],
            }
        ],
    } == {key: value for key, value in told.items() if key != "findings"}
    (finding,) = told["findings"]
    assert ("warning", "model.b4.mlir") == (finding["severity"], finding["place"])
    assert {"severity", "place", "text"} == set(finding)
    assert 0 < run_told.pop("compile_seconds")
    assert 0 < run_told.pop("run_seconds")
    assert {
        "program": "model.b4.mlir",
        "input_bytes": 64,
        "output_bytes": 48,
        "outputs": [
            {
                "name": "y",
                "elements": 12,
                "nan": 0,
                "positive_infinite": 0,
                "negative_infinite": 0,
            }
        ],
    } == run_told


def test_directory_without_a_manifest_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a bundle nor a repository."""
    status, found = _json(capsys, str(tmp_path))

    assert 1 == status
    (told,) = found["bundles"]
    assert ["manifest.yaml is missing"] == [finding["text"] for finding in told["findings"]]
    assert "the manifest has errors" == told["not_checked"]["programs"]


@pytest.mark.parametrize("arguments", [(), ("/nowhere/at/all",), ("--verbose", ".")])
def test_wrong_usage_has_status_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """No bundle, a path that is not there, an option that is none."""
    assert 2 == run(["check", *arguments])
    assert "error: " in capsys.readouterr().err


def test_names_are_safe_for_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file's name may hold anything."""
    bundle = write_affine(tmp_path)
    (bundle / "model.b8\x1b[2J.mlir").write_text("")

    run(["check", str(bundle)])

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "model.b8\\x1b[2J.mlir: nothing reads it" in out
