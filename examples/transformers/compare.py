"""Ask a running server about texts, and compare its answers with the original libraries'.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.transformers.compare --http 127.0.0.1:8000 --grpc 127.0.0.1:8001

Exit status 1 when a number is off by more than 1e-4, or a term or class is another one. Else it
shows what `examples.transformers.demo` does. It is for the four bundles that `make_bundle` writes
without a checkpoint: the reference is that of their weights.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import tritonclient.grpc
import tritonclient.http

import hloserve
from examples.comparing import TOLERANCE, ask_triton
from examples.transformers.demo import ask_own, show
from examples.transformers.reference import ROW_INPUTS, Arrays, error_of, load_reference

__all__ = ["compare", "compare_client", "main"]

Ask: TypeAlias = Callable[[Arrays], Arrays]
"""Asks one model."""


def compare_client(ask_of: Callable[[str], Ask]) -> dict[tuple[str, str], float]:
    """The largest error by bundle and way of sending the reference's texts.

    Args:
        ask_of: from a bundle's name to what asks it.

    Raises:
        SystemExit: a term, a class or a shape is another one.
    """
    reference = load_reference()
    errors = {}
    for model, inputs in reference.requests.items():
        ask, row_input = ask_of(model), ROW_INPUTS[model]
        texts = inputs[row_input]
        whole = slice(0, len(texts))
        errors[model, f"{len(texts)} texts"] = error_of(
            ask(inputs), reference.answers[model](whole)
        )
        single = [slice(row, row + 1) for row in range(len(texts))]
        errors[model, "one by one"] = max(
            error_of(ask({**inputs, row_input: texts[row]}), reference.answers[model](row))
            for row in single
        )
    return errors


def compare(http: str, grpc: str) -> None:
    """Compare by each client and print a table.

    Raises:
        SystemExit: an error is above 1e-4, or something else than a number differs.
    """
    made_with = load_reference().made_with
    print(f"largest error against {', '.join(f'{n} {v}' for n, v in made_with.items())}:")
    worst = 0.0
    with (
        hloserve.Client(grpc) as own,
        tritonclient.grpc.InferenceServerClient(grpc) as over_grpc,
        tritonclient.http.InferenceServerClient(http) as over_http,
    ):
        clients: dict[str, Callable[[str], Ask]] = {
            "hloserve.Client": lambda model: lambda inputs: own.infer(model, inputs),
            "tritonclient.grpc": partial(ask_triton, tritonclient.grpc, over_grpc),
            "tritonclient.http": partial(ask_triton, tritonclient.http, over_http),
        }
        for client, ask_of in clients.items():
            for (model, how), error in compare_client(ask_of).items():
                print(f"  {client:18} {model:14} {how:11} {error:.1e}")
                worst = np.maximum(worst, error)  # NaN stays
        if not worst <= TOLERANCE:
            raise SystemExit(f"{worst:.1e} is more than {TOLERANCE:.0e}")
        show(ask_own(own))


def main() -> None:
    """Parse the addresses and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    options = parser.parse_args()
    compare(options.http, options.grpc)


if __name__ == "__main__":
    main()
