"""Ask a running server what texts mean, how well they answer a question, and what they feel like.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.transformers.demo --grpc 127.0.0.1:8001
    python -m examples.transformers.demo --grpc 127.0.0.1:8001 --triton

The second asks by Triton's client. Of the models with random weights, the answers mean nothing.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tritonclient.grpc

import hloserve
from examples.transformers.random_checkpoints import MINILM
from examples.transformers.reference import Arrays, strings

__all__ = ["Ask", "ask_own", "ask_triton_classes", "main", "show"]

Ask: TypeAlias = Callable[[str, Arrays, Mapping[str, int]], Arrays]
"""From model, inputs and numbers of classes by output to all outputs, or those of classes."""

_SENTENCES = (
    "A man is playing a guitar on the stage.",
    "Someone performs music in front of an audience.",
    "The stock market fell sharply today.",
)
_QUESTION = "How many people live in Berlin?"
_PASSAGES = (
    "New York City is famous for the Metropolitan Museum of Art.",
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 km².",
    "Berlin is well known for its museums.",
)
_OPINIONS = ("I love this film.", "What a waste of two hours.", "It has its moments.")
_TERMS = 8


def ask_own(client: hloserve.Client) -> Ask:
    """Use this project's client."""
    return lambda model, inputs, classes: client.infer(model, inputs, classes=classes)


def ask_triton_classes(client: Any) -> Ask:
    """Use Triton's, over gRPC."""

    def ask(model: str, inputs: Arrays, classes: Mapping[str, int]) -> Arrays:
        tensors = []
        for name, texts in inputs.items():
            tensor = tritonclient.grpc.InferInput(name, texts.shape, "BYTES")
            tensor.set_data_from_numpy(texts)
            tensors.append(tensor)
        wanted = [
            tritonclient.grpc.InferRequestedOutput(name, class_count=count)
            for name, count in classes.items()
        ]
        result = client.infer(model, tensors, outputs=wanted or None)
        names = [output.name for output in result.get_response().outputs]
        return {name: result.as_numpy(name) for name in names}

    return ask


def show(ask: Ask) -> None:
    """Print similarities, terms, ranks and sentiments."""
    _show_similarities(ask)
    _show_terms(ask)
    _show_ranks(ask)
    _show_sentiments(ask)


def _show_similarities(ask: Ask) -> None:
    vectors = ask("embedding", {"texts": strings(_SENTENCES)}, {})["embedding"]
    print("\ncosine similarities (embedding)")
    for text, row in zip(_SENTENCES, vectors @ vectors.T, strict=True):
        print(" ", " ".join(f"{each:5.2f}" for each in row), f" {text}")


def _show_terms(ask: Ask) -> None:
    vocabulary = (MINILM / "vocab.txt").read_text("utf-8").splitlines()
    answer = ask("splade", {"texts": strings(_SENTENCES)}, {})
    print(f"\nthe {_TERMS} terms that count most (splade)")
    offsets = answer["row_offsets"]
    for text, start, end in zip(_SENTENCES, offsets, offsets[1:], strict=False):
        indices, values = answer["indices"][start:end], answer["values"][start:end]
        best = np.argsort(-values, kind="stable")[:_TERMS]
        terms = ", ".join(f"{vocabulary[indices[at]]} {values[at]:.2f}" for at in best)
        print(f"  {text}\n    {end - start} terms: {terms}")


def _show_ranks(ask: Ask) -> None:
    inputs = {"query": strings([_QUESTION]), "candidates": strings(_PASSAGES)}
    answer = ask("cross_encoder", inputs, {})
    print(f"\nranked for {_QUESTION!r} (cross_encoder)")
    for at in np.argsort(-answer["logits"], kind="stable"):
        print(f"  {answer['prob'][at]:.3f} {answer['logits'][at]:6.2f}  {_PASSAGES[at]}")


def _show_sentiments(ask: Ask) -> None:
    best = ask("sentiment", {"texts": strings(_OPINIONS)}, {"probs": 1})["probs"]
    print("\nsentiments (sentiment)")
    for text, (found,) in zip(_OPINIONS, best, strict=True):
        probability, _, label = found.decode().split(":", 2)
        print(f"  {label} {float(probability):.3f}  {text}")


def main() -> None:
    """Parse the arguments and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--triton", action="store_true", help="ask by Triton's client")
    options = parser.parse_args()
    if options.triton:
        with tritonclient.grpc.InferenceServerClient(options.grpc) as triton:
            show(ask_triton_classes(triton))
    else:
        with hloserve.Client(options.grpc) as own:
            show(ask_own(own))


if __name__ == "__main__":
    main()
