"""The examples of docs/export.md that are whole run as they are printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from hloserve.bundle import load_manifest
from hloserve.export import ExportReport

pytestmark = pytest.mark.xla

PAGE = Path(__file__).parents[3] / "docs" / "export.md"


def _run(section: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (code,) = re.findall(rf"^## {section}\n.*?```python\n(.*?)```", PAGE.read_text(), re.S | re.M)
    monkeypatch.chdir(directory)  # they write into `models`
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_report_of_each_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both bundles are there, and the report's figures are read."""
    names = _run("The report", tmp_path, monkeypatch)

    assert isinstance(names["report"], ExportReport)
    assert (1, 8) == load_manifest(tmp_path / "models" / "tanh").compiled_batch_sizes
    assert 4 == len(re.findall(r"^model\.b[18]\.mlir [18] \S+$", capsys.readouterr().out, re.M))


def test_class_of_five_members_is_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs of another compiler are proved and written, with what they came from."""
    _run("A source of your own", tmp_path, monkeypatch)

    assert "per size (2 traces): scaler compiles for fixed shapes" in capsys.readouterr().out
    manifest = load_manifest(tmp_path / "models" / "scale")
    assert "scaler" == manifest.provenance["source_framework"]
    assert "3.1" == manifest.provenance["scaler_version"]
