"""The Flax and Equinox examples: exported, checked, served together, asked and compared."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_process import HLOSERVE, ServerProcess, running_server

import examples.equinox_cnn.compare
import examples.equinox_cnn.make_bundle
import examples.flax_mlp.compare
import examples.flax_mlp.make_bundle

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # Two models are trained and exported, and six programs compiled.
    pytest.mark.timeout(240),
]

_COMPARISONS = {
    "flax_mlp": examples.flax_mlp.compare.compare,
    "equinox_cnn": examples.equinox_cnn.compare.compare,
}
_CLIENTS = ("hloserve.Client", "tritonclient.grpc", "tritonclient.http")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both bundles in ``repository``, and a checkpoint by the name of each."""
    directory = tmp_path_factory.mktemp("examples")
    bundles = directory / "repository"
    examples.flax_mlp.make_bundle.write_example(bundles / "flax_mlp", directory / "flax_mlp")
    examples.equinox_cnn.make_bundle.write_example(
        bundles / "equinox_cnn", directory / "equinox_cnn", epochs=1
    )
    return directory


@pytest.fixture(scope="module")
def server(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of both."""
    output = tmp_path_factory.mktemp("server")
    with running_server(output, "serve", str(exported / "repository"), start_s=200) as server:
        yield server


def test_bundles_pass_the_check_that_runs_them(exported: Path) -> None:
    """`hloserve check --run` has nothing to say about either, warnings included."""
    done = subprocess.run(
        [HLOSERVE, "check", "--run", "--strict", str(exported / "repository")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", _COMPARISONS)
def test_served_answers_are_the_modules_own(
    example: str, server: ServerProcess, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every client at every batch size agrees with the framework to 1e-4."""
    compare = _COMPARISONS[example]

    compare(exported / example, http=server.http, grpc=server.grpc)

    told = capsys.readouterr().out.splitlines()[1:]
    expected = [(client, rows) for rows in ("1", "8", "32") for client in _CLIENTS]
    assert expected == [tuple(line.split()[:2]) for line in told]
