"""Ask a running server for embeddings and compare them with the original's.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.minilm.compare --http 127.0.0.1:8000 --grpc 127.0.0.1:8001

Exit status 1 when a value is off by more than 1e-4.
"""

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tritonclient.grpc
import tritonclient.http

import hloserve
from examples.minilm.sentences import load_reference, tokenise

__all__ = ["MODEL", "TOLERANCE", "ask_hloserve", "ask_triton", "main", "worst_error"]

MODEL = "minilm"
TOLERANCE = 1e-4

Ask: TypeAlias = Callable[[dict[str, Any]], Any]
"""From the model's inputs to the embeddings, (n, 384)."""


def ask_hloserve(address: str) -> Ask:
    """Use this project's client."""
    client = hloserve.Client(address)
    return lambda inputs: client.infer(MODEL, inputs)["embedding"]


def ask_triton(module: Any, address: str) -> Ask:
    """Use Triton's client; `module` is `tritonclient.http` or `tritonclient.grpc`."""
    client = module.InferenceServerClient(address)

    def ask(inputs: dict[str, Any]) -> Any:
        tensors = [module.InferInput(name, array.shape, "INT32") for name, array in inputs.items()]
        for tensor, array in zip(tensors, inputs.values(), strict=True):
            tensor.set_data_from_numpy(array)
        return client.infer(MODEL, tensors).as_numpy("embedding")

    return ask


def worst_error(ask: Ask) -> dict[str, float]:
    """The largest absolute error per way of sending the reference's sentences."""
    reference = load_reference()
    together = ask(tokenise(reference.sentences))
    single = np.concatenate([ask(tokenise([sentence])) for sentence in reference.sentences])
    many = ask(tokenise(reference.sentences[:4] * 8))
    return {
        "8 sentences of 128 tokens": _error(together, reference.embeddings),
        "one by one, 32 or 128 tokens": _error(single, reference.embeddings),
        "32 sentences of 32 tokens": _error(many, np.tile(reference.embeddings[:4], (8, 1))),
    }


def _error(got: Any, wanted: Any) -> float:
    return float(np.max(np.abs(got.astype(np.float64) - wanted)))


def main() -> None:
    """Compare by each client and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    options = parser.parse_args()
    clients = {
        "hloserve.Client": ask_hloserve(options.grpc),
        "tritonclient.grpc": ask_triton(tritonclient.grpc, options.grpc),
        "tritonclient.http": ask_triton(tritonclient.http, options.http),
    }
    made_with = ", ".join(
        f"{name} {version}" for name, version in load_reference().made_with.items()
    )
    print(f"largest error against the original ({made_with}):")
    worst = 0.0
    for name, ask in clients.items():
        for how, error in worst_error(ask).items():
            print(f"  {name:18} {how:30} {error:.1e}")
            worst = max(worst, error)
    if not worst <= TOLERANCE:
        raise SystemExit(f"{worst:.1e} is more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
