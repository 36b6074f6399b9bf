"""The example of four transformers, as far as it needs no server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from examples.transformers.bert import BertSizes, term_scores
from examples.transformers.checkpoints import ARCHITECTURES, Checkpoint, read_checkpoint
from examples.transformers.hooks.sparse import sparsify
from examples.transformers.random_checkpoints import MINILM, RANDOM, write_random

MASKED = "BertForMaskedLM"
PAIRS = "BertForSequenceClassification"
DISTILLED = "DistilBertForSequenceClassification"


def _write(tmp_path: Path, architecture: str = DISTILLED, **config: Any) -> Path:
    """A random checkpoint with some of its configuration changed."""
    directory = write_random(tmp_path / "checkpoint", architecture)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return directory


def _change(directory: Path, change: Callable[[dict[str, Any]], object]) -> Checkpoint:
    """Read a checkpoint whose tensors were changed."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return read_checkpoint(directory)


@pytest.mark.parametrize("architecture", RANDOM)
def test_every_tensor_of_a_checkpoint_is_used(architecture: str, tmp_path: Path) -> None:
    """Whatever its published name is, each tensor has its place, under BERT's names."""
    directory = _write(tmp_path, architecture)

    checkpoint = read_checkpoint(directory)

    stored = load_file(directory / "model.safetensors")
    used = {id(weight): weight for weight in checkpoint.weights.values()}  # tied ones are one
    assert len(stored) == len(used)
    assert sum(tensor.sum() for tensor in stored.values()) == pytest.approx(
        sum(weight.sum() for weight in used.values()), rel=1e-5
    )
    assert {np.dtype(np.float32)} == {weight.dtype for weight in used.values()}


def test_packaged_minilm_is_a_checkpoint_cut_at_256_tokens() -> None:
    """What sentence-transformers cuts texts to counts, not the number of positions."""
    checkpoint = read_checkpoint(MINILM)

    assert "embedding" == ARCHITECTURES[checkpoint.architecture].bundle
    assert 256 == checkpoint.longest
    assert BertSizes(layers=6, heads=12, epsilon=1e-12) == checkpoint.sizes


def test_labels_of_a_checkpoint_are_in_the_order_of_its_classes(tmp_path: Path) -> None:
    """JSON's keys are text, and 10 would come before 2."""
    names = {str(index): f"name {index}" for index in reversed(range(12))}

    checkpoint = read_checkpoint(_write(tmp_path, id2label=names))

    assert tuple(f"name {index}" for index in range(12)) == checkpoint.labels


def test_decoder_is_the_word_embeddings_unless_it_is_another_tensor(tmp_path: Path) -> None:
    """Tied weights are one, stored once or twice; a decoder of its own is respected."""
    directory = _write(tmp_path, MASKED)
    words = "embeddings.word_embeddings.weight"
    decoder = "cls.predictions.decoder.weight"

    absent = read_checkpoint(directory).weights
    twice = _change(directory, lambda stored: stored.update({decoder: stored[f"bert.{words}"]}))
    other = _change(directory, lambda stored: stored.update({decoder: stored[decoder] + 1}))

    assert absent[decoder] is absent[words]
    assert twice.weights[decoder] is twice.weights[words]
    np.testing.assert_array_equal(other.weights[words] + 1, other.weights[decoder])


def test_half_precision_is_widened(tmp_path: Path) -> None:
    """The programs compute in float32, whatever the file stores."""
    directory = _write(tmp_path)
    name = "distilbert.embeddings.LayerNorm.bias"

    checkpoint = _change(
        directory, lambda stored: stored.update({name: stored[name].astype(np.float16)})
    )

    assert np.float32 == checkpoint.weights["embeddings.LayerNorm.bias"].dtype


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"architectures": ["GPT2Model"]}, "is a GPT2Model; expected one of BertModel, BertFor"),
        ({"architectures": None}, "is a nothing"),
        ({"activation": "relu"}, "computes with 'relu'; this example with 'gelu'"),
        ({"n_layers": 3}, r"no tensor distilbert\.transformer\.layer\.2\.attention\.q_lin\.weight"),
    ],
)
def test_checkpoints_of_other_models_are_refused(
    config: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """The message says what the checkpoint is, and what is expected."""
    with pytest.raises(SystemExit, match=complaint):
        read_checkpoint(_write(tmp_path, **config))


def test_checkpoints_with_other_files_or_heads_are_refused(tmp_path: Path) -> None:
    """A missing file, a cased vocabulary and other classes are told before anything is exported."""
    directory = _write(tmp_path, PAIRS)
    tokenizer = directory / "tokenizer_config.json"
    tokenizer.write_text('{"do_lower_case": false}')
    with pytest.raises(SystemExit, match="is a cased model"):
        read_checkpoint(directory)
    tokenizer.unlink()
    with pytest.raises(SystemExit, match="tells 5 classes apart, expected 1"):
        _change(
            directory,
            lambda stored: stored.update(
                {"classifier.weight": np.zeros((5, 32)), "classifier.bias": np.zeros(5)}
            ),
        )
    (directory / "model.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"has no model\.safetensors; save_pretrained"):
        read_checkpoint(directory)


def test_scores_are_rounded_half_to_even_to_see_whether_they_count() -> None:
    """0.005 is 0.00 and 0.015 is 0.02; values stay as they were; rows may be empty."""
    scores = np.array([[0, 0.005, 0.0051, 1], [0, 0, 0, 0], [0.004, 0.015, 0, 2]], np.float32)
    assert np.float32(0.5) == scores[0, 1] * 100  # the tie itself

    sparse = sparsify(scores)

    assert [2, 3, 1, 3] == sparse["indices"].tolist()
    np.testing.assert_array_equal(scores[[0, 0, 2, 2], [2, 3, 1, 3]], sparse["values"])
    assert [0, 2, 2, 4] == sparse["row_offsets"].tolist()
    dtypes = {name: array.dtype.name for name, array in sparse.items()}
    assert {"indices": "int32", "values": "float32", "row_offsets": "int64"} == dtypes


@pytest.mark.xla
def test_terms_are_scored_in_parts_of_any_size() -> None:
    """The largest of all unpadded tokens counts: of 3 in parts of 32, or of 1."""
    random = np.random.default_rng(0)

    def linear(name: str, inputs: int, outputs: int) -> dict[str, Any]:
        weight = random.normal(size=(outputs, inputs)).astype(np.float32)
        return {f"{name}.weight": weight, f"{name}.bias": weight[:, 0]}

    weights = {
        "embeddings.word_embeddings.weight": random.normal(size=(9, 4)).astype(np.float32),
        "embeddings.position_embeddings.weight": random.normal(size=(64, 4)).astype(np.float32),
        "embeddings.LayerNorm.weight": np.ones(4, np.float32),
        "embeddings.LayerNorm.bias": np.zeros(4, np.float32),
        **linear("cls.predictions.transform.dense", 4, 4),
        "cls.predictions.transform.LayerNorm.weight": np.ones(4, np.float32),
        "cls.predictions.transform.LayerNorm.bias": np.zeros(4, np.float32),
        **linear("cls.predictions.decoder", 4, 9),
    }
    ids = random.integers(0, 9, (2, 64))
    mask = np.arange(64) < np.array([[64], [3]])
    sizes = BertSizes(layers=0, heads=1, epsilon=1e-12)

    score = jax.jit(lambda *inputs: term_scores(sizes, *inputs))

    scores = score(ids, mask.astype(int), weights)

    alone = score(ids[1:, :3], np.ones((1, 3), int), weights)
    np.testing.assert_allclose(scores[1], alone[0], atol=1e-5)
    assert np.all(scores[0] >= 0)
    assert np.any(scores[0] > scores[1])
