"""A voice activity detector exported from its TorchScript file, checked, served and compared."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.server_process import ServerProcess, running_server

from examples.torchscript.compare import MODEL, TOLERANCE, original_answers, served_answers
from examples.torchscript.make_bundle import write_detector
from examples.torchscript.vad import synthetic_audio
from hloserve.cli.main import run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # The program is traced once and compiled for two sizes, three times over.
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported detector, in a repository of its own."""
    directory = tmp_path_factory.mktemp("repository") / MODEL
    write_detector(directory, sizes=(1, 2))
    return directory


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of that repository."""
    with running_server(
        tmp_path_factory.mktemp("vad"), "serve", str(bundle.parent), start_s=200
    ) as server:
        yield server


def test_bundle_of_a_torchscript_file_passes_every_check(bundle: Path) -> None:
    """`hloserve check --run` finds nothing, each size included."""
    assert run(["check", "--run", str(bundle)]) == 0


@pytest.mark.parametrize("streams", [1, 2])
def test_streaming_through_the_server_equals_the_file(server: ServerProcess, streams: int) -> None:
    """Speech is found where the original finds it, with the state kept by the client."""
    audios = [synthetic_audio(2.0, seed) for seed in range(streams)]

    original = original_answers(audios)
    served = served_answers(server.grpc, audios)

    assert original.max() > 0.5  # there is speech to be found
    np.testing.assert_allclose(served, original, rtol=0, atol=TOLERANCE)
