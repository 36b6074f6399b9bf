"""The example of four transformers: exported, checked, served, and compared with the originals."""

import contextlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from support.server_process import ServerProcess, running_server

import hloserve
from examples.comparing import TOLERANCE
from examples.transformers.compare import compare
from examples.transformers.demo import Ask, ask_own, ask_triton_classes, show
from examples.transformers.make_bundle import write_bundle_of, write_random_bundle
from examples.transformers.random_checkpoints import MINILM, RANDOM
from examples.transformers.reference import error_of, load_reference, strings
from hloserve.cli.main import run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # Four models are exported, and five programs compiled three times, two of them of MiniLM.
    pytest.mark.timeout(400),
]

_SIZES = (4,)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four bundles, for batches of 4, some for one length; larger requests run in parts."""
    directory = tmp_path_factory.mktemp("repository")
    write_bundle_of(MINILM, directory, sizes=_SIZES, lengths=(32, 256))
    for architecture in RANDOM:
        write_random_bundle(architecture, directory, sizes=_SIZES, lengths=(128,))
    return directory


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of all four."""
    output = tmp_path_factory.mktemp("server")
    with running_server(output, "serve", str(repository), start_s=300) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[hloserve.Client]:
    """This project's client."""
    with hloserve.Client(server.grpc) as client:
        yield client


def test_embeddings_of_raw_strings_are_those_of_sentence_transformers(
    client: hloserve.Client,
) -> None:
    """To 1e-4, whatever is in the strings, and cut at the same 256 tokens."""
    texts, expected = load_reference().requests["embedding"], load_reference().answers["embedding"]

    answer = client.infer("embedding", texts)

    np.testing.assert_allclose(
        answer["embedding"], expected(slice(None))["embedding"], rtol=0, atol=1e-4
    )


def test_every_client_gets_what_the_original_libraries_say(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """What run.sh does last: four bundles, three clients, all texts together and one by one."""
    compare(server.http, server.grpc)

    told = capsys.readouterr().out.splitlines()
    assert 3 * 4 * 2 == sum(line.startswith(("  hloserve.", "  tritonclient.")) for line in told)
    assert "largest error" in told[0]


def test_bundles_pass_the_check(repository: Path) -> None:
    """Manifests, programs, weights, hooks and labels are in order, without a warning."""
    assert run(["check", "--strict", str(repository)]) == 0


def test_metadata_has_the_shapes_of_the_arrays(client: hloserve.Client) -> None:
    """The text is the first axis, so that requests are counted by texts and share batches."""
    shapes = {
        model: {tensor.name: list(tensor.shape) for tensor in (*metadata.inputs, *metadata.outputs)}
        for model in ("embedding", "splade", "cross_encoder", "sentiment")
        for metadata in [client.model_metadata(model)]
    }

    assert shapes == {
        "embedding": {"texts": [-1], "embedding": [-1, 384]},
        "splade": {"texts": [-1], "indices": [-1], "values": [-1], "row_offsets": [-1]},
        "cross_encoder": {"query": [1], "candidates": [-1], "logits": [-1], "prob": [-1]},
        "sentiment": {"texts": [-1], "logits": [-1, 2], "probs": [-1, 2], "label_id": [-1]},
    }


def test_demo_shows_the_same_by_both_clients(server: ServerProcess) -> None:
    """Similarities, terms, ranks and sentiments with their labels."""
    with (
        hloserve.Client(server.grpc) as own,
        tritonclient.grpc.InferenceServerClient(server.grpc) as triton,
    ):
        shown = [_shown(ask) for ask in (ask_own(own), ask_triton_classes(triton))]

    assert shown[0] == shown[1]
    assert "   1.00  0.50 -0.09  A man is playing a guitar on the stage." in shown[0]
    assert {"NEGATIVE", "POSITIVE"} == {line.split()[0] for line in shown[0][-3:]}


def _shown(ask: Ask) -> list[str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        show(ask)
    return output.getvalue().splitlines()


def test_sparse_rows_stay_with_their_texts_when_requests_share_batches(
    client: hloserve.Client,
) -> None:
    """Each of many requests at once gets the terms of its own texts, from offset 0 on."""
    reference = load_reference()
    texts, answer_of = reference.requests["splade"]["texts"], reference.answers["splade"]
    rows = [slice(at % 7, at % 7 + 1 + at % 2) for at in range(28)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda row: client.infer("splade", {"texts": texts[row]}), rows))

    for row, answer in zip(rows, answers, strict=True):
        assert error_of(answer, answer_of(row)) <= TOLERANCE


def test_strings_that_are_no_text_are_served(client: hloserve.Client) -> None:
    """What is not UTF-8 is dropped, as the tokeniser drops U+FFFD."""
    texts = np.array([b"good \xff\xfefilm", b"good film"], object)

    answer = client.infer("sentiment", {"texts": texts})["logits"]

    np.testing.assert_allclose(answer[0], answer[1], rtol=1e-6)


def test_two_questions_at_once_are_refused(client: hloserve.Client) -> None:
    """The message has the tensor, and how many there may be."""
    inputs = {"query": strings(["who", "why"]), "candidates": strings(["me", "so"])}

    with pytest.raises(hloserve.HloserveError, match=r"'query'.* 2, expected 1") as refusal:
        client.infer("cross_encoder", inputs)

    assert "INVALID_ARGUMENT" == refusal.value.code.value
