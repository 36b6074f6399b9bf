"""Ask a running server for logits and compare them with what torch computes.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.pytorch_resnet.compare build/resnet.pt

Exit status 1 when an error exceeds 1e-4 of the signal: of how far the logits of two sets of images
are apart.
"""

from pathlib import Path

import numpy as np
import torch

import hloserve
from examples.comparing import parse_addresses
from examples.pytorch_resnet.resnet import ResNet

__all__ = ["MODEL", "TOLERANCE", "compare", "main"]

MODEL = "pytorch_resnet"
TOLERANCE = 1e-4


def compare(checkpoint: Path, *, grpc: str) -> dict[int, float]:
    """The largest error by batch size, as a share of the signal.

    Args:
        checkpoint: what `make_bundle` kept.
        grpc: address of a server that has the bundle.
    """
    kept = torch.load(checkpoint, weights_only=True)
    model = ResNet().eval()
    model.load_state_dict(kept["weights"])
    rng = np.random.default_rng(7)
    errors = {}
    with hloserve.Client(grpc) as client, torch.no_grad():
        for rows in kept["sizes"]:
            shape = (2, rows, 3, kept["image_size"], kept["image_size"])
            images, others = rng.standard_normal(shape).astype(np.float32)
            wanted, contrast = (model(torch.from_numpy(x)).numpy() for x in (images, others))
            got = client.infer(MODEL, {"image": images})["logits"]
            signal = np.max(np.abs(wanted - contrast))
            errors[rows] = float(np.max(np.abs(got - wanted)) / signal)
    return errors


def main() -> None:
    """Compare at each batch size and print a table."""
    options = parse_addresses(__doc__.splitlines()[0])
    errors = compare(options.checkpoint, grpc=options.grpc)
    print(f"largest error against torch {torch.__version__}, as a share of the signal:")
    for rows, error in errors.items():
        print(f"  {rows:3} images  {error:.1e}")
    if not max(errors.values()) <= TOLERANCE:
        raise SystemExit(f"{max(errors.values()):.1e} is more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
