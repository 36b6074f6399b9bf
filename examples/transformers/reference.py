"""What the original libraries say of some texts, as requests and answers of the four bundles.

What lives here: reading `reference.json`, which `examples.transformers.make_reference` recorded,
and comparing answers with it. What does not: asking a server (`examples.transformers.compare`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

__all__ = ["ROW_INPUTS", "Arrays", "Reference", "error_of", "load_reference", "strings"]

Arrays: TypeAlias = Mapping[str, Any]
"""Arrays by the name of the tensor."""

ROW_INPUTS = {
    "embedding": "texts",
    "splade": "texts",
    "cross_encoder": "candidates",
    "sentiment": "texts",
}
"""By bundle: the input that has a row per text."""


@dataclass(frozen=True)
class Reference:
    """What the originals computed.

    Attributes:
        requests: inputs by bundle; each has all texts.
        answers: outputs by bundle, from the number of a text on to the one before which it ends.
        made_with: versions of the libraries that computed it.
    """

    requests: Mapping[str, Arrays]
    answers: Mapping[str, Callable[[slice], Arrays]]
    made_with: Mapping[str, str]


def load_reference() -> Reference:
    """Read `reference.json`."""
    content = json.loads(Path(__file__).with_name("reference.json").read_text("utf-8"))
    texts = {"texts": strings(content["texts"])}
    pairs = {"query": strings([content["query"]]), "candidates": strings(content["candidates"])}
    embeddings = np.array(content["embedding"], np.float32)
    relevance = np.array(content["cross_encoder"], np.float32)[:, 0]
    sentiments = np.array(content["sentiment"], np.float32)
    return Reference(
        requests={
            "embedding": texts,
            "splade": texts,
            "cross_encoder": pairs,
            "sentiment": texts,
        },
        answers={
            "embedding": lambda rows: {"embedding": embeddings[rows]},
            "splade": lambda rows: _sparse(content["splade"][rows]),
            "cross_encoder": lambda rows: _relevance(relevance[rows]),
            "sentiment": lambda rows: _sentiment(sentiments[rows]),
        },
        made_with=content["made_with"],
    )


def strings(texts: Sequence[str]) -> Any:
    """A tensor of strings, as every client takes it: an array of `bytes`."""
    return np.array([text.encode() for text in texts], object)


def error_of(answer: Arrays, expected: Arrays) -> float:
    """The largest error of the numbers.

    Raises:
        SystemExit: names, shapes, types or integers differ.
    """
    if answer.keys() != expected.keys():
        raise SystemExit(f"outputs are {sorted(answer)}, expected {sorted(expected)}")
    worst = 0.0
    for name, wanted in expected.items():
        got = answer[name]
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
            raise SystemExit(
                f"{name} is {got.dtype}{list(got.shape)}, expected"
                f" {wanted.dtype}{list(wanted.shape)}"
            )
        if wanted.dtype.kind == "i" and not np.array_equal(got, wanted):
            raise SystemExit(f"{name} is {got}, expected {wanted}")
        worst = max(worst, float(np.max(np.abs(got.astype(float) - wanted), initial=0)))
    return worst


def _sparse(rows: Sequence[Mapping[str, Sequence[Any]]]) -> Arrays:
    return {
        "indices": np.concatenate([np.array(row["indices"], np.int32) for row in rows]),
        "values": np.concatenate([np.array(row["values"], np.float32) for row in rows]),
        "row_offsets": np.cumsum([0, *(len(row["indices"]) for row in rows)]),
    }


def _relevance(logits: Any) -> Arrays:
    return {"logits": logits, "prob": 1 / (1 + np.exp(-logits))}


def _sentiment(logits: Any) -> Arrays:
    powers = np.exp(logits)
    return {
        "logits": logits,
        "probs": powers / powers.sum(axis=1, keepdims=True),
        "label_id": logits.argmax(axis=1).astype(np.int32),
    }
