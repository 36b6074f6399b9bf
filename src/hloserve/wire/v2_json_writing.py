"""From arrays to JSON text: the `data` member of an output. The only module that imports orjson.

What lives here: the values of a tensor, and the text of a message that holds them. What does not:
messages (`hloserve.wire.v2_json`) and reading (`hloserve.wire.v2_json_numbers`). Any thread.

Rules.
1. A float is written with the fewest digits that name it among the values of its own type: FP32
   0.1 is ``0.1``, not the double 0.10000000149011612.
2. What JSON has no number for, NaN and the infinities, becomes null, or a string on demand.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson

from hloserve.core.dtypes import DType, by_token
from hloserve.core.tensors import Array

__all__ = ["NonFinite", "encode_message", "json_from_array"]

NonFinite: TypeAlias = Literal["null", "string"]
"""How NaN and the infinities leave: JSON has no numbers for them."""


class _ShortFloats(dict[int, float]):
    """From the bits of a 16-bit float to the double whose text is as short as its own may be.

    Filled as values occur: a first time costs microseconds, and there are no more than 65536.
    """

    def __init__(self, dtype: DType) -> None:
        self._scalar = dtype.numpy.type

    def __missing__(self, bits: int) -> float:
        exact = np.uint16(bits).view(self._scalar)
        value = short = float(exact)
        if math.isfinite(value):
            with np.errstate(over="ignore"):  # few digits may round beyond the largest value
                for digits in range(1, 17):
                    short = float(f"{value:.{digits}g}")
                    if self._scalar(short) == exact:
                        break
        self[bits] = short
        return short


_SHORT_FLOATS: Mapping[np.dtype[Any], _ShortFloats] = {
    dtype.numpy: _ShortFloats(dtype) for dtype in (by_token("f16"), by_token("bf16"))
}


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Write a message whose values may come from `json_from_array`."""
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)


def json_from_array(array: Array, non_finite: NonFinite = "null") -> Array | list[Any]:
    """The values of a tensor, flat and row-major, ready for `encode_message`.

    Args:
        array: any V2 datatype.
        non_finite: ``null`` leaves NaN and infinities to the encoder, which writes null.
    """
    flat = array.reshape(-1)
    if not flat.flags.c_contiguous:
        flat = flat.copy()
    if not flat.dtype.isnative:
        flat = flat.astype(flat.dtype.newbyteorder("="))
    short = _SHORT_FLOATS.get(flat.dtype)
    values = flat if short is None else list(map(short.__getitem__, flat.view(np.uint16).tolist()))
    if non_finite == "string" and (short is not None or flat.dtype.kind == "f"):
        with np.errstate(invalid="ignore"):  # a signalling NaN is none the less a NaN
            wide = flat.astype(np.float64)
        if not np.isfinite(wide).all():
            return _name_non_finite(values, wide)
    return values


def _name_non_finite(values: Array | list[float], wide: Array) -> list[Any]:
    named: list[Any] = orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
    for index in np.flatnonzero(~np.isfinite(wide)).tolist():
        value = wide[index]
        named[index] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return named
