"""The element types of bundles and the wire, one row per type, in one table.

What lives here: the names of a type in each notation and its width. What does not: arrays and
specs (`hloserve.core.tensors`). Everything is immutable; any thread may use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import override

__all__ = [
    "BOOL",
    "BYTES",
    "DTYPES",
    "F32",
    "I32",
    "I64",
    "U8",
    "DType",
    "by_kserve",
    "by_numpy",
    "by_safetensors",
    "by_stablehlo",
    "by_token",
    "of_wire",
]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. Instances are unique: compare with `is`.

    Attributes:
        token: name in `manifest.yaml`, e.g. ``f32``.
        numpy: dtype of arrays in memory; `object` for strings, whose elements are `bytes`.
        kserve: V2 datatype, e.g. ``FP32``; None for types that cannot cross the wire (FP8).
        stablehlo: element type in a program, e.g. ``ui8``; empty for strings.
        safetensors: name in a safetensors header, e.g. ``F8_E4M3``; likewise.
        contents_field: the typed field of V2's InferTensorContents; None when it has none.
    """

    token: str
    numpy: np.dtype[Any]
    kserve: str | None
    stablehlo: str
    safetensors: str
    contents_field: str | None

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @override
    def __str__(self) -> str:
        return self.token

    @override
    def __repr__(self) -> str:
        return f"DType({self.token})"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return by_token, (self.token,)


def _row(
    token: str, scalar: Any, kserve: str | None, stablehlo: str, safetensors: str, field: str | None
) -> DType:
    return DType(token, np.dtype(scalar), kserve, stablehlo, safetensors, field)


DTYPES: tuple[DType, ...] = (
    _row("f16", np.float16, "FP16", "f16", "F16", None),
    _row("f32", np.float32, "FP32", "f32", "F32", "fp32_contents"),
    _row("f64", np.float64, "FP64", "f64", "F64", "fp64_contents"),
    _row("bf16", ml_dtypes.bfloat16, "BF16", "bf16", "BF16", None),
    _row("f8_e5m2", ml_dtypes.float8_e5m2, None, "f8E5M2", "F8_E5M2", None),
    _row("f8_e4m3", ml_dtypes.float8_e4m3fn, None, "f8E4M3FN", "F8_E4M3", None),
    _row("i8", np.int8, "INT8", "i8", "I8", "int_contents"),
    _row("i16", np.int16, "INT16", "i16", "I16", "int_contents"),
    _row("i32", np.int32, "INT32", "i32", "I32", "int_contents"),
    _row("i64", np.int64, "INT64", "i64", "I64", "int64_contents"),
    _row("u8", np.uint8, "UINT8", "ui8", "U8", "uint_contents"),
    _row("u16", np.uint16, "UINT16", "ui16", "U16", "uint_contents"),
    _row("u32", np.uint32, "UINT32", "ui32", "U32", "uint_contents"),
    _row("u64", np.uint64, "UINT64", "ui64", "U64", "uint64_contents"),
    _row("bool", np.bool_, "BOOL", "i1", "BOOL", "bool_contents"),
)

BYTES = _row("bytes", np.object_, "BYTES", "", "", "bytes_contents")
"""Strings, each a `bytes`. Clients and hooks have them; programs and weights never do, so it is not
in `DTYPES`."""

_BY_TOKEN: Mapping[str, DType] = {d.token: d for d in (*DTYPES, BYTES)}
_BY_KSERVE: Mapping[str, DType] = {d.kserve: d for d in (*DTYPES, BYTES) if d.kserve is not None}
_BY_NUMPY: Mapping[np.dtype[Any], DType] = {d.numpy: d for d in DTYPES}
_BY_STABLEHLO: Mapping[str, DType] = {d.stablehlo: d for d in DTYPES}
_BY_SAFETENSORS: Mapping[str, DType] = {d.safetensors: d for d in DTYPES}


def by_token(token: str) -> DType:
    """Look a manifest token up. Raises KeyError."""
    return _BY_TOKEN[token]


def by_kserve(datatype: str) -> DType:
    """Look a V2 datatype up. Raises KeyError."""
    return _BY_KSERVE[datatype]


def by_numpy(dtype: np.dtype[Any]) -> DType:
    """Look a numpy dtype up, whatever its byte order. Raises KeyError, also for strings."""
    return _BY_NUMPY[dtype.newbyteorder("=")]


def of_wire(dtype: np.dtype[Any]) -> DType:
    """Look up what an array that meets clients holds: `object` is BYTES. Raises KeyError."""
    return BYTES if dtype.hasobject else _BY_NUMPY[dtype.newbyteorder("=")]


def by_stablehlo(element: str) -> DType:
    """Look a StableHLO element type up. Raises KeyError."""
    return _BY_STABLEHLO[element]


def by_safetensors(name: str) -> DType:
    """Look a safetensors dtype up. Raises KeyError."""
    return _BY_SAFETENSORS[name]


F32, I32, I64 = by_token("f32"), by_token("i32"), by_token("i64")
U8, BOOL = by_token("u8"), by_token("bool")
