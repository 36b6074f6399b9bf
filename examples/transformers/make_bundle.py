"""Export the four bundles of this example, or one of them from a checkpoint of yours.

Usage, in the repository's root::

    python -m examples.transformers.make_bundle build/repository
    python -m examples.transformers.make_bundle build/repository --checkpoint DIRECTORY

Without checkpoint: `embedding` with the weights of all-MiniLM-L6-v2, which a package brings, and
`splade`, `cross_encoder` and `sentiment` with small random ones. A checkpoint is a directory as the
Hugging Face hub has it; its ``config.json`` says which bundle it becomes.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from examples.transformers import bert
from examples.transformers.checkpoints import ARCHITECTURES, read_checkpoint
from examples.transformers.random_checkpoints import MINILM, RANDOM, write_random
from hloserve.export import ExportReport, IOSpec, export_jax

__all__ = ["BATCH_SIZES", "LENGTHS", "main", "write_bundle_of", "write_random_bundle"]

BATCH_SIZES = (1, 8)
LENGTHS = (32, 128, 512)
"""Tokens that programs are compiled for; a checkpoint's limit takes the place of longer ones."""

_HOOKS = Path(__file__).parent / "hooks"
_TEXTS = (IOSpec("texts", "bytes", (1,), 0),)


@dataclass(frozen=True)
class _Plan:
    """How a checkpoint becomes a bundle.

    Attributes:
        compute: from sizes, inputs and weights to the output.
        output: its name.
        inputs: of clients.
        outputs: of clients; None for the program's own.
        labelled: outputs whose classes have names.
        modules: what the hooks import, beside ``texts.py``.
    """

    compute: Callable[..., Any]
    output: str
    inputs: Sequence[IOSpec] = _TEXTS
    outputs: Sequence[IOSpec] | None = None
    labelled: Sequence[str] = ()
    modules: Sequence[str] = ()


_PLANS = {
    "embedding": _Plan(bert.embedding, "embedding"),
    "splade": _Plan(
        bert.term_scores,
        "term_scores",
        outputs=(
            IOSpec("indices", "i32", (-1,), letters="k"),
            IOSpec("values", "f32", (-1,), letters="k"),
            IOSpec("row_offsets", "i64", (-1,), letters="r"),
        ),
        modules=("sparse.py",),
    ),
    "cross_encoder": _Plan(
        bert.relevance,
        "logits",
        inputs=(IOSpec("query", "bytes", (1,)), IOSpec("candidates", "bytes", (1,), 0)),
        outputs=(IOSpec("logits", "f32", (1,), 0), IOSpec("prob", "f32", (1,), 0)),
    ),
    "sentiment": _Plan(
        bert.sentiment,
        "logits",
        outputs=(
            IOSpec("logits", "f32", (1, 2), 0, letters="c"),
            IOSpec("probs", "f32", (1, 2), 0, letters="c"),
            IOSpec("label_id", "i32", (1,), 0),
        ),
        labelled=("logits", "probs"),
    ),
}


def write_bundle_of(
    directory: Path,
    repository: Path,
    *,
    sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] = LENGTHS,
) -> ExportReport:
    """Export a checkpoint.

    Args:
        directory: the checkpoint.
        repository: where the bundle will be; its name follows from the architecture.
        sizes: texts per execution.
        lengths: tokens per text, at least two; what is above the checkpoint's limit becomes it.

    Raises:
        SystemExit: the checkpoint is not one of the four.
    """
    checkpoint = read_checkpoint(directory)
    name = ARCHITECTURES[checkpoint.architecture].bundle
    plan = _PLANS[name]
    lengths = sorted({min(length, checkpoint.longest) for length in lengths})
    with tempfile.TemporaryDirectory() as work:
        labels = Path(work) / "labels.txt"
        labels.write_text("".join(f"{label}\n" for label in checkpoint.labels), "utf-8")
        modules = [_HOOKS / module for module in ("texts.py", *plan.modules)]
        has_types = name == "cross_encoder"
        examples = [_example(checkpoint.weights, length, has_types) for length in lengths]
        return export_jax(
            partial(plan.compute, checkpoint.sizes),
            examples[0],
            checkpoint.weights,
            dir=repository / name,
            batch_sizes=sizes,
            shape_variants=examples,
            output_names=[plan.output],
            # One letter for all inputs: their lengths are always equal.
            axis_letters=dict.fromkeys(examples[0], "s"),
            client_inputs=plan.inputs,
            client_outputs=plan.outputs,
            hook_file=_HOOKS / f"{name}.py",
            assets=[checkpoint.vocabulary, *modules, *[labels][: bool(plan.labelled)]],
            labels=dict.fromkeys(plan.labelled, labels.name),
            description=f"{checkpoint.architecture}: texts in, as strings",
            overwrite=True,
        )


def write_random_bundle(architecture: str, repository: Path, **options: Any) -> ExportReport:
    """Export a small random checkpoint; the options are those of `write_bundle_of`."""
    with tempfile.TemporaryDirectory() as work:
        return write_bundle_of(write_random(Path(work) / "r", architecture), repository, **options)


def _example(weights: bert.Weights, length: int, has_types: bool) -> dict[str, Any]:
    """Inputs of one text; the proof draws others, up to the largest values of these."""
    terms = len(weights["embeddings.word_embeddings.weight"])
    inputs = {
        "input_ids": np.linspace(0, terms - 1, length).astype(np.int64)[None],
        "attention_mask": np.ones((1, length), np.int64),
    }
    inputs["attention_mask"][:, length // 2 :] = 0
    if has_types:
        inputs["token_type_ids"] = np.zeros((1, length), np.int64)
        inputs["token_type_ids"][:, length // 4 :] = 1
    return inputs


def main() -> None:
    """Parse the arguments, export, and print the reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path, help="directory to write the bundles into")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        metavar="DIRECTORY",
        help="export this one alone; may be repeated",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=BATCH_SIZES, metavar="TEXTS")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="TOKENS")
    options = parser.parse_args()
    shapes = {"sizes": options.sizes, "lengths": options.lengths}
    for checkpoint in options.checkpoint or [MINILM]:
        print(write_bundle_of(checkpoint, options.repository, **shapes))
    for architecture in () if options.checkpoint else RANDOM:
        print(write_random_bundle(architecture, options.repository, **shapes))


if __name__ == "__main__":
    main()
