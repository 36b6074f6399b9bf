"""Arrays in files that `numpy.save` wrote.

What lives here: `load_array`, and what NumPy raises for other files. What does not: whose array it
is (`hloserve.cli.infer`, `hloserve.export.comparison.samples`). Any thread.
"""

import os
import tokenize
import zipfile
import zlib

import numpy as np

from hloserve.core.tensors import Array

__all__ = ["load_array"]

_DAMAGED = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, NotImplementedError, OSError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy raises where a header is wrong, or none; headers are Python literals."""


def load_array(path: str | os.PathLike[str]) -> Array:
    """Read the one array of a file; pickles are not read, whatever NumPy advises.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such array; the message says what it is instead.
    """
    with open(path, "rb") as file:
        try:
            array = np.load(file, allow_pickle=False)
        except _DAMAGED as error:
            raise ValueError(
                "is not an array that numpy.save wrote, or one of Python objects, or it is cut off;"
                " save an array of numbers or text"
            ) from error
    if not isinstance(array, np.ndarray):
        raise ValueError("holds several arrays; save one")
    return array
