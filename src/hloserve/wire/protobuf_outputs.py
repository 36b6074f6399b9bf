"""Requested outputs inside V2 protobuf requests: names, places in shared memory, classes.

What lives here: reading and writing them. What does not: tensors
(`hloserve.wire.protobuf_tensors`), what the parameters mean (`hloserve.wire.v2_parameters`,
`hloserve.wire.v2_shared_memory`) and whole messages (`hloserve.wire.v2_protobuf`). Any thread: the
caches are bounded, and hold immutable values.

Source: V2 protocol, InferRequestedOutputTensor.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError

from hloserve.core.errors import DuplicateTensor, MalformedBody
from hloserve.core.requests import Parameter, Placement
from hloserve.wire.protobuf_fields import Records, length_delimited
from hloserve.wire.protobuf_tensors import parameter_value, set_parameter
from hloserve.wire.protos import inference_pb2
from hloserve.wire.v2_parameters import CLASSIFICATION, classes_of
from hloserve.wire.v2_shared_memory import parameters_of, placement_of

__all__ = ["classified_output", "placed_output", "read_outputs", "requested_output"]

_NAME, _OUTPUTS = 1, 6
"""Field numbers: of the name in the record, and of the record in a request."""

_CACHED_BYTES = 256
"""Longer records are rare and would let a caller fill the cache."""

_CACHE_ENTRIES = 4096

_LONGEST_OUTPUT_BYTES = 64 * 1024
"""Of a record, which protobuf makes objects of before its parts are seen."""


class _Wanted(NamedTuple):
    """A requested output: its name, its place in shared memory, how many classes of it."""

    name: str
    placement: Placement | None = None
    classes: int = 0


def read_outputs(
    records: Records, placements: dict[str, Placement], classes: dict[str, int]
) -> tuple[str, ...]:
    """Read the requested outputs of a message.

    Args:
        records: the bytes of each.
        placements: gets the place of each that shall go to shared memory.
        classes: gets how many classes of each are wanted, of those that shall be classified.

    Returns:
        Their names.

    Raises:
        BadRequest: a name comes twice, or parameters that cannot be.
    """
    names = []
    for record in records:
        wanted = _read_output(bytes(record))
        names.append(wanted.name)
        if wanted.placement is not None:
            placements[wanted.name] = wanted.placement
        if wanted.classes:
            classes[wanted.name] = wanted.classes
    if len(names) > 1 and len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DuplicateTensor(f"output {twice!r}")
    return tuple(names)


def _read_output(record: bytes) -> _Wanted:
    """Read one InferRequestedOutputTensor."""
    if len(record) <= _CACHED_BYTES:
        return _parse_output_cached(record)
    if len(record) > _LONGEST_OUTPUT_BYTES:
        raise MalformedBody(
            f"a requested output takes {len(record)} bytes; at most {_LONGEST_OUTPUT_BYTES} are"
            " read"
        )
    return _parse_output(record)


def _parse_output(record: bytes) -> _Wanted:
    try:
        output = inference_pb2.ModelInferRequest.InferRequestedOutputTensor.FromString(record)
    except DecodeError as error:
        raise MalformedBody(
            f"a requested output is not a valid protobuf message: {error}"
        ) from None
    if not output.parameters:
        return _Wanted(output.name)
    parameters = {key: parameter_value(choice) for key, choice in output.parameters.items()}
    where = f"output {output.name!r}"
    return _Wanted(output.name, placement_of(where, parameters), classes_of(where, parameters))


_parse_output_cached = lru_cache(_CACHE_ENTRIES)(_parse_output)


@lru_cache(_CACHE_ENTRIES)
def requested_output(name: str) -> bytes:
    """Write a requested output that is nothing but a name."""
    return length_delimited(_OUTPUTS, length_delimited(_NAME, name.encode()))


def placed_output(name: str, placement: Placement) -> bytes:
    """Write a requested output that shall go to shared memory."""
    return _output_with(name, parameters_of(placement))


@lru_cache(_CACHE_ENTRIES)
def classified_output(name: str, classes: int) -> bytes:
    """Write a requested output of which the highest classes shall come."""
    return _output_with(name, {CLASSIFICATION: classes})


def _output_with(name: str, parameters: Mapping[str, Parameter]) -> bytes:
    output = inference_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        set_parameter(output.parameters[key], value)
    return length_delimited(_OUTPUTS, output.SerializeToString())
