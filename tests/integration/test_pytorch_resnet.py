"""ResNet-50 in PyTorch exported, checked, served, and compared with torch."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_process import HLOSERVE, ServerProcess, running_server

from examples.pytorch_resnet.compare import MODEL, TOLERANCE, compare
from examples.pytorch_resnet.make_bundle import write_example

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # ResNet-50 is traced once, and compiled twice in the export and twice in the server.
    pytest.mark.timeout(240),
]

_SIZES = (1, 4)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the bundle in ``repository`` and the checkpoint; small images."""
    directory = tmp_path_factory.mktemp("resnet")
    write_example(
        directory / "repository" / MODEL, directory / "checkpoint", sizes=_SIZES, image_size=64
    )
    return directory


@pytest.fixture(scope="module")
def server(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of that repository."""
    output = tmp_path_factory.mktemp("server")
    with running_server(output, "serve", str(exported / "repository"), start_s=200) as server:
        yield server


def test_served_answers_are_those_of_torch(exported: Path, server: ServerProcess) -> None:
    """At every batch size, to 1e-4 of how far two images' answers are apart."""
    errors = compare(exported / "checkpoint", grpc=server.grpc)

    assert set(_SIZES) == set(errors)
    assert max(errors.values()) <= TOLERANCE


def test_bundle_holds_no_weight_twice(exported: Path) -> None:
    """Its size is the weights, once, and programs of a few kilobytes."""
    files = {file.name: file.stat().st_size for file in (exported / "repository" / MODEL).iterdir()}
    weights_bytes = 4 * 25_610_152 + 53 * 8  # parameters and statistics, and counts of batches

    assert weights_bytes <= files.pop("weights.safetensors") <= weights_bytes + 60_000
    assert sum(files.values()) < 40_000


def test_bundle_passes_the_check(exported: Path) -> None:
    """`hloserve check` finds nothing to say about it, warnings included."""
    done = subprocess.run(
        [HLOSERVE, "check", "--strict", str(exported / "repository" / MODEL)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
