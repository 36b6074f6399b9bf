"""Ask a running server about digits and compare with the network itself.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.equinox_cnn.compare build/equinox_cnn.eqx

Exit status 1 when a value is off by more than 1e-4.
"""

from pathlib import Path

import equinox as eqx
import jax

from examples.comparing import Arrays, compare_served, parse_addresses
from examples.equinox_cnn.make_bundle import BATCH_SIZES
from examples.equinox_cnn.network import load_split, make

__all__ = ["compare", "main"]


def compare(checkpoint: Path, *, http: str, grpc: str) -> None:
    """Compare by each client at each batch size."""
    module, state = eqx.tree_deserialise_leaves(checkpoint, make())
    network = eqx.nn.inference_mode(module)

    def classify(inputs: Arrays) -> Arrays:
        results: Arrays = jax.vmap(lambda image: network(image, state)[0])(inputs["image"])
        return results

    _, held_out = load_split()
    rows = {"image": held_out.images}
    print("largest difference from the network, image by image:")
    compare_served("equinox_cnn", classify, rows, BATCH_SIZES, http=http, grpc=grpc)


def main() -> None:
    """Parse the arguments and compare."""
    options = parse_addresses(__doc__.splitlines()[0])
    compare(options.checkpoint, http=options.http, grpc=options.grpc)


if __name__ == "__main__":
    main()
