"""Ask a running server about wines and compare with the module itself.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.flax_mlp.compare build/flax_mlp.msgpack

Exit status 1 when a value is off by more than 1e-4.
"""

from pathlib import Path

from flax import serialization

from examples.comparing import Arrays, compare_served, parse_addresses
from examples.flax_mlp.make_bundle import BATCH_SIZES
from examples.flax_mlp.network import WineClassifier, load_split

__all__ = ["compare", "main"]


def compare(checkpoint: Path, *, http: str, grpc: str) -> None:
    """Compare by each client at each batch size."""
    module = WineClassifier()
    variables = serialization.msgpack_restore(checkpoint.read_bytes())

    def classify(inputs: Arrays) -> Arrays:
        return {"logits": module.apply(variables, inputs["measurements"])}

    _, held_out = load_split()
    rows = {"measurements": held_out.measurements}
    print("largest difference from module.apply:")
    compare_served("flax_mlp", classify, rows, BATCH_SIZES, http=http, grpc=grpc)


def main() -> None:
    """Parse the arguments and compare."""
    options = parse_addresses(__doc__.splitlines()[0])
    compare(options.checkpoint, http=options.http, grpc=options.grpc)


if __name__ == "__main__":
    main()
