"""Scores of all terms as those few that count, in compressed sparse rows."""

from typing import Any

import numpy as np

__all__ = ["sparsify"]


def sparsify(scores: Any) -> dict[str, Any]:
    """Keep what is not 0.00 when rounded to two digits, half to even; values stay unrounded.

    Shapes:
        scores: (n, terms), float32.
        result: indices (k,) int32 and values (k,) float32, row after row; row_offsets (n + 1,)
            int64: where in them each row begins, and the end.
    """
    rows, terms = np.nonzero(np.rint(scores * 100))
    offsets = np.zeros(len(scores) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(scores)), out=offsets[1:])
    return {
        "indices": terms.astype(np.int32),
        "values": scores[rows, terms],
        "row_offsets": offsets,
    }
