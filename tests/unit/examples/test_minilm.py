"""The MiniLM example, as far as it needs no server."""

import numpy as np
import pytest
from support.demo_bert import embed_sentences

from examples.minilm.minilm import WIDTH, load_weights
from examples.minilm.sentences import LENGTHS, load_reference, tokenise


def test_tokens_are_the_originals() -> None:
    """The `tokenizers` library alone gives what sentence-transformers gave, truncation included."""
    reference = load_reference()

    inputs = tokenise(reference.sentences)

    for ids, mask, tokens in zip(*inputs.values(), reference.tokens, strict=True):
        assert tuple(ids[mask == 1]) == tokens
        assert not ids[mask == 0].any()


@pytest.mark.parametrize(("words", "length"), [(0, 32), (30, 32), (31, 128), (500, 128)])
def test_sentences_get_the_shortest_length_that_fits(words: int, length: int) -> None:
    """Two tokens frame the words; what is too long is cut."""
    inputs = tokenise(["word " * words])

    assert inputs["input_ids"].shape == (1, length)
    assert inputs["attention_mask"].sum() == min(words + 2, LENGTHS[-1])


def test_reference_agrees_with_an_oracle_in_float64() -> None:
    """The recorded embeddings are what BERT's definition gives for these weights."""
    reference, weights = load_reference(), load_weights()

    oracle = embed_sentences(reference.tokens, weights)

    assert reference.embeddings.shape == (len(reference.sentences), WIDTH)
    np.testing.assert_allclose(reference.embeddings, oracle, atol=1e-6)
