"""BERT in plain JAX, and what four models make of its last layer.

What lives here: the arithmetic. What does not: weights (`examples.transformers.checkpoints`),
tokens (the bundles' hooks) and the export (`examples.transformers.make_bundle`).

Weights are by BERT's published names, without the model's prefix: ``embeddings.LayerNorm.bias``.
DistilBERT is BERT without token types and pooler, under other names.

Source: Devlin et al. 2018 for the encoder; Formal et al. 2021 (SPLADE v2) for `term_scores`.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

__all__ = ["BertSizes", "Weights", "embedding", "relevance", "sentiment", "term_scores"]

Weights: TypeAlias = dict[str, Any]

_TOKENS_AT_ONCE = 32


@dataclass(frozen=True)
class BertSizes:
    """What the shapes of the weights do not tell.

    Attributes:
        layers: of the encoder.
        heads: of each attention.
        epsilon: of each normalisation.
    """

    layers: int
    heads: int
    epsilon: float


def embedding(sizes: BertSizes, input_ids: Any, attention_mask: Any, weights: Weights) -> Any:
    """One vector per text: the mean over its tokens, of length 1.

    Shapes:
        input_ids: (n, s) integers; attention_mask: (n, s), 1 for a token and 0 for padding.
        result: (n, width).
    """
    x = _encode(sizes, input_ids, attention_mask, None, weights)
    counted = attention_mask.astype(jnp.float32)[:, :, None]
    mean = (x * counted).sum(axis=1) / jnp.maximum(counted.sum(axis=1), 1e-9)
    length = jnp.sqrt((mean * mean).sum(axis=-1, keepdims=True))
    return mean / jnp.maximum(length, 1e-12)


def term_scores(sizes: BertSizes, input_ids: Any, attention_mask: Any, weights: Weights) -> Any:
    """What each term of the vocabulary counts for a text: the largest log(1 + logit) of its tokens.

    Shapes:
        input_ids, attention_mask: as for `embedding`.
        result: (n, vocabulary), 0 or more.
    """
    x = _encode(sizes, input_ids, attention_mask, None, weights)
    x = jax.nn.gelu(_linear(x, weights, "cls.predictions.transform.dense"), approximate=False)
    x = _normalise(x, weights, "cls.predictions.transform.LayerNorm", sizes.epsilon)

    def score(best: Any, tokens: tuple[Any, Any]) -> tuple[Any, None]:
        states, counted = tokens
        logits = _linear(states, weights, "cls.predictions.decoder")
        return jnp.maximum(best, jnp.where(counted[:, :, None] == 0, 0.0, logits).max(axis=1)), None

    # Some tokens at a time: the logits of 8 texts of 512 tokens would take 500 MB.
    n, length, width = x.shape
    at_once = math.gcd(length, _TOKENS_AT_ONCE)
    blocks = x.reshape(n, length // at_once, at_once, width).swapaxes(0, 1)
    masks = attention_mask.reshape(n, length // at_once, at_once).swapaxes(0, 1)
    terms = weights["cls.predictions.decoder.bias"].shape[0]
    nothing = jnp.zeros((n, terms), jnp.float32)
    return jnp.log1p(jax.lax.scan(score, nothing, (blocks, masks))[0])


def relevance(
    sizes: BertSizes, input_ids: Any, attention_mask: Any, token_type_ids: Any, weights: Weights
) -> Any:
    """How well the second text of each pair answers the first, as a logit.

    Shapes:
        input_ids, attention_mask: as for `embedding`; token_type_ids: (n, s), 1 in the second text.
        result: (n,).
    """
    x = _encode(sizes, input_ids, attention_mask, token_type_ids, weights)
    pooled = jnp.tanh(_linear(x[:, 0], weights, "pooler.dense"))
    return _linear(pooled, weights, "classifier")[:, 0]


def sentiment(sizes: BertSizes, input_ids: Any, attention_mask: Any, weights: Weights) -> Any:
    """Logits of the classes.

    Shapes:
        input_ids, attention_mask: as for `embedding`.
        result: (n, classes).
    """
    x = _encode(sizes, input_ids, attention_mask, None, weights)
    return _linear(jax.nn.relu(_linear(x[:, 0], weights, "pre_classifier")), weights, "classifier")


def _encode(
    sizes: BertSizes, input_ids: Any, attention_mask: Any, type_ids: Any, weights: Weights
) -> Any:
    """The last layer, (n, s, width)."""
    x = weights["embeddings.word_embeddings.weight"][input_ids]
    x = x + weights["embeddings.position_embeddings.weight"][: input_ids.shape[1]]
    segments = weights.get("embeddings.token_type_embeddings.weight")
    if segments is not None:
        x = x + segments[0 if type_ids is None else type_ids]
    x = _normalise(x, weights, "embeddings.LayerNorm", sizes.epsilon)
    # Padding gets no attention. The mask is added to scores, where exp() makes it an exact zero.
    hidden = jnp.where(attention_mask == 0, jnp.finfo(jnp.float32).min, 0.0)[:, None, None, :]
    for index in range(sizes.layers):
        prefix = f"encoder.layer.{index}."
        layer = {
            name.removeprefix(prefix): weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }
        x = _encode_layer(sizes, x, hidden, layer)
    return x


def _encode_layer(sizes: BertSizes, x: Any, hidden: Any, layer: Weights) -> Any:
    """One transformer layer, normalised after each half as BERT does."""
    attended = _linear(_attend(sizes.heads, x, hidden, layer), layer, "attention.output.dense")
    x = _normalise(attended + x, layer, "attention.output.LayerNorm", sizes.epsilon)
    inner = jax.nn.gelu(_linear(x, layer, "intermediate.dense"), approximate=False)
    outer = _linear(inner, layer, "output.dense")
    return _normalise(outer + x, layer, "output.LayerNorm", sizes.epsilon)


def _attend(heads: int, x: Any, hidden: Any, layer: Weights) -> Any:
    n, tokens, width = x.shape
    query, key, value = (
        _linear(x, layer, f"attention.self.{role}").reshape(n, tokens, heads, -1)
        for role in ("query", "key", "value")
    )
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / (width // heads) ** 0.5
    attention = jax.nn.softmax(scores + hidden, axis=-1)
    return jnp.einsum("nhqk,nkhd->nqhd", attention, value).reshape(n, tokens, width)


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalise(x: Any, weights: Weights, name: str, epsilon: float) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    scaled = centred / jnp.sqrt(variance + epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
