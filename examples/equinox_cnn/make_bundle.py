"""Train the digit classifier and export it.

Usage, in the repository's root::

    python -m examples.equinox_cnn.make_bundle build/repository/equinox_cnn build/equinox_cnn.eqx

The second path gets the network and its state, for `compare`.
"""

import argparse
from pathlib import Path

import equinox as eqx

from examples.equinox_cnn.network import EPOCHS, accuracy, load_split, train
from hloserve.export import ExportReport, export_equinox

__all__ = ["BATCH_SIZES", "main", "write_example"]

BATCH_SIZES = (1, 8, 32)


def write_example(bundle: Path, checkpoint: Path, *, epochs: int = EPOCHS) -> ExportReport:
    """Train and export.

    Args:
        bundle: directory to write; its name is the model's.
        checkpoint: file for the network and its state.
        epochs: of training.
    """
    training, held_out = load_split()
    module, state = train(training, epochs=epochs)
    right = accuracy(module, state, held_out)
    print(f"{right:.1%} of {len(held_out.labels)} images that it did not see are told right")
    eqx.tree_serialise_leaves(checkpoint, (module, state))
    return export_equinox(
        (module, state),
        {"image": training.images[:32]},
        dir=bundle,
        batch_sizes=BATCH_SIZES,
        description="Handwritten digits, 8x8 pixels of 0 (paper) to 16 (ink)",
        provenance={"held_out_accuracy": round(right, 4)},
        overwrite=True,
    )


def main() -> None:
    """Parse the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="directory to write")
    parser.add_argument("checkpoint", type=Path, help="file for the network")
    options = parser.parse_args()
    print(write_example(options.bundle, options.checkpoint))


if __name__ == "__main__":
    main()
