"""The commands against a real server, as a user types them."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.server_process import HLOSERVE, ServerProcess, running_server

import hloserve

pytestmark = [pytest.mark.integration, pytest.mark.xla, pytest.mark.timeout(180)]

REPOSITORY = Path(hloserve.__file__).parent / "demo_repository"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HLOSERVE, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`hloserve serve` on a copy of the demo's repository, since it keeps its programs there."""
    directory = tmp_path_factory.mktemp("serve")
    repository = directory / "models"
    shutil.copytree(REPOSITORY, repository, ignore=shutil.ignore_patterns(".cache"))
    with running_server(directory, "serve", str(repository)) as process:
        yield process


def test_status_tells_what_is_served(server: ServerProcess) -> None:
    """`status` prints that the server is ready, and its models with their tensors."""
    printed, as_json = (
        _run("status", "--url", server.grpc),
        _run("status", "--url", server.grpc, "--json"),
    )

    assert (0, 0) == (printed.returncode, as_json.returncode)
    assert ": ready" in printed.stdout
    assert "image UINT8(?, 8, 8)" in printed.stdout
    (model,) = json.loads(as_json.stdout)["models"]
    assert ("digits", "READY") == (model["name"], model["state"])


def test_infer_sends_files_and_saves_outputs(server: ServerProcess, tmp_path: Path) -> None:
    """`infer` sends a .npy file, prints the outputs and saves them as .npy files."""
    np.save(tmp_path / "image.npy", np.zeros((3, 8, 8), np.uint8))
    image = f"image={tmp_path / 'image.npy'}"

    saved = _run(
        "infer", "digits", image, "--url", server.grpc, "--output-dir", str(tmp_path / "out")
    )
    as_json = _run("infer", "digits", image, "--url", server.grpc, "--json")

    assert (0, 0) == (saved.returncode, as_json.returncode), saved.stderr + as_json.stderr
    probabilities = np.load(tmp_path / "out" / "probabilities.npy")
    assert (3, 10) == probabilities.shape
    np.testing.assert_allclose(1.0, probabilities.sum(axis=1), rtol=1e-5)
    outputs = {o["name"]: o for o in json.loads(as_json.stdout)["outputs"]}
    assert [3] == outputs["digit"]["shape"]
    assert np.load(tmp_path / "out" / "digit.npy").tolist() == outputs["digit"]["data"]


def test_infer_makes_inputs_by_itself(server: ServerProcess) -> None:
    """`infer` with zeros or random needs no file."""
    done = _run("infer", "digits", "image=random:2,8,8", "--url", server.grpc)

    assert 0 == done.returncode, done.stderr
    assert "(2, 10)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent", "x=zeros"], "model 'absent' is not served here"),
        (["digits"], "image"),
        (["digits", "image=zeros:1,8"], "rank"),
    ],
)
def test_refusal_of_the_server_is_a_message(
    server: ServerProcess, arguments: list[str], told: str
) -> None:
    """What the server refuses is told in its words, with status 1."""
    done = _run("infer", *arguments, "--url", server.grpc)

    assert 1 == done.returncode
    assert told in done.stderr
    assert "Traceback" not in done.stderr
