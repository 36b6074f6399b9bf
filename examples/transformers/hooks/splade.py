"""Texts in, the terms that count for each of them out."""

from hloserve import register_model
from hloserve.hooks.text import texts_of

from .sparse import sparsify
from .texts import tokenise


def preprocess(inputs):
    """Cut the texts into tokens."""
    return tokenise(texts_of(inputs["texts"]))


def postprocess(outputs):
    """Leave out what does not count: nearly all of the 30522 terms."""
    return sparsify(outputs["term_scores"])


register_model(preprocess=preprocess, postprocess=postprocess)
