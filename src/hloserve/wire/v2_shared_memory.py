"""Tensors that a message places in shared memory, whichever codec read it.

What lives here: the three parameters that place a tensor, both ways. What does not: regions
(`hloserve.wire.shared_memory`), who registered them (`hloserve.server.shared_memory`), and how
parameters look on the wire (the codecs). Stateless; any thread.

Source: system shared memory extension of V2, "Inference".
"""

from collections.abc import Mapping

from hloserve.core.dtypes import BYTES, DType
from hloserve.core.errors import BadRequest, TensorMismatch
from hloserve.core.requests import Parameter, Placement, SharedTensor
from hloserve.wire.tensor_bytes import format_shape

__all__ = ["parameters_of", "placement_of", "shared_tensor"]

_REGION, _OFFSET, _SIZE = (
    "shared_memory_region",
    "shared_memory_offset",
    "shared_memory_byte_size",
)
_INT64_MAX = 2**63 - 1


def placement_of(tensor: str, parameters: Mapping[str, Parameter]) -> Placement | None:
    """Read where a tensor's parameters place it; None when they say nothing of it.

    Args:
        tensor: its name with the role, ``input 'x'``.
        parameters: the tensor's own.

    Raises:
        BadRequest: a part of the place is missing, or is no name or no count of bytes.
    """
    region = parameters.get(_REGION)
    if region is None:
        for key in (_OFFSET, _SIZE):
            if key in parameters:
                raise BadRequest(f"{tensor} has {key}, but {_REGION} is missing")
        return None
    if not isinstance(region, str) or not region:
        raise BadRequest(f"{tensor}: {_REGION} is {region!r}; it must be the name of a region")
    if _SIZE not in parameters:
        raise BadRequest(f"{tensor} is in shared memory region {region!r}, but {_SIZE} is missing")
    offset = _bytes(tensor, _OFFSET, parameters.get(_OFFSET, 0))
    return Placement(region, offset, _bytes(tensor, _SIZE, parameters[_SIZE]))


def _bytes(tensor: str, key: str, value: Parameter) -> int:
    if type(value) is not int or not 0 <= value <= _INT64_MAX:
        raise BadRequest(f"{tensor}: {key} is {value!r}; it must be an integer from 0 to 2**63 - 1")
    return value


def shared_tensor(
    tensor: str, dtype: DType, shape: tuple[int, ...], nbytes: int, placement: Placement
) -> SharedTensor:
    """Bring a tensor's announcement and its place together.

    Args:
        tensor: its name with the role, ``input 'x'``.
        dtype: its element type.
        shape: outermost extent first, and checked.
        nbytes: what the shape needs.
        placement: where its bytes are.

    Raises:
        TensorMismatch: the place is larger or smaller than the tensor.
    """
    if dtype is not BYTES and placement.byte_size != nbytes:  # strings tell their lengths inside
        what = f"{_SIZE} of a {dtype.kserve or dtype} tensor of shape {format_shape(shape)}"
        raise TensorMismatch(tensor, what, nbytes, placement.byte_size)
    return SharedTensor(dtype, shape, placement)


def parameters_of(placement: Placement) -> dict[str, Parameter]:
    """The parameters that say what a placement says."""
    parameters: dict[str, Parameter] = {_REGION: placement.region, _SIZE: placement.byte_size}
    if placement.offset:
        parameters[_OFFSET] = placement.offset
    return parameters
