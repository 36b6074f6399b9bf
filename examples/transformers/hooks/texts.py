"""Texts as tokens of a compiled length: what the hooks of all four bundles share.

Beside it in the bundle lie ``vocab.txt``, and the manifest, which has the lengths.
"""

from pathlib import Path

from hloserve import load_manifest
from hloserve.hooks.text import BertTokenizer, pad_batch

__all__ = ["tokenise", "tokenise_pairs"]

_BUNDLE = Path(__file__).parent
_TOKENIZER = BertTokenizer(_BUNDLE / "vocab.txt")
_MANIFEST = load_manifest(_BUNDLE)
_LENGTHS = sorted(sizes["s"] for sizes in _MANIFEST.input_shapes) or [
    _MANIFEST.executable_inputs[0].shape[1]
]


def tokenise(texts):
    """What a program takes for some texts; the longest program's length is where they are cut."""
    batch = pad_batch(_TOKENIZER.encode_batch(texts, _LENGTHS[-1]), _LENGTHS)
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}


def tokenise_pairs(first, seconds):
    """The same for pairs of one text and each of some others."""
    pairs = [_TOKENIZER.encode_pair(first, second, _LENGTHS[-1]) for second in seconds]
    types = [pair.type_ids for pair in pairs]
    return pad_batch([pair.ids for pair in pairs], _LENGTHS, type_ids=types)._asdict()
