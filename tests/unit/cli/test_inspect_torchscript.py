"""`hloserve inspect-torchscript`: a file or a Triton model, looked into, run and traced."""

import json
from pathlib import Path

import pytest
import torch
from support.torchscript_models import Summing

from hloserve.cli.main import run
from hloserve.export.torchscript.loading import quiet

pytestmark = pytest.mark.xla


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Triton model with an open axis."""
    directory = tmp_path / "net"
    (directory / "1").mkdir(parents=True)
    with quiet():
        torch.jit.save(torch.jit.script(Summing()), str(directory / "1" / "model.pt"))
    (directory / "config.pbtxt").write_text(
        'max_batch_size: 8\ninput [{ name: "x" data_type: TYPE_FP32 dims: [3, -1] }]\n'
    )
    return directory


def test_triton_model_is_run_and_traced_with_its_configuration(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open axes have the size asked for, and the batch axis is tried open."""
    status = run(["inspect-torchscript", str(model), "--size", "16", "--json"])

    summary = json.loads(capsys.readouterr().out)
    assert status == 0
    assert summary["inputs"] == [{"name": "x", "dtype": "f32", "shape": [1, 3, -1]}]
    assert summary["forward"]["outputs"] == [
        {"name": "output", "dtype": "float32", "shape": [1, 3]}
    ]
    assert summary["export"]["works"]
    assert summary["export"]["how"] == "with an open batch axis"


def test_lone_file_is_described_and_its_source_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without inputs it is not run, which is said."""
    lone = tmp_path / "lone.pt"
    (model / "1" / "model.pt").rename(lone)
    status = run(["inspect-torchscript", str(lone), "--code-out", str(tmp_path / "code.py")])

    printed = capsys.readouterr().out
    assert status == 0
    assert "aten::mul" in printed
    assert "give them with --input" in printed
    assert "def forward" in (tmp_path / "code.py").read_text()


def test_first_failure_is_told_with_exit_status_1(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input of a dtype that the script cannot take."""
    status = run(["inspect-torchscript", str(model), "--input", "f32:2", "--input", "f32:2"])

    printed = capsys.readouterr().out
    assert status == 1
    assert "forward: fails" in printed
    assert "export: fails" in printed


def test_input_that_is_none_is_a_usage_error(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message shows what an input looks like."""
    assert run(["inspect-torchscript", str(model), "--input", "f32:a"]) == 2

    assert "f32:1,3,512,512" in capsys.readouterr().err


def test_file_that_is_no_torchscript_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for a wrong path."""
    assert run(["inspect-torchscript", str(tmp_path / "none.pt")]) == 1

    printed = capsys.readouterr().err
    assert "No such file" in printed
    assert "export of" not in printed
