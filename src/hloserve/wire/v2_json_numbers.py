"""From JSON values to arrays: the `data` member of an input.

What lives here: nesting, counts, number types and ranges, and strings. What does not: messages and
binary tensors (`hloserve.wire.v2_json`), and writing (`hloserve.wire.v2_json_writing`). Stateless;
any thread.

Rules.
1. Data is flat, or nested exactly as the shape says; nothing in between.
2. A value that the datatype cannot hold is refused with its index; nothing wraps, saturates or
   becomes infinite. FP16, BF16 and FP32 take the nearest value.
3. Numbers are numbers: no strings but ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` for floats, no
   null, and true and false only for BOOL, which takes nothing else.
4. BYTES takes strings and nothing else; an element is the UTF-8 of its string.
5. An integer may be written with a fraction of zero below 2**53; beyond, digits could be lost.

`struct` packs a list at 20 ns per number and checks types and ranges on the way, except that it
takes a bool for a number; NumPy takes 55 ns and wraps.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from hloserve.core.dtypes import BOOL, BYTES, DType, by_token
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.tensors import Array
from hloserve.wire.strings import check_count, strings_from_values
from hloserve.wire.tensor_bytes import format_shape, view_as_array

__all__ = ["array_from_json", "quick_array"]

_BF16 = by_token("bf16")
_FLOATS: Mapping[DType, str] = {
    by_token("f16"): "e",
    by_token("f32"): "f",
    by_token("f64"): "d",
    _BF16: "d",  # packed wide, then rounded
}
_INTEGERS: Mapping[DType, str] = {
    by_token(token): code
    for token, code in zip(
        ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"), "bhiqBHIQ", strict=True
    )
}
_CODES: Mapping[DType, str] = {**_FLOATS, **_INTEGERS}
_QUICK: Mapping[str, DType] = {
    dtype.kserve: dtype for dtype in _CODES if dtype.kserve and dtype is not _BF16
}
_QUICK_RANK = 8
_NON_FINITE: Mapping[str, float] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_EXACT_INTEGERS = 2**53
_PACKED_AT_ONCE = 4096
_JSON_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "bool",
    type(None): "null",
    list: "array",
    dict: "object",
}


def quick_array(datatype: str, shape: tuple[int, ...], data: Any) -> Array | None:
    """Do what `array_from_json` does, checks of datatype and shape included, for a common tensor.

    Args:
        datatype: as the peer announced it.
        shape: likewise.
        data: a list of nothing but int and float; or nothing.

    Returns:
        None for everything that is not common, or wrong: there is a slower way, which says what.
    """
    dtype = _QUICK.get(datatype)
    if dtype is None or len(shape) > _QUICK_RANK:
        return None
    if type(data) is not list or len(data) > _PACKED_AT_ONCE:
        return None
    packer = _packer_of(dtype, shape)
    if packer is None:
        return None
    try:
        return np.ndarray(shape, dtype.numpy, packer.pack(*data))
    except (struct.error, OverflowError):
        return None


@lru_cache(maxsize=1024)
def _packer_of(dtype: DType, shape: tuple[int, ...]) -> struct.Struct | None:
    """Packs the elements of a small tensor; None for a large, empty or impossible one."""
    elements = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 < elements <= _PACKED_AT_ONCE:
        return None  # beside an extent of zero, another may be beyond all memory
    return struct.Struct(f"<{elements}{_CODES[dtype]}")


def array_from_json(
    name: str, dtype: DType, shape: Sequence[int], elements: int, data: Any, is_numbers: bool
) -> Array:
    """Build a tensor from decoded JSON.

    Args:
        name: the tensor's name, for the messages.
        dtype: its element type.
        shape: outermost extent first, passed by `check_shape`.
        elements: the product of `shape`.
        data: what JSON held; a bare value is allowed for rank 0.
        is_numbers: True when `data` is known to be a list of nothing but int and float.

    Returns:
        A read-only array.

    Raises:
        TensorMismatch: nesting or count does not fit the shape.
        BadRequest: a value is not of the datatype or out of its range.
    """
    flat = data if is_numbers else _flatten(name, shape, elements, data)
    if len(flat) != elements:
        raise TensorMismatch(
            f"input {name!r}",
            f"number of values in data of shape {format_shape(shape)}",
            elements,
            len(flat),
        )
    if dtype is BYTES:
        return _encode_strings(name, shape, flat)
    if dtype is BOOL:
        packed = _pack_bools(name, flat)
    elif not is_numbers and bool in set(map(type, flat)):
        packed = _pack(dtype, _repair(name, dtype, flat))  # raises: a bool is no number
    else:
        try:
            packed = _pack(dtype, flat)
        except (struct.error, OverflowError):
            packed = _pack(dtype, _repair(name, dtype, flat))
    if dtype is _BF16:
        return _round_to_bf16(name, shape, packed)
    return view_as_array(name, dtype, shape, len(packed), packed)


def _flatten(name: str, shape: Sequence[int], elements: int, data: Any) -> list[Any]:
    """Undo the nesting, which must be that of the shape."""
    if type(data) is not list:
        if not shape and type(data) is not dict:
            return [data]
        raise BadRequest(
            f"input {name!r}: data is {_describe(data)}; it must be an array of values"
        )
    if not data or type(data[0]) is not list:
        return data
    level = [data]
    for depth, extent in enumerate(shape):
        for index, piece in enumerate(level):
            if type(piece) is not list or len(piece) != extent:
                got = len(piece) if type(piece) is list else _describe(piece)
                at = _place(shape[:depth], index)
                raise TensorMismatch(f"input {name!r}", f"length of data{at}", extent, got)
        level = list(chain.from_iterable(level))
        if not level and not elements:
            return level
    return level


def _place(shape: Sequence[int], index: int) -> str:
    """The indices of the `index`-th list of a level: ``[1][0]``."""
    indices: list[int] = []
    for extent in reversed(shape):
        index, position = divmod(index, extent)
        indices.append(position)
    return "".join(f"[{position}]" for position in reversed(indices))


@lru_cache(maxsize=256)
def _packer(code: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def _pack(dtype: DType, flat: Sequence[Any]) -> bytes:
    code = _CODES[dtype]
    count = len(flat)
    if count <= _PACKED_AT_ONCE:
        return _packer(code, count).pack(*flat)
    return b"".join(
        _packer(code, min(_PACKED_AT_ONCE, count - start)).pack(
            *flat[start : start + _PACKED_AT_ONCE]
        )
        for start in range(0, count, _PACKED_AT_ONCE)
    )


def _pack_bools(name: str, flat: Sequence[Any]) -> bytes:
    if set(map(type, flat)) <= {bool}:
        return bytes(flat)
    index, value = next((i, v) for i, v in enumerate(flat) if type(v) is not bool)
    raise BadRequest(
        f"input {name!r}: BOOL value {index} is {_describe(value)}; only true and false are allowed"
    )


def _encode_strings(name: str, shape: Sequence[int], flat: Sequence[Any]) -> Array:
    check_count(f"input {name!r}", len(flat))
    if not set(map(type, flat)) <= {str}:
        index, value = next((i, v) for i, v in enumerate(flat) if type(v) is not str)
        raise BadRequest(
            f"input {name!r}: BYTES value {index} is {_describe(value)}; it must be a string"
        )
    return strings_from_values([text.encode() for text in flat], shape)


def _round_to_bf16(name: str, shape: Sequence[int], packed: bytes) -> Array:
    wide = np.frombuffer(packed, np.float64)
    with np.errstate(over="ignore"):
        narrow: Array = wide.astype(_BF16.numpy)
    lost = np.isinf(narrow.astype(np.float32)) & np.isfinite(wide)
    if lost.any():
        index = int(lost.argmax())
        raise _out_of_range(name, _BF16, index, float(wide[index]))
    narrow = narrow.reshape(shape)
    narrow.flags.writeable = False
    return narrow


def _repair(name: str, dtype: DType, flat: Sequence[Any]) -> list[int] | list[float]:
    """Take the spellings that are allowed; name the first value that the datatype cannot hold."""
    if dtype in _INTEGERS:
        return [_as_integer(name, dtype, index, value) for index, value in enumerate(flat)]
    try:
        numbers = [_NON_FINITE[value] if type(value) is str else value for value in flat]
        if bool not in set(map(type, flat)):
            _pack(dtype, numbers)
            return numbers
    except (KeyError, struct.error, OverflowError):
        pass
    return [_as_float(name, dtype, index, value) for index, value in enumerate(flat)]


def _as_integer(name: str, dtype: DType, index: int, value: Any) -> int:
    if type(value) is float:
        if not value.is_integer():
            raise BadRequest(
                f"input {name!r}: {dtype.kserve} value {index} is {value!r}, which is not a whole"
                " number"
            )
        if abs(value) >= _EXACT_INTEGERS:
            raise BadRequest(
                f"input {name!r}: {dtype.kserve} value {index} is {value!r}; write it without"
                " fraction and exponent, its last digits could be lost"
            )
        value = int(value)
    elif type(value) is not int:
        raise _wrong_type(name, dtype, index, value)
    limits = np.iinfo(dtype.numpy)
    if not limits.min <= value <= limits.max:
        raise _out_of_range(name, dtype, index, value)
    return int(value)


def _as_float(name: str, dtype: DType, index: int, value: Any) -> float:
    if type(value) is str and value in _NON_FINITE:
        return _NON_FINITE[value]
    if type(value) is not float and type(value) is not int:
        raise _wrong_type(name, dtype, index, value)
    try:
        number = float(value)
        _packer(_FLOATS[dtype], 1).pack(number)
    except OverflowError:
        raise _out_of_range(name, dtype, index, value) from None
    return number


def _wrong_type(name: str, dtype: DType, index: int, value: Any) -> BadRequest:
    wanted = "a whole number" if dtype in _INTEGERS else "a number"
    return BadRequest(
        f"input {name!r}: {dtype.kserve} value {index} is {_describe(value)}; it must be {wanted}"
    )


def _out_of_range(name: str, dtype: DType, index: int, value: float) -> BadRequest:
    return BadRequest(
        f"input {name!r}: value {index} is {_shorten(value)}, out of the range of {dtype.kserve}"
    )


def _describe(value: Any) -> str:
    if isinstance(value, (list, dict)) or value is None:
        return f"JSON {_JSON_NAMES[type(value)]}"
    return f"the {_JSON_NAMES.get(type(value), 'number')} {_shorten(value)}"


def _shorten(value: Any) -> str:
    text = repr(value).replace("True", "true").replace("False", "false")
    return text if len(text) <= 48 else text[:40] + "..."
