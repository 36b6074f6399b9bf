"""A question and texts in, how well each text answers it out."""

import numpy as np

from hloserve import register_model
from hloserve.hooks.text import texts_of

from .texts import tokenise_pairs


def preprocess(inputs):
    """Lay the question before each text."""
    (query,) = texts_of(inputs["query"])
    return tokenise_pairs(query, texts_of(inputs["candidates"]))


def postprocess(outputs):
    """Add the probability to the logit."""
    logits = outputs["logits"]
    return {"logits": logits, "prob": np.exp(-np.logaddexp(0, -logits))}


register_model(preprocess=preprocess, postprocess=postprocess)
