"""BERT in NumPy and float64, written from the paper: an oracle for the MiniLM example.

Slow, obvious, one sentence at a time, without padding or masks; it shares nothing with the JAX
version but the weights.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import erf  # type: ignore[import-untyped]  # it has no types

__all__ = ["embed_sentences"]

HEADS = 12
EPSILON = 1e-12


def embed_sentences(sentences: Sequence[Sequence[int]], weights: Mapping[str, Any]) -> Any:
    """The unit-length means of the last layer's token vectors, (n, 384) float64."""
    words = weights["embeddings.word_embeddings.weight"]
    small = {name: value for name, value in weights.items() if value is not words}
    wide = {name: np.asarray(value, np.float64) for name, value in small.items()}
    rows = [words[np.array(tokens)].astype(np.float64) for tokens in sentences]
    return np.stack([_embed(row, wide) for row in rows])


def _embed(words: Any, w: Mapping[str, Any]) -> Any:
    x = (
        words
        + w["embeddings.position_embeddings.weight"][: len(words)]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = _layer_norm(x, w, "embeddings.LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}."
        x = _layer_norm(x + _attention(x, w, at), w, at + "attention.output.LayerNorm")
        inner = _dense(x, w, at + "intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
        x = _layer_norm(x + _dense(inner, w, at + "output.dense"), w, at + "output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _attention(x: Any, w: Mapping[str, Any], at: str) -> Any:
    """Each head attends on its own slice of the width."""
    query, key, value = (_dense(x, w, f"{at}attention.self.{r}") for r in ("query", "key", "value"))
    heads = []
    for q, k, v in zip(*(np.split(a, HEADS, axis=1) for a in (query, key, value)), strict=True):
        scores = np.exp(q @ k.T / math.sqrt(q.shape[1]))
        heads.append(scores / scores.sum(axis=1, keepdims=True) @ v)
    return _dense(np.concatenate(heads, axis=1), w, f"{at}attention.output.dense")


def _dense(x: Any, w: Mapping[str, Any], name: str) -> Any:
    """An affine map, the weight stored (out, in) as torch does."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _layer_norm(x: Any, w: Mapping[str, Any], name: str) -> Any:
    """Zero mean and unit variance per token, then scaled and shifted."""
    scaled = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]
