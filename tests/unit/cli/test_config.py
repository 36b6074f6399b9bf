"""`hloserve config`."""

import json
import re
from pathlib import Path

import pytest

from hloserve.cli.main import run


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    """A node file with a repository beside it."""
    (tmp_path / "models").mkdir()
    file = tmp_path / "node.yaml"
    file.write_text("model_dirs: [models]\nscheduler: {max_queue_depth: 256}\n")
    return file


def test_show_prints_value_and_source_of_every_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, node_file: Path
) -> None:
    """`config show` lists each setting with its value and where it came from."""
    monkeypatch.setenv("HLOSERVE_GRPC_MAX_RECV_MSG_BYTES", "1GiB")

    assert 0 == run(["config", "show", str(node_file)])

    lines = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert ["SETTING", "VALUE", "FROM"] == lines[0]
    assert ["scheduler.max_queue_depth", "256", f"file {node_file}"] in lines
    assert ["logging.level", "info", "default"] in lines
    assert ["runtime.preallocate", "true", "default"] in lines
    assert ["drain_timeout_s", "10s", "default"] in lines
    assert ["grpc.max_recv_msg_bytes", "1 GiB", "HLOSERVE_GRPC_MAX_RECV_MSG_BYTES"] in lines


def test_show_prints_json(capsys: pytest.CaptureFixture[str], node_file: Path) -> None:
    """`config show --json` holds the same for programs."""
    assert 0 == run(["config", "show", "--json", "--config", str(node_file)])

    shown = json.loads(capsys.readouterr().out)
    assert {"value": 256, "source": f"file {node_file}"} == shown["scheduler.max_queue_depth"]
    assert {"value": 8000, "source": "default"} == shown["endpoints.http_port"]


def test_check_says_ok_or_everything_that_is_wrong(
    capsys: pytest.CaptureFixture[str], node_file: Path
) -> None:
    """`config check` is silent about good files but for one line, and tells all of a bad one."""
    assert 0 == run(["config", "check", str(node_file)])
    assert "ok: 2 settings given, the others are defaults\n" == capsys.readouterr().out

    node_file.write_text("model_dirs: [absent]\nendpoints: {http_port: x, prot: 1}\n")
    assert 2 == run(["config", "check", str(node_file)])
    assert 2 == capsys.readouterr().err.count("error: ")

    node_file.write_text("scheduler: {max_queue_depth: 1}\n")
    assert 2 == run(["config", "check", str(node_file)])
    assert "no model repository" in capsys.readouterr().err


def test_two_files_are_one_too_many(capsys: pytest.CaptureFixture[str], node_file: Path) -> None:
    """There is one node file; naming two is a usage error."""
    assert 2 == run(["config", "show", str(node_file), "--config", str(node_file)])
    assert "give one node file" in capsys.readouterr().err
