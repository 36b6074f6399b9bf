"""Arrays of strings: what callers and hooks may give, and the one form that everything else takes.

What lives here: the way from NumPy's kinds of text to object arrays of `bytes`. What does not: how
strings look on the wire (`hloserve.wire.strings`). Pure functions; any thread.

NumPy's own fixed-width types are taken, and never made: they drop zeros at a string's end.
"""

from typing import Any

import numpy as np

from hloserve.core.tensors import Array

__all__ = ["is_text", "strings_from", "text_array"]

_TEXT_KINDS = "SUTO"


def is_text(array: Array) -> bool:
    """True for arrays of NumPy's text types, and of objects, which may be strings."""
    return array.dtype.kind in _TEXT_KINDS


def text_array(value: Any) -> Array:
    r"""`numpy.asarray`, but lists of strings keep the zeros at the end of each.

    Example:
        >>> text_array([b"a", b"bc\0"])
        array([b'a', b'bc\x00'], dtype=object)
        >>> text_array([1, 2]).dtype.kind
        'i'
    """
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray | np.generic):
        return np.asarray(value, dtype=object)
    return array


def strings_from(array: Array) -> Array:
    r"""Make an object array of `bytes`; text becomes UTF-8.

    Args:
        array: of `bytes` or `str` objects, or of one of NumPy's text types.

    Returns:
        An array of the same shape, whose elements are exactly `bytes`; `array` itself when it is
        one already.

    Raises:
        ValueError: an element is neither, or is text that UTF-8 cannot encode; the message says
            which.

    Example:
        >>> strings_from(np.array(["Bär", "a"])).tolist()
        [b'B\xc3\xa4r', b'a']
    """
    flat = array.reshape(-1).tolist()
    if array.dtype.kind == "O" and set(map(type, flat)) <= {bytes}:
        return array
    strings = np.empty(len(flat), object)
    for index, value in enumerate(flat):
        strings[index] = _as_bytes(index, value)
    return strings.reshape(array.shape)


def _as_bytes(index: int, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"element {index} cannot be encoded as UTF-8: {error}") from None
    if isinstance(value, bytes):
        return bytes(value)
    raise ValueError(f"element {index} is of type {type(value).__name__}, not bytes or str")
