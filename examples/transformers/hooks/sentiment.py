"""Texts in, what they feel like out."""

import numpy as np

from hloserve import register_model
from hloserve.hooks.text import texts_of

from .texts import tokenise


def preprocess(inputs):
    """Cut the texts into tokens."""
    return tokenise(texts_of(inputs["texts"]))


def postprocess(outputs):
    """Add probabilities, and the class that has the highest."""
    logits = outputs["logits"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return {
        "logits": logits,
        "probs": powers / powers.sum(axis=1, keepdims=True),
        "label_id": logits.argmax(axis=1).astype(np.int32),
    }


register_model(preprocess=preprocess, postprocess=postprocess)
