"""Texts in, vectors out."""

from hloserve import register_model
from hloserve.hooks.text import texts_of

from .texts import tokenise


def preprocess(inputs):
    """Cut the texts into tokens; what the program returns goes to the client as it is."""
    return tokenise(texts_of(inputs["texts"]))


register_model(preprocess=preprocess)
