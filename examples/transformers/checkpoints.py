"""Checkpoints as the Hugging Face hub has them: a directory to the weights of one of four models.

What lives here: which files and tensors are expected, and what is said when they are not there.
What does not: what is computed with them (`examples.transformers.bert`), and small checkpoints to
try it with (`examples.transformers.random_checkpoints`).

A directory needs ``config.json``, ``model.safetensors`` and ``vocab.txt``. Nothing is downloaded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from examples.transformers.bert import BertSizes, Weights

__all__ = ["ARCHITECTURES", "Architecture", "Checkpoint", "read_checkpoint"]


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, and the bundle that is made of its checkpoints.

    Attributes:
        bundle: name of the bundle.
        prefix: in front of the encoder's tensors; the bare encoder has none.
        head: what follows the encoder; each has a weight and a bias.
        classes: how many the head tells apart; None for a head that tells none.
        is_distilled: it is DistilBERT.
    """

    bundle: str
    prefix: str
    head: tuple[str, ...]
    classes: int | None = None
    is_distilled: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "BertModel": Architecture("embedding", "", ()),
    "BertForMaskedLM": Architecture(
        "splade",
        "bert.",
        (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
        ),
    ),
    "BertForSequenceClassification": Architecture(
        "cross_encoder", "bert.", ("pooler.dense", "classifier"), classes=1
    ),
    "DistilBertForSequenceClassification": Architecture(
        "sentiment",
        "distilbert.",
        ("pre_classifier", "classifier"),
        classes=2,
        is_distilled=True,
    ),
}
"""By the name in ``architectures`` of config.json."""

_LAYER = (
    *(f"attention.self.{role}" for role in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
_DISTILLED = {
    "encoder.layer": "transformer.layer",
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
_CONFIG = {
    "layers": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "activation": ("hidden_act", "activation"),
}
"""Keys of config.json, of BERT and of DistilBERT."""


@dataclass(frozen=True)
class Checkpoint:
    """What a bundle is made of.

    Attributes:
        architecture: one of `ARCHITECTURES`.
        sizes: of the encoder.
        weights: float32, by the names of BERT without prefix.
        vocabulary: the file.
        longest: most tokens that a text may have: what sentence-transformers cuts texts to, or
            else what there are positions for.
        labels: names of the classes.
    """

    architecture: str
    sizes: BertSizes
    weights: Weights
    vocabulary: Path
    longest: int
    labels: tuple[str, ...]


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        SystemExit: it is not one of the four; the text says what is missing or different.
    """
    config = json.loads(_existing(directory, "config.json").read_text("utf-8"))
    name = (config.get("architectures") or ["nothing"])[0]
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise SystemExit(f"{directory} is a {name}; expected one of {', '.join(ARCHITECTURES)}")
    distilled = architecture.is_distilled
    layers, heads, activation = (config.get(keys[distilled]) for keys in _CONFIG.values())
    if activation != "gelu":
        raise SystemExit(f"{directory} computes with {activation!r}; this example with 'gelu'")
    if _optional(directory, "tokenizer_config.json").get("do_lower_case") is False:
        raise SystemExit(f"{directory} is a cased model; the hooks here tokenise for uncased ones")
    positions = config["max_position_embeddings"]
    labels = config.get("id2label", {})
    return Checkpoint(
        architecture=name,
        # DistilBERT's is fixed, and not in its configuration.
        sizes=BertSizes(layers, heads, config.get("layer_norm_eps", 1e-12)),
        weights=_read_weights(_existing(directory, "model.safetensors"), architecture, layers),
        vocabulary=_existing(directory, "vocab.txt"),
        longest=min(
            _optional(directory, "sentence_bert_config.json").get("max_seq_length", positions),
            positions,
        ),
        labels=tuple(labels[str(index)] for index in range(len(labels))),
    )


def _existing(directory: Path, name: str) -> Path:
    file = directory / name
    if not file.exists():
        hint = "; save_pretrained of transformers writes it" * name.endswith(".safetensors")
        raise SystemExit(f"{directory} has no {name}{hint}")
    return file


def _optional(directory: Path, name: str) -> Mapping[str, Any]:
    file = directory / name
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return content


def _read_weights(file: Path, architecture: Architecture, layers: int) -> Weights:
    weights = {}
    with safe_open(file, "numpy") as tensors:
        stored = set(tensors.keys())
        for name in _names(architecture, layers):
            found = [each for each in _stored_names(name, architecture) if each in stored]
            if not found:
                wanted = " or ".join(_stored_names(name, architecture))
                raise SystemExit(f"{file} has no tensor {wanted}")
            weights[name] = tensors.get_tensor(found[0]).astype(np.float32)
    classes = len(weights["classifier.bias"]) if architecture.classes else None
    if classes != architecture.classes:
        raise SystemExit(f"{file} tells {classes} classes apart, expected {architecture.classes}")
    decoder = weights.get("cls.predictions.decoder.weight")
    words = weights["embeddings.word_embeddings.weight"]
    if decoder is not None and np.array_equal(decoder, words):
        weights["cls.predictions.decoder.weight"] = words  # tied: one weight of the bundle
    return weights


def _names(architecture: Architecture, layers: int) -> Iterator[str]:
    """The tensors that the model computes with, by BERT's names."""
    tables = (
        ["word", "position"] if architecture.is_distilled else ["word", "position", "token_type"]
    )
    yield from (f"embeddings.{table}_embeddings.weight" for table in tables)
    parts = ["embeddings.LayerNorm"]
    parts += [f"encoder.layer.{index}.{part}" for index in range(layers) for part in _LAYER]
    for part in (*parts, *architecture.head):
        yield f"{part}.weight"
        yield f"{part}.bias"


def _stored_names(name: str, architecture: Architecture) -> tuple[str, ...]:
    """What a tensor may be called in the file, the first of them first."""
    if name.startswith("cls.predictions.decoder."):
        # Tied tensors are stored once, under either name.
        tied = {"weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}
        return (name, tied[name.rpartition(".")[2]])
    if architecture.is_distilled:
        for ours, theirs in _DISTILLED.items():
            name = name.replace(f"{ours}.", f"{theirs}.", 1)
    is_head = name.startswith(("classifier.", "pre_classifier.", "cls."))
    return (name if is_head else architecture.prefix + name,)
