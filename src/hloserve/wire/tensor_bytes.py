"""Between raw tensor bytes and arrays, with every check made before anything is allocated.

What lives here: what the protobuf and the JSON codec share: announced datatypes and shapes, raw
(binary) data. What does not: strings (`hloserve.wire.strings`), typed contents and JSON numbers
(each codec has its own), and checks against a model's specs (`hloserve.server`). Stateless; any
thread.

Rules.
1. Shapes are judged in exact integers: no extent is negative, and neither the element count nor
   the byte count leaves int64, whatever the order of the extents.
2. Bytes become an array without a copy: a read-only view of what was received. Strings alone are
   copied.
3. On the wire tensors are row-major and little-endian, as is the memory of every host that
   hloserve runs on; only arrays of foreign byte order are swapped.

Source: V2 protocol, "Tensor Data" and the raw contents of ModelInferRequest.
"""

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from hloserve.core.dtypes import BOOL, BYTES, DTYPES, DType, by_kserve
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.tensors import Array
from hloserve.wire.strings import strings_as_bytes, strings_from_bytes

__all__ = [
    "ANY_LENGTH",
    "MAX_RANK",
    "ByteString",
    "array_from_bytes",
    "bytes_of",
    "check_shape",
    "format_shape",
    "known_dtype",
    "raw_length",
    "view_as_array",
]

ByteString: TypeAlias = bytes | bytearray | memoryview

MAX_RANK = 64
"""NumPy's own limit; a longer shape is a lie or an attack."""

ANY_LENGTH = -1
"""Stands for the byte length of strings; no data has it."""

_INT64_MAX = 2**63 - 1

_COPY_IS_CHEAPER_BYTES = 16384
"""Below this size `tobytes` costs less than making a view of the array's memory."""


def format_shape(shape: Sequence[object]) -> str:
    """Write a shape as messages show it: ``[2,3]``; a long one is cut."""
    shown = ",".join(map(str, shape[:MAX_RANK]))
    return f"[{shown},...]" if len(shape) > MAX_RANK else f"[{shown}]"


def known_dtype(name: str, datatype: str, role: str = "input") -> DType:
    """Look up the datatype that a peer announced.

    Args:
        name: the tensor's name, for the message.
        datatype: e.g. ``FP32``.
        role: what the tensor is, for the message.

    Raises:
        BadRequest: there is no such datatype.
    """
    try:
        return by_kserve(datatype)
    except KeyError:
        known = ", ".join(dtype.kserve for dtype in (*DTYPES, BYTES) if dtype.kserve)
        shown = datatype if len(datatype) <= 64 else f"{datatype[:64]}..."
        raise BadRequest(
            f"{role} {name!r}: datatype {shown!r} is not supported; the datatypes are {known}"
        ) from None


def check_shape(name: str, dtype: DType, shape: Sequence[int], role: str = "input") -> int:
    """Count the elements of a tensor whose shape a peer announced; allocate nothing.

    Args:
        name: the tensor's name, for the message.
        dtype: its element type; the byte count depends on it.
        shape: outermost extent first; empty for rank 0, which is one element.
        role: what the tensor is, for the message.

    Raises:
        BadRequest: an extent is not an integer or is negative, the rank is over `MAX_RANK`, or the
            tensor is larger than int64 can count.
    """
    if len(shape) > MAX_RANK:
        raise BadRequest(f"{role} {name!r}: rank is {len(shape)}, at most {MAX_RANK} is possible")
    elements = spread = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise BadRequest(
                f"{role} {name!r}: shape {format_shape(shape)} has the extent {extent!r};"
                " every extent must be an integer of 0 or more"
            )
        elements *= extent
        spread *= extent or 1  # a zero must not hide the overflow of its neighbours
    if spread * dtype.numpy.itemsize > _INT64_MAX:
        raise BadRequest(
            f"{role} {name!r}: a {dtype.kserve or dtype} tensor of shape {format_shape(shape)}"
            " is larger than 2**63 bytes"
        )
    return elements


def array_from_bytes(
    name: str, dtype: DType, shape: Sequence[int], data: ByteString, role: str = "input"
) -> Array:
    """View raw bytes as an array of the announced dtype and shape.

    Args:
        name: the tensor's name, for the messages.
        dtype: its element type.
        shape: outermost extent first; empty for rank 0.
        data: exactly the tensor's bytes, row-major and little-endian. It is kept alive by the
            array and must not change.
        role: what the tensor is, for the messages: ``input`` or ``output``.

    Returns:
        A read-only view of `data`.

    Raises:
        BadRequest: see `check_shape`; or a bool byte is neither 0 nor 1, or strings are cut short.
        TensorMismatch: the byte length does not fit the shape.
    """
    nbytes = raw_length(dtype, check_shape(name, dtype, shape, role))
    return view_as_array(name, dtype, shape, nbytes, data, role)


def raw_length(dtype: DType, elements: int) -> int:
    """Bytes that so many elements take; `ANY_LENGTH` for strings, which say so themselves."""
    return ANY_LENGTH if dtype is BYTES else elements * dtype.itemsize


def view_as_array(
    name: str,
    dtype: DType,
    shape: Sequence[int],
    nbytes: int,
    data: ByteString,
    role: str = "input",
) -> Array:
    """Do what `array_from_bytes` does for a shape that `check_shape` has passed already.

    Args:
        name: as there, like `dtype`, `shape`, `data` and `role`.
        dtype: as there.
        shape: as there, and checked.
        nbytes: what the shape needs, of `raw_length`.
        data: as there.
        role: as there.

    Raises:
        BadRequest: a bool byte is neither 0 nor 1.
        TensorMismatch: the byte length does not fit the shape.
    """
    if len(data) != nbytes:
        if dtype is BYTES:
            return strings_from_bytes(f"{role} {name!r}", shape, prod(shape), data)
        what = f"byte length of a {dtype.kserve or dtype} tensor of shape {format_shape(shape)}"
        raise TensorMismatch(f"{role} {name!r}", what, nbytes, len(data))
    array: Array = np.ndarray(shape, dtype.numpy, data)
    if type(data) is not bytes:
        array.flags.writeable = False
    if dtype is BOOL:
        _check_bools(name, array, role)
    return array


def _check_bools(name: str, array: Array, role: str) -> None:
    """Refuse bytes that are no bool: compilers may read any bit of one."""
    raw = array.view(np.uint8)
    if raw.size and raw.max() > 1:
        flat = raw.reshape(-1)
        index = int((flat > 1).argmax())
        raise BadRequest(
            f"{role} {name!r}: BOOL element {index} is the byte {int(flat[index])};"
            " only 0 and 1 are allowed"
        )


def bytes_of(array: Array) -> bytes | memoryview:
    """Give an array's elements as the wire carries them: row-major, little-endian.

    Returns:
        A flat view of the array's own memory when it is large and already laid out so; else a
        copy. A view is valid as long as the array is not changed.

    Raises:
        BadRequest: an array of objects holds something else than `bytes`.
    """
    if array.dtype.hasobject:
        return strings_as_bytes(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.nbytes < _COPY_IS_CHEAPER_BYTES or not array.flags.c_contiguous:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data
