"""Between texts, token ids and the arrays that programs take.

What lives here: padding to a compiled length, and the two ways in which texts come in tensors:
`BYTES`, and rows of uint8 with their lengths. What does not: cutting texts into tokens
(`hloserve.hooks.text.tokenizer`). Pure; any thread.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hloserve.core.errors import InvalidInput

__all__ = [
    "PaddedBatch",
    "pad_batch",
    "read_text_rows",
    "seq_bucket",
    "texts_of",
    "write_text_rows",
]

Ids = npt.NDArray[np.int64]


class PaddedBatch(NamedTuple):
    """What an encoder takes.

    Attributes:
        input_ids: tokens, then padding.
        attention_mask: 1 for a token, 0 for padding.
        token_type_ids: 1 for the second text of a pair, else 0.

    Shapes:
        each: [rows, length], int64.
    """

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids


def seq_bucket(length: int, buckets: Sequence[int]) -> int:
    """The smallest compiled length that holds `length` tokens, or the largest when none does.

    Args:
        length: of the longest row.
        buckets: ascending, not empty.

    Example:
        >>> seq_bucket(40, (32, 128)), seq_bucket(999, (32, 128))
        (128, 128)
    """
    return next((bucket for bucket in buckets if bucket >= length), buckets[-1])


def pad_batch(
    ids: Sequence[Sequence[int]],
    buckets: Sequence[int],
    *,
    type_ids: Sequence[Sequence[int]] | None = None,
    pad_id: int = 0,
) -> PaddedBatch:
    """Lay token ids side by side in rows of one compiled length.

    Args:
        ids: of each text, special tokens included; truncate them first.
        buckets: lengths that the programs are compiled for, ascending.
        type_ids: of each text; all 0 when left out.
        pad_id: what fills a row behind its tokens.

    Raises:
        InvalidInput: a text has more tokens than the longest program takes.
    """
    longest = max(map(len, ids), default=0)
    length = seq_bucket(longest, buckets)
    if longest > length:
        raise InvalidInput(
            f"a text has {longest} tokens; the longest program takes {length}: shorten the text"
        )
    input_ids = np.full((len(ids), length), pad_id, np.int64)
    attention_mask = np.zeros((len(ids), length), np.int64)
    token_type_ids = np.zeros((len(ids), length), np.int64)
    for row, tokens in enumerate(ids):
        input_ids[row, : len(tokens)] = tokens
        attention_mask[row, : len(tokens)] = 1
        if type_ids is not None:
            token_type_ids[row, : len(tokens)] = type_ids[row]
    return PaddedBatch(input_ids, attention_mask, token_type_ids)


def texts_of(tensor: npt.NDArray[Any]) -> list[str]:
    """The texts of a `BYTES` tensor, row by row.

    What is not UTF-8 is replaced by U+FFFD, which tokenisers drop.

    Shapes:
        tensor: any, of bytes or text; read in C order.
    """
    return [
        each.decode("utf-8", errors="replace") if isinstance(each, bytes) else str(each)
        for each in tensor.ravel().tolist()
    ]


def read_text_rows(rows: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[str]:
    """The texts of uint8 rows, for clients that send no `BYTES`.

    Raises:
        InvalidInput: the counts differ, or a length is negative or beyond its row.

    Shapes:
        rows: [count, max_bytes], uint8: UTF-8, then anything.
        lengths: [count], integers: bytes of each text.
    """
    if rows.ndim != 2 or lengths.shape != rows.shape[:1]:
        raise InvalidInput(
            f"texts have shape {list(rows.shape)} and lengths {list(lengths.shape)};"
            " expected [count, max_bytes] and [count]"
        )
    bad = np.flatnonzero((lengths < 0) | (lengths > rows.shape[1]))
    if bad.size:
        raise InvalidInput(
            f"length {int(lengths[bad[0]])} of text {int(bad[0])} is outside of 0 to"
            f" {rows.shape[1]}"
        )
    return [
        row[:length].tobytes().decode("utf-8", errors="replace")
        for row, length in zip(rows, lengths.tolist(), strict=True)
    ]


def write_text_rows(
    texts: Sequence[str], max_bytes: int | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Turn texts into uint8 rows and their lengths; `read_text_rows` reads them.

    Args:
        texts: any.
        max_bytes: of a row; None for the longest text's.

    Raises:
        ValueError: a text is longer than a row.
    """
    encoded = [text.encode("utf-8") for text in texts]
    longest = max(map(len, encoded), default=0)
    width = longest if max_bytes is None else max_bytes
    if longest > width:
        raise ValueError(f"a text takes {longest} bytes, a row has {width}")
    rows = np.zeros((len(encoded), width), np.uint8)
    for row, text in zip(rows, encoded, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return rows, np.array([len(text) for text in encoded], np.int32)
