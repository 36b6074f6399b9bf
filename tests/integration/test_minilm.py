"""all-MiniLM-L6-v2 exported, served, and compared with what the original computed."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.demo_clients import CLIENTS, Arrays
from support.direct_run import run_program
from support.server_process import ServerProcess, running_server

import hloserve
from examples.minilm.compare import MODEL, TOLERANCE
from examples.minilm.make_bundle import write_minilm
from examples.minilm.sentences import LENGTHS, load_reference, tokenise

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # Six programs are compiled and each is run twice before the server is ready.
    pytest.mark.timeout(240),
]

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model, in a repository of its own."""
    directory = tmp_path_factory.mktemp("repository") / MODEL
    write_minilm(directory)
    return directory


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of that repository."""
    with running_server(
        tmp_path_factory.mktemp("minilm"), "serve", str(bundle.parent), start_s=200
    ) as server:
        yield server


@pytest.fixture(scope="module")
def requests() -> dict[str, Arrays]:
    """One request per program under test; each fills it exactly."""
    sentences = load_reference().sentences
    return {
        "model.v0.b1.mlir": tokenise(sentences[:1]),
        "model.v1.b8.mlir": tokenise(sentences),
        "model.v0.b32.mlir": tokenise(sentences[:4] * 8),
    }


@pytest.fixture(scope="module")
def direct(bundle: Path, requests: dict[str, Arrays]) -> list[Any]:
    """What those programs answer without a server."""
    return [
        run_program(bundle, file, list(inputs.values()))["embedding"]
        for file, inputs in requests.items()
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_answers_equal_a_direct_run_and_the_original(
    client: str, server: ServerProcess, requests: dict[str, Arrays], direct: list[Any]
) -> None:
    """Bit for bit the program's own answer, and the original's to the tolerance."""
    embeddings = load_reference().embeddings
    originals = (embeddings[:1], embeddings, np.tile(embeddings[:4], (8, 1)))

    answers = CLIENTS[client](server, MODEL, list(requests.values()))

    for answer, wanted, original in zip(answers, direct, originals, strict=True):
        np.testing.assert_array_equal(answer["embedding"], wanted)
        np.testing.assert_allclose(answer["embedding"], original, rtol=0, atol=TOLERANCE)


def test_comparison_of_the_example_passes(server: ServerProcess) -> None:
    """What the README tells a reader to run, with its exit status."""
    addresses = ("--http", server.http, "--grpc", server.grpc)

    done = subprocess.run(
        [sys.executable, "-m", "examples.minilm.compare", *addresses],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=_ROOT,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_largest_program_agrees_with_the_original(server: ServerProcess) -> None:
    """32 sentences of 128 tokens, the reference four times over."""
    reference = load_reference()

    (answer,) = CLIENTS["hloserve"](server, MODEL, [tokenise(reference.sentences * 4)])

    wanted = np.tile(reference.embeddings, (4, 1))
    np.testing.assert_allclose(answer["embedding"], wanted, rtol=0, atol=TOLERANCE)


def test_length_of_padding_does_not_change_the_meaning(server: ServerProcess) -> None:
    """Both variants give a sentence the same embedding."""
    sentences = load_reference().sentences[:5]

    short, long = CLIENTS["hloserve"](
        server, MODEL, [tokenise(sentences, length) for length in LENGTHS]
    )

    np.testing.assert_allclose(short["embedding"], long["embedding"], atol=1e-6)


def test_length_that_is_not_compiled_is_refused_with_those_that_are(server: ServerProcess) -> None:
    """The caller learns what to pad to."""
    with (
        hloserve.Client(server.grpc) as client,
        pytest.raises(hloserve.HloserveError, match=r"32.*128") as refusal,
    ):
        client.infer(MODEL, tokenise(["Neither short nor long."], 64))

    assert refusal.value.code.value == "INVALID_ARGUMENT"


def test_server_without_the_demo_has_no_page(server: ServerProcess) -> None:
    """`hloserve serve` answers the protocol's paths and no others."""
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"http://{server.http}/demo", timeout=10)

    refusal.value.close()
    assert refusal.value.code == 404
