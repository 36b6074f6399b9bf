"""From arrays to JSON text: the `data` member of an output. The only module that imports orjson.

What lives here: the values of a tensor, and the text of a message that holds them. What does not:
messages (`hloserve.wire.v2_json`) and reading (`hloserve.wire.v2_json_numbers`). Any thread.

Rules.
1. A float is written with the fewest digits that name it among the values of its type: FP32 0.1
   is ``0.1``, not the double 0.10000000149011612. FP16 and BF16 are written as FP32.
2. What JSON has no number for, NaN and the infinities, becomes null, or a string on demand.
3. Strings are written as text; one that is not UTF-8 is refused.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson

from hloserve.core.dtypes import DTYPES, by_token
from hloserve.core.tensors import Array
from hloserve.wire.strings import json_strings

__all__ = ["NonFinite", "encode_message", "json_from_array"]

NonFinite: TypeAlias = Literal["null", "string"]
"""How NaN and the infinities leave: JSON has no numbers for them."""


_WIDENED = {by_token(token).numpy for token in ("f16", "bf16")}
"""Written as the FP32 of the same value: their own fewest digits would call 65504 65500.0."""


_AS_THEY_ARE = {dtype.numpy for dtype in DTYPES if dtype.kserve} - _WIDENED
"""What the encoder takes in this machine's byte order; dtypes of the other one are not in it."""

_PIECE_VALUES = 32_768
"""Written in some 1 ms."""


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Write a message whose values may come from `json_from_array`."""
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)


def json_from_array(
    name: str, array: Array, non_finite: NonFinite = "null"
) -> Array | list[Any] | orjson.Fragment:
    """The values of a tensor, flat and row-major, ready for `encode_message`.

    Args:
        name: the output's name, for the message.
        array: any V2 datatype.
        non_finite: ``null`` leaves NaN and infinities to the encoder, which writes null.

    Raises:
        BadRequest: an element of a BYTES tensor is not UTF-8.
    """
    dtype = array.dtype
    if dtype in _AS_THEY_ARE and non_finite == "null" and array.size <= _PIECE_VALUES:
        return array.reshape(-1) if array.flags.c_contiguous else array.flatten()
    if dtype.hasobject:
        return json_strings(f"output {name!r}", array)
    flat = array.reshape(-1)
    if not flat.flags.c_contiguous:
        flat = flat.copy()
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    if flat.dtype in _WIDENED:
        with np.errstate(invalid="ignore"):  # a signalling NaN is none the less a NaN
            flat = flat.astype(np.float32)
    if non_finite == "string" and flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return _name_non_finite(flat)
    return flat if flat.size <= _PIECE_VALUES else _write_pieces(flat)


def _write_pieces(flat: Array) -> orjson.Fragment:
    """The text of a large array, written so that other threads get their turns in between."""
    pieces = (
        orjson.dumps(flat[start : start + _PIECE_VALUES], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for start in range(0, flat.size, _PIECE_VALUES)
    )
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


def _name_non_finite(values: Array) -> list[Any]:
    named: list[Any] = orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        value = values[index]
        named[index] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return named
