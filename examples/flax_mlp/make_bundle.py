"""Train the wine classifier and export it.

Usage, in the repository's root::

    python -m examples.flax_mlp.make_bundle build/repository/flax_mlp build/flax_mlp.msgpack

The second path gets the variables, for `compare`.
"""

import argparse
from pathlib import Path

from flax import serialization

from examples.flax_mlp.network import accuracy, load_split, train
from hloserve.export import ExportReport, export_flax

__all__ = ["BATCH_SIZES", "main", "write_example"]

BATCH_SIZES = (1, 8, 32)


def write_example(bundle: Path, checkpoint: Path) -> ExportReport:
    """Train and export.

    Args:
        bundle: directory to write; its name is the model's.
        checkpoint: file for the variables.
    """
    training, held_out = load_split()
    module, variables = train(training)
    right = accuracy(module, variables, held_out)
    print(f"{right:.1%} of {len(held_out.cultivars)} wines that it did not see are told right")
    checkpoint.write_bytes(serialization.to_bytes(variables))
    return export_flax(
        (module, variables),
        {"measurements": training.measurements},
        dir=bundle,
        batch_sizes=BATCH_SIZES,
        output_names=["logits"],
        description="The cultivar of a wine from 13 measurements, as scikit-learn has them",
        provenance={"held_out_accuracy": round(right, 4)},
        overwrite=True,
    )


def main() -> None:
    """Parse the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    parser.add_argument("checkpoint", type=Path, help="file for the variables")
    options = parser.parse_args()
    print(write_example(options.bundle, options.checkpoint))


if __name__ == "__main__":
    main()
