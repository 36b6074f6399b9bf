"""What callers may give as a tensor, as an array that the codec takes.

What lives here: numbers and strings. What does not: tensors in shared memory
(`hloserve.client.shared_memory`). Pure functions; any thread.
"""

import numpy.typing as npt

from hloserve.core.errors import BadRequest
from hloserve.core.strings import is_text, strings_from, text_array
from hloserve.core.tensors import Array

__all__ = ["plain_array"]


def plain_array(name: str, value: npt.ArrayLike) -> Array:
    """Make an array of what a caller gave; text becomes an object array of `bytes`.

    Args:
        name: the input's name, for the message.
        value: an array, or what `numpy.asarray` takes.

    Raises:
        BadRequest: an array of objects holds something else than text and bytes.
    """
    array = text_array(value)
    if not is_text(array):
        return array
    try:
        return strings_from(array)
    except ValueError as error:
        raise BadRequest(f"input {name!r}: {error}") from error
