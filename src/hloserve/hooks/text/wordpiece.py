"""BERT's tokenisation in plain Python, for where the `tokenizers` library is not installed.

What lives here: from a text to the ids of its pieces. What does not: the choice between this and
the library, special tokens around a text, and truncation (`hloserve.hooks.text.tokenizer`).
Immutable once built; any thread.

The steps and their order are those of the library's BertNormalizer, BertPreTokenizer and WordPiece.
A test compares the two on every character.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from hloserve.hooks.text.characters import IDEOGRAPHS, MARKS, PUNCTUATION, REMOVED, SPACES

__all__ = ["MOST_CHARACTERS", "WordPiece"]

MOST_CHARACTERS = 100
"""A longer word is unknown as a whole."""

_CONTINUED = "##"
_WORDS_KEPT = 50_000


def _class(*ranges: str) -> str:
    """The inside of a regular expression's character class."""
    bounds = (each.partition("-") for part in ranges for each in part.split())
    return "".join(
        f"\\U{int(first, 16):08x}-\\U{int(last or first, 16):08x}" for first, _, last in bounds
    )


_REMOVED = re.compile(f"[{_class(REMOVED)}]+")
_IDEOGRAPH = re.compile(f"[{_class(IDEOGRAPHS)}]")
_MARKS = re.compile(f"[{_class(MARKS)}]+")
_WORD = re.compile(f"[{_class(PUNCTUATION)}]|[^{_class(PUNCTUATION, SPACES)}]+")


class WordPiece:
    """Turns text into ids of pieces.

    Args:
        vocabulary: piece to id.
        unknown: the id of a word that cannot be made of pieces.
        special: texts that stand for themselves wherever they occur, like ``[MASK]``, to their ids.
        is_lowercase: the vocabulary knows no capitals and no accents.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        unknown: int,
        special: Mapping[str, int],
        *,
        is_lowercase: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._unknown = unknown
        self._special = special
        self._is_lowercase = is_lowercase
        alternatives = sorted(map(re.escape, special), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(alternatives)})") if special else None
        self._known: dict[str, Sequence[int]] = {}

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        found: list[int] = []
        parts = self._split.split(text) if self._split is not None else [text]
        for part in parts:
            special = self._special.get(part)
            if special is not None:
                found.append(special)
                continue
            for word in self._words(part):
                pieces = self._known.get(word)
                if pieces is None:
                    pieces = self._pieces(word)
                    if len(self._known) < _WORDS_KEPT:
                        self._known[word] = pieces
                found += pieces
        return found

    def _words(self, text: str) -> Iterator[str]:
        if text.isascii() and text.isprintable():
            normal = text.lower() if self._is_lowercase else text
        else:
            normal = self._normalised(text)
        return (match.group() for match in _WORD.finditer(normal))

    def _normalised(self, text: str) -> str:
        text = _IDEOGRAPH.sub(r" \g<0> ", _REMOVED.sub("", text))
        if not self._is_lowercase:
            return text
        text = _MARKS.sub("", unicodedata.normalize("NFD", text))
        # One by one: a sigma at the end of a word has a lower case of its own in Python.
        return "".join(character.lower() for character in text)

    def _pieces(self, word: str) -> Sequence[int]:
        """The longest piece first, again and again; the unknown id when one step finds none."""
        if len(word) > MOST_CHARACTERS:
            return (self._unknown,)
        vocabulary = self._vocabulary
        found: list[int] = []
        start = 0
        while start < len(word):
            prefix = _CONTINUED if start else ""
            for end in range(len(word), start, -1):
                piece = vocabulary.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                return (self._unknown,)
            found.append(piece)
            start = end
        return tuple(found)
