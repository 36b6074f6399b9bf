"""Tensors inside V2 protobuf messages: what is announced, and typed contents.

What lives here: the tensor records that inputs of a request and outputs of a response share, read
and written through a cache, because a client announces the same tensors with every call. What does
not: raw bytes (`hloserve.wire.tensor_bytes`) and whole messages (`hloserve.wire.v2_protobuf`).
Any thread: the caches are `functools.lru_cache`, bounded, and hold immutable values.

Source: V2 protocol, InferInputTensor, InferOutputTensor, InferTensorContents.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from hloserve.core.dtypes import BYTES, DType, by_numpy, by_token
from hloserve.core.errors import BadRequest, MalformedBody, TensorMismatch
from hloserve.core.requests import Parameter, Placement, SharedTensor
from hloserve.core.tensors import Array
from hloserve.wire.protobuf_fields import check_fields, length_delimited, split_fields, varint
from hloserve.wire.protos import inference_pb2
from hloserve.wire.strings import MAX_STRINGS, strings_from_values
from hloserve.wire.tensor_bytes import (
    check_shape,
    format_shape,
    known_dtype,
    raw_length,
)
from hloserve.wire.v2_shared_memory import parameters_of, placement_of

__all__ = [
    "Announced",
    "announce",
    "announce_shared",
    "announce_strings",
    "array_from_contents",
    "parameter_value",
    "read_tensor",
    "set_parameter",
]

Contents: TypeAlias = inference_pb2.InferTensorContents

_TENSORS = 5
"""Field number of a request's inputs and of a response's outputs."""

_CARRIERS: Mapping[DType, np.dtype[Any]] = {
    by_token(narrow): np.dtype(wide)
    for narrow, wide in (("i8", "i4"), ("i16", "i4"), ("u8", "u4"), ("u16", "u4"))
}
"""Datatypes whose typed contents are wider than they are."""

_CACHED_BYTES = 256
"""Longer records are rare (typed contents, odd names) and would let a caller fill the cache."""

_CACHE_ENTRIES = 4096

_CONTENTS = 5
"""Field number of the typed contents of a tensor."""

_LONGEST_HEAD_BYTES = 64 * 1024
"""Of a tensor's name, shape and parameters, which protobuf makes objects of before we see them."""

_LONGEST_CONTENTS_BYTES = 64 * 2**20
"""Of a tensor's typed contents, likewise: a number may be 8 times as long in memory."""


class Announced(NamedTuple):
    """What a message says about one tensor, checked.

    Attributes:
        elements: product of `shape`.
        nbytes: what its raw bytes must count, of `raw_length`.
        contents: typed elements; None when the record has none.
        placement: where in shared memory its bytes are; None when they come in the message.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    elements: int
    nbytes: int
    contents: Contents | None
    placement: Placement | None


def read_tensor(record: bytes, role: str) -> Announced:
    """Read one InferInputTensor or InferOutputTensor; they have the same fields.

    Args:
        record: the message's bytes.
        role: ``input`` or ``output``, for the messages.

    Raises:
        BadRequest: see `check_shape`; or the datatype is unknown, its place in shared memory is
            none, or the record is malformed.
    """
    if len(record) > _CACHED_BYTES:
        _check_lengths(record, role)
        return _parse_tensor(record, role)
    return _parse_cached(record, role)


def _check_lengths(record: bytes, role: str) -> None:
    """Bound what protobuf makes of a record, before it does."""
    contents = split_fields(record, _CONTENTS)[_CONTENTS] or ()
    contents_bytes = sum(map(len, contents))
    if len(record) - contents_bytes > _LONGEST_HEAD_BYTES + 16 * len(contents):
        raise MalformedBody(
            f"an {role} takes {len(record) - contents_bytes} bytes for its name, shape and"
            f" parameters; at most {_LONGEST_HEAD_BYTES} are read"
        )
    if contents_bytes > _LONGEST_CONTENTS_BYTES:
        raise MalformedBody(
            f"an {role} has {contents_bytes} bytes of typed contents; at most"
            f" {_LONGEST_CONTENTS_BYTES} are read: send raw_{role}_contents"
        )
    for piece in contents:
        check_fields(piece, MAX_STRINGS, f"the typed contents of an {role}")


def _parse_tensor(record: bytes, role: str) -> Announced:
    try:
        tensor = inference_pb2.ModelInferRequest.InferInputTensor.FromString(record)
    except DecodeError as error:
        raise MalformedBody(f"an {role} is not a valid protobuf message: {error}") from error
    name = tensor.name
    placement = None
    if tensor.parameters:
        parameters = {key: parameter_value(choice) for key, choice in tensor.parameters.items()}
        placement = placement_of(f"{role} {name!r}", parameters)
    dtype = known_dtype(name, tensor.datatype, role)
    elements = check_shape(name, dtype, tensor.shape, role)
    contents = tensor.contents if tensor.HasField("contents") else None
    size = raw_length(dtype, elements)
    return Announced(name, dtype, tuple(tensor.shape), elements, size, contents, placement)


_parse_cached = lru_cache(_CACHE_ENTRIES)(_parse_tensor)


def array_from_contents(tensor: Announced, role: str) -> Array:
    """Make an array of a tensor's typed contents.

    Raises:
        BadRequest: its datatype has no typed field, or an element is out of the datatype's range.
        TensorMismatch: the field that belongs to the datatype does not hold one element per place.
    """
    name, dtype, shape, elements, _, contents, _ = tensor
    field = dtype.contents_field
    if field is None:
        raise BadRequest(
            f"{role} {name!r}: {dtype.kserve} has no typed contents; send its bytes in"
            " raw_input_contents"
        )
    values = getattr(contents, field) if contents is not None else ()
    if len(values) != elements:
        what = f"number of elements in {field} for a {dtype.kserve} tensor of shape"
        raise TensorMismatch(
            f"{role} {name!r}", f"{what} {format_shape(shape)}", elements, len(values)
        )
    if dtype is BYTES:
        return strings_from_values(values, shape)
    carrier = _CARRIERS.get(dtype)
    if carrier is None:
        return np.fromiter(values, dtype.numpy, elements).reshape(shape)
    wide = np.fromiter(values, carrier, elements)
    limits = np.iinfo(dtype.numpy)
    outside = (wide < limits.min) | (wide > limits.max)
    if outside.any():
        index = int(outside.argmax())
        raise BadRequest(
            f"{role} {name!r}: element {index} is {int(wide[index])}, outside the range of"
            f" {dtype.kserve}: {limits.min} to {limits.max}"
        )
    return wide.astype(dtype.numpy).reshape(shape)


@lru_cache(_CACHE_ENTRIES)
def announce(
    name: str, numpy_dtype: np.dtype[Any], shape: tuple[int, ...], raw_number: int
) -> tuple[bytes, bytes, int]:
    """Encode everything about a tensor but its bytes.

    Args:
        name: the tensor's name.
        numpy_dtype: of its array, in any byte order.
        shape: of its array.
        raw_number: the field that carries raw contents: 7 in requests, 6 in responses.

    Returns:
        The tensor's record (field 5 in both), tag and length of its raw contents, and that length.

    Raises:
        KeyError: V2 has no datatype for `numpy_dtype`.
    """
    dtype = by_numpy(numpy_dtype)
    if dtype.kserve is None:
        raise KeyError(numpy_dtype)
    tensor = inference_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=dtype.kserve, shape=shape
    )
    size = math.prod(shape) * dtype.itemsize
    raw_head = varint(raw_number << 3 | 2) + varint(size)
    return length_delimited(_TENSORS, tensor.SerializeToString()), raw_head, size


def announce_strings(name: str, shape: tuple[int, ...]) -> bytes:
    """Encode everything about a BYTES tensor but its bytes: its record, field 5 in both ways."""
    tensor = inference_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype="BYTES", shape=shape
    )
    return length_delimited(_TENSORS, tensor.SerializeToString())


def announce_shared(name: str, tensor: SharedTensor) -> bytes:
    """Encode a tensor whose bytes are in shared memory: its record, field 5 in both directions."""
    dtype, shape, placement = tensor
    record = inference_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=dtype.kserve or "", shape=shape
    )
    for key, value in parameters_of(placement).items():
        set_parameter(record.parameters[key], value)
    return length_delimited(_TENSORS, record.SerializeToString())


def parameter_value(parameter: inference_pb2.InferParameter) -> Parameter:
    """The value of a parameter, whichever type it came as; without one, the empty string."""
    choice = parameter.WhichOneof("parameter_choice")
    value: Parameter = getattr(parameter, choice) if choice else ""
    return value


def set_parameter(slot: inference_pb2.InferParameter, value: Parameter) -> None:
    """Write a parameter's value as the type that fits it; an integer fits 64 bits."""
    if isinstance(value, bool):
        slot.bool_param = value
    elif isinstance(value, str):
        slot.string_param = value
    elif isinstance(value, float):
        slot.double_param = value
    elif value < 2**63:
        slot.int64_param = value
    else:
        slot.uint64_param = value
