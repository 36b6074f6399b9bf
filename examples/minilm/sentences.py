"""Sentences in, token ids out; and what the original model says about some of them.

What lives here: tokenising for the bundle's two lengths, and the reference that
`examples.minilm.make_reference` recorded. What does not: anything that runs a model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from examples.minilm.minilm import MODEL_FILES

__all__ = ["LENGTHS", "REFERENCE_FILE", "Reference", "load_reference", "tokenise"]

LENGTHS = (32, 128)
"""Tokens per sentence that the bundle's programs are compiled for, padding included."""

REFERENCE_FILE = Path(__file__).with_name("reference.json")


@dataclass(frozen=True)
class Reference:
    """What the original computed.

    Attributes:
        sentences: the texts.
        tokens: the ids that the original's own tokeniser gave each, without padding.
        embeddings: (n, 384) float32.
        made_with: versions of the libraries that computed it.
    """

    sentences: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    embeddings: Any
    made_with: dict[str, str]


def load_reference() -> Reference:
    """Read `reference.json`."""
    content = json.loads(REFERENCE_FILE.read_text("utf-8"))
    rows = content["sentences"]
    return Reference(
        sentences=tuple(row["text"] for row in rows),
        tokens=tuple(tuple(row["tokens"]) for row in rows),
        embeddings=np.array([row["embedding"] for row in rows], np.float32),
        made_with=content["made_with"],
    )


def tokenise(sentences: Sequence[str], length: int | None = None) -> dict[str, Any]:
    """Turn sentences into the bundle's inputs.

    Args:
        sentences: any text; what exceeds the longest length is cut off, as the original does.
        length: tokens per sentence; by default the shortest of `LENGTHS` that fits them all.

    Returns:
        `input_ids` and `attention_mask`, both (n, length) int32.
    """
    tokenizer = Tokenizer.from_file(str(MODEL_FILES / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length or LENGTHS[-1])
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    longest = max(map(len, rows), default=0)
    length = length or next(size for size in LENGTHS if size >= longest)
    input_ids = np.zeros((len(rows), length), np.int32)
    attention_mask = np.zeros_like(input_ids)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
        attention_mask[index, : len(row)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}
