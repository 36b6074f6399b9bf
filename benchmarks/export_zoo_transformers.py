"""Small random configurations of transformers for `benchmarks.export_zoo`.

What lives here: `MODELS`, from a name to a function of makers of token ids and images, which gives
a module and its example inputs.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import transformers as tf

__all__ = ["MODELS"]

Build: TypeAlias = Callable[[Callable[..., Any], Callable[[int], Any]], tuple[Any, Any]]

_SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


class _Output(torch.nn.Module):
    """One field of what a model returns, without a cache."""

    def __init__(self, model: Any, field: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.field, self.fixed = model, field, fixed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.model(*args, **kwargs, **self.fixed), self.field)


def _encoder(model: Any, config: Any, field: str, **more: Any) -> Build:
    def build(ids: Any, _images: Any) -> tuple[Any, Any]:
        tokens = ids()
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return _Output(model(config(**more)), field), inputs

    return build


def _decoder(model: Any, config: Any, dtype: Any = torch.float32, **more: Any) -> Build:
    def build(ids: Any, _images: Any) -> tuple[Any, Any]:
        return _Output(model(config(**more)).to(dtype), "logits", use_cache=False), ids()

    return build


def _vision(model: Any, config: Any, field: str, size: int, **more: Any) -> Build:
    def build(_ids: Any, images: Any) -> tuple[Any, Any]:
        return _Output(model(config(**more)), field), images(size)

    return build


def _clip(ids: Any, images: Any) -> tuple[Any, Any]:
    parts = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
    config = tf.CLIPConfig(
        text_config={**_SMALL, "eos_token_id": 98, "bos_token_id": 1},
        vision_config={**parts, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = tf.CLIPModel(config)
    return _ClipParts(model), {"input_ids": ids(), "pixel_values": images(32)}


class _ClipParts(torch.nn.Module):
    """Both embeddings, row by row; the matrix of all pairs has no batch axis to speak of."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, pixel_values: Any) -> Any:
        result = self.model(input_ids=input_ids, pixel_values=pixel_values)
        return result.text_embeds, result.image_embeds


def _whisper(_ids: Any, _images: Any) -> tuple[Any, Any]:
    config = tf.WhisperConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = tf.WhisperModel(config).get_encoder()
    return _Output(model, "last_hidden_state"), torch.randn(2, 16, 100)


def _detr(_ids: Any, images: Any) -> tuple[Any, Any]:
    config = tf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=tf.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            out_features=["stage4"],
        ),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=10,
        num_labels=7,
    )
    model = tf.DetrForObjectDetection(config)
    return _Output(model, "logits"), images(64)


MODELS: Mapping[str, Build] = {
    "BERT classifier": _encoder(
        tf.BertForSequenceClassification, tf.BertConfig, "logits", **_SMALL
    ),
    "DistilBERT": _encoder(
        tf.DistilBertModel,
        tf.DistilBertConfig,
        "last_hidden_state",
        vocab_size=99,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
    ),
    "RoBERTa": _encoder(
        tf.RobertaModel,
        tf.RobertaConfig,
        "last_hidden_state",
        **_SMALL,
        max_position_embeddings=40,
    ),
    "GPT-2": _decoder(
        tf.GPT2LMHeadModel, tf.GPT2Config, vocab_size=99, n_embd=32, n_layer=2, n_head=4
    ),
    "Llama, grouped queries": _decoder(
        tf.LlamaForCausalLM, tf.LlamaConfig, **_SMALL, num_key_value_heads=2
    ),
    "Qwen2, bf16": _decoder(
        tf.Qwen2ForCausalLM, tf.Qwen2Config, torch.bfloat16, **_SMALL, num_key_value_heads=2
    ),
    "Mamba": _decoder(
        tf.MambaForCausalLM, tf.MambaConfig, vocab_size=99, hidden_size=32, num_hidden_layers=2
    ),
    "T5 encoder": _encoder(
        tf.T5EncoderModel,
        tf.T5Config,
        "last_hidden_state",
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
    ),
    "ViT": _vision(
        tf.ViTForImageClassification,
        tf.ViTConfig,
        "logits",
        32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    ),
    "CLIP": _clip,
    "Whisper encoder": _whisper,
    "DETR": _detr,
}
