"""Writing the weights of a bundle in either layout.

What lives here: arrays to the bytes of a weights file. What does not: the header's syntax
(`hloserve.bundle.safetensors`) and what the layouts mean (`hloserve.bundle.weights`). Pure; any
thread.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from hloserve.bundle.findings import describe, listing, repeated
from hloserve.bundle.safetensors import (
    MAX_HEADER_BYTES,
    MAX_RANK,
    METADATA_KEY,
    TensorEntry,
    encode_header,
)
from hloserve.bundle.weights import ARGUMENT_ORDER, AXIS_ORDER, PROGRAM_AXIS_ORDER
from hloserve.core.dtypes import DType, by_numpy
from hloserve.core.tensors import Array

__all__ = ["Layout", "WeightArrays", "WeightsPlan", "plan_weights"]

Layout: TypeAlias = Literal["xla", "legacy"]
WeightArrays: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Names and arrays, or what `numpy.asarray` makes arrays of, in the order of the arguments."""


@dataclass(frozen=True)
class WeightsPlan:
    """A weights file that is ready to be written.

    Attributes:
        header: the file's first bytes.
        arrays: in the order of their bytes, shaped as the header says.
    """

    header: bytes
    arrays: tuple[Array, ...]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The file's bytes, one tensor at a time; a copy is made only of what needs one."""
        yield self.header
        for array in self.arrays:
            little_endian = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
            yield little_endian.reshape(-1).view(np.uint8).data


def plan_weights(weights: WeightArrays, layout: Layout, findings: list[str]) -> WeightsPlan:
    """Lay a weights file out; nothing is copied yet.

    Args:
        weights: the order becomes that of the program's weight arguments.
        layout: ``xla`` stores program order. ``legacy`` stores reversed shapes and permuted data,
            for servers that know nothing else.
        findings: gets one sentence per fault.
    """
    pairs = list(weights.items() if isinstance(weights, Mapping) else weights)
    names = [name for name, _ in pairs]
    arrays = {name: _read_array(name, value, findings) for name, value in pairs}
    if len(arrays) < len(names):
        findings.append(f"weights hold {listing(repeated(names))} twice; names are unique")
    dtypes = {name: _dtype_of(name, array, findings) for name, array in arrays.items()}
    # Wide elements first, so that every tensor is aligned for readers that map the file.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    stored = {name: arrays[name].T if layout == "legacy" else arrays[name] for name in order}
    entries, at = [], 0
    for name, array in stored.items():
        dtype = dtypes[name]
        if dtype is not None:
            entries.append(TensorEntry(name, dtype, array.shape, at, at + array.nbytes))
            at += array.nbytes
    if findings:
        return WeightsPlan(b"", ())
    metadata = {ARGUMENT_ORDER: json.dumps(names, separators=(",", ":"), ensure_ascii=False)}
    if layout == "xla":
        metadata[AXIS_ORDER] = PROGRAM_AXIS_ORDER
    header = encode_header(entries, metadata)
    if len(header) > MAX_HEADER_BYTES:
        findings.append(f"the names of the weights take more than {MAX_HEADER_BYTES} bytes")
    return WeightsPlan(header, tuple(stored.values()))


def _read_array(name: object, value: object, findings: list[str]) -> Array:
    where = f"weight {name!r}"
    if not isinstance(name, str) or name == METADATA_KEY:
        findings.append(f"{where}: the name must be a string other than {METADATA_KEY}")
    elif not _is_utf8(name):
        findings.append(f"{where}: the name is not valid text")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        findings.append(f"{where}: not an array: {error}")
        return np.empty(0)
    if array.ndim > MAX_RANK:
        findings.append(f"{where}: has {array.ndim} axes, at most {MAX_RANK} are supported")
    return array


def _dtype_of(name: str, array: Array, findings: list[str]) -> DType | None:
    try:
        return by_numpy(array.dtype)
    except KeyError:
        findings.append(
            f"weight {name!r}: dtype {describe(array.dtype.name)} has no place in a bundle;"
            " convert it"
        )
        return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
