"""The commands that operate a device, against a real server whose weights come and go."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server_process import HLOSERVE, ServerProcess, running_server
from support.server_worker import running_worker, write_scale

import hloserve

pytestmark = [pytest.mark.integration, pytest.mark.xla, pytest.mark.timeout(180)]

REPOSITORY = Path(hloserve.__file__).parent / "demo_repository"


def _run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HLOSERVE, *arguments, "--url", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _digits(server: ServerProcess) -> dict[str, Any]:
    done = _run(server.grpc, "status", "--json")
    assert 0 == done.returncode, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    return dict(model)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`hloserve serve` on a copy of the demo's repository, with a budget that others manage."""
    directory = tmp_path_factory.mktemp("serve")
    repository = directory / "models"
    shutil.copytree(REPOSITORY, repository, ignore=shutil.ignore_patterns(".cache"))
    node = directory / "node.yaml"
    node.write_text("runtime: {weight_cache_bytes: 64MiB, residency_mode: external}\n")
    with running_server(directory, "serve", str(repository), "--config", str(node)) as process:
        yield process


def test_model_is_served_from_its_pin_to_its_unpin(server: ServerProcess) -> None:
    """`pin` brings the weights, `unpin` takes them away, and `status` shows where they are."""
    before = _run(server.grpc, "infer", "digits", "image=zeros")
    pinned = _run(server.grpc, "pin", "digits")
    there = _digits(server)
    served = _run(server.grpc, "infer", "digits", "image=zeros")
    shown = _run(server.grpc, "status")
    on_host = _run(server.grpc, "pin", "digits", "--to", "system")
    unpinned = _run(server.grpc, "unpin", "digits")
    after = _run(server.grpc, "infer", "digits", "image=zeros")

    assert (1, 1) == (before.returncode, after.returncode)
    assert "digits" in before.stderr
    assert (0, 0, 0, 0) == (
        pinned.returncode,
        served.returncode,
        on_host.returncode,
        unpinned.returncode,
    )
    assert "digits: weights are kept on the device\n" == pinned.stdout
    assert "digits: weights are kept in the memory of the host\n" == on_host.stdout
    assert "digits: weights are not kept\n" == unpinned.stdout
    assert ("device", True) == (there["floor"], there["on_device"])
    assert "externally_managed" in shown.stdout
    assert "  device  " in shown.stdout.splitlines()[-1]
    gone = _digits(server)
    assert ("unpinned", False) == (gone["floor"], gone["on_device"])


def test_weight_of_a_model_is_set(server: ServerProcess) -> None:
    """`weight` prints it, and `status` shows it."""
    done = _run(server.grpc, "weight", "digits", "2.5")

    assert (0, "digits: weight 2.5\n") == (done.returncode, done.stdout)
    assert 2.5 == _digits(server)["weight"]


def test_memory_is_compacted(server: ServerProcess) -> None:
    """Where a controller decides, no weights are loaded again."""
    done = _run(server.grpc, "compact", "digits", "absent")

    assert 0 == done.returncode
    assert "0 of 2 models loaded again; 0 B" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["pin", "absent"], ["unpin", "absent"], ["weight", "absent", "1"]]
)
def test_unknown_model_is_told(server: ServerProcess, arguments: list[str]) -> None:
    """In the server's words, with status 1."""
    done = _run(server.grpc, *arguments)

    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("error: model 'absent' is not served here")


def test_worker_without_a_budget_says_what_to_set(tmp_path: Path) -> None:
    """`pin` fails with the settings in its message; the other commands work."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as worker:
        plain = worker.addresses.urls["grpc"]
        refused = _run(plain, "pin", "scale")
        compacted = _run(plain, "compact")
        shown = _run(plain, "status")

    assert 1 == refused.returncode
    assert "runtime.weight_cache_bytes" in refused.stderr
    assert "runtime.residency_mode" in refused.stderr
    assert (0, 0) == (compacted.returncode, shown.returncode)
    assert "all weights are on it" in shown.stdout
