"""The tokeniser of BERT and its descendants, from a vocabulary file.

What lives here: `BertTokenizer`, `Encoding`, and truncation. What does not: the pieces themselves
(the `tokenizers` library or, without it, `hloserve.hooks.text.wordpiece`) and arrays
(`hloserve.hooks.text.batches`). Immutable once built; any thread. The library lets other threads
run meanwhile.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from hloserve.hooks.text.wordpiece import MOST_CHARACTERS, WordPiece

__all__ = ["BertTokenizer", "Encoding", "Implementation", "read_vocabulary"]

Implementation = Literal["auto", "library", "python"]
"""What cuts texts: the `tokenizers` library, plain Python, or the former if it is installed."""

_NEEDED = ("[UNK]", "[CLS]", "[SEP]", "[PAD]")
_SPECIAL = (*_NEEDED, "[MASK]")


class Encoding(NamedTuple):
    """What a model is given for one text, or for a pair of texts.

    Attributes:
        ids: tokens, special ones included.
        type_ids: 0 for the first text and its special tokens, 1 for the second.
    """

    ids: list[int]
    type_ids: list[int]


class _Pieces(Protocol):
    def ids(self, text: str) -> list[int]: ...


def read_vocabulary(file: str | os.PathLike[str]) -> dict[str, int]:
    """Read a ``vocab.txt``: one token per line, its id is the line's number from 0.

    Raises:
        ValueError: it lacks a token that every text needs; the text names it.
    """
    lines = Path(file).read_text("utf-8").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    missing = [token for token in _NEEDED if token not in vocabulary]
    if missing:
        raise ValueError(
            f"{os.fspath(file)} is not a vocabulary of BERT: it lacks {', '.join(missing)};"
            " expected one token per line, as in vocab.txt of a checkpoint"
        )
    return vocabulary


class BertTokenizer:
    """Cuts texts as BERT's own tokeniser does, id for id.

    Args:
        vocabulary: a ``vocab.txt``, or token to id.
        is_lowercase: the model is an "uncased" one: capitals and accents are folded.
        implementation: what does the cutting; both give the same ids.

    Attributes:
        implementation: the one in use, "library" or "python".
        pad_id: what fills the space behind a short text.

    Raises:
        ValueError: the vocabulary lacks a special token.
        ImportError: the library is asked for and not installed.

    Source: the library's BertWordPieceTokenizer.

    Example:
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##happi", "##ness"]
        >>> BertTokenizer({token: i for i, token in enumerate(tokens)}).encode("Unhappiness!")
        [2, 4, 5, 6, 1, 3]
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | Mapping[str, int],
        *,
        is_lowercase: bool = True,
        implementation: Implementation = "auto",
    ) -> None:
        tokens = dict(
            vocabulary if isinstance(vocabulary, Mapping) else read_vocabulary(vocabulary)
        )
        missing = [token for token in _NEEDED if token not in tokens]
        if missing:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")
        if implementation == "auto":
            implementation = "library" if find_spec("tokenizers") else "python"
        self.implementation = implementation
        self.pad_id = tokens["[PAD]"]
        self._start, self._end = tokens["[CLS]"], tokens["[SEP]"]
        self._pieces: _Pieces
        if implementation == "library":
            self._pieces = _Library(tokens, is_lowercase=is_lowercase)
        else:
            special = {token: tokens[token] for token in _SPECIAL if token in tokens}
            self._pieces = WordPiece(tokens, tokens["[UNK]"], special, is_lowercase=is_lowercase)

    def pieces(self, text: str) -> list[int]:
        """The ids of a text without special tokens around it, not truncated."""
        return self._pieces.ids(text)

    def encode(self, text: str, max_length: int = 512) -> list[int]:
        """The ids of one text: ``[CLS] text [SEP]``.

        Args:
            text: any.
            max_length: most ids, at least 2; what does not fit is cut off at the end.
        """
        _check_length(max_length, 2)
        return [self._start, *self.pieces(text)[: max_length - 2], self._end]

    def encode_batch(self, texts: Sequence[str], max_length: int = 512) -> list[list[int]]:
        """`encode` for every text."""
        return [self.encode(text, max_length) for text in texts]

    def encode_pair(self, first: str, second: str, max_length: int = 512) -> Encoding:
        """The ids of two texts: ``[CLS] first [SEP] second [SEP]``.

        An empty second text makes it a single one. What does not fit is cut off at the end of the
        longer text, then of both.

        Args:
            first: any text, a question say.
            second: any text, a passage say.
            max_length: most ids, at least 3.
        """
        _check_length(max_length, 3)
        if not second:
            ids = self.encode(first, max_length)
            return Encoding(ids, [0] * len(ids))
        a, b = self.pieces(first), self.pieces(second)
        a_length, b_length = _fitting(len(a), len(b), max_length - 3)
        a, b = a[:a_length], b[:b_length]
        ids = [self._start, *a, self._end, *b, self._end]
        return Encoding(ids, [0] * (len(a) + 2) + [1] * (len(b) + 1))


class _Library:
    """The `tokenizers` library as `_Pieces`."""

    def __init__(self, vocabulary: dict[str, int], *, is_lowercase: bool) -> None:
        from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

        model = models.WordPiece(
            vocabulary, unk_token="[UNK]", max_input_chars_per_word=MOST_CHARACTERS
        )
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=is_lowercase,
            lowercase=is_lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.add_special_tokens(
            [AddedToken(token, normalized=False) for token in _SPECIAL if token in vocabulary]
        )

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _fitting(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts is kept: the longer gives way first, then both.

    Source: `truncate_encodings` of the library, strategy "longest first".
    """
    shorter, longer = sorted((first, second))
    if shorter + longer > room:
        longer = max(shorter, room - shorter)
        if shorter + longer > room:
            shorter, longer = room // 2, room // 2 + room % 2
    return (longer, shorter) if first > second else (shorter, longer)


def _check_length(max_length: int, least: int) -> None:
    if max_length < least:
        raise ValueError(f"max_length is {max_length}: special tokens alone take {least}")
