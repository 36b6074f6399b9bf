"""What follows the JSON of a request: binary tensors, and bodies that are nothing but a tensor.

What lives here: where the JSON ends, the pieces behind it, raw requests. What does not: the JSON
(`hloserve.wire.v2_json`) and bytes as arrays (`hloserve.wire.tensor_bytes`). Stateless; any thread.

Source: V2 protocol, binary tensor data extension.
"""

from collections.abc import Sequence
from math import prod

from hloserve.core.dtypes import BYTES
from hloserve.core.errors import BadRequest, MalformedBody, TensorMismatch
from hloserve.core.tensors import Array, AxisKind, Tensors, TensorSpec
from hloserve.wire.strings import strings_from_values
from hloserve.wire.tensor_bytes import ByteString, format_shape, view_as_array

__all__ = ["LENGTH_HEADER", "decode_raw_input", "parse_length", "take_binary"]

LENGTH_HEADER = "Inference-Header-Content-Length"
"""The header that carries the length of the JSON part, in both directions."""


def stated_length(text: str) -> int | None:
    """What the value of `LENGTH_HEADER` says; None when it is no number, or beyond any length."""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return None


def parse_length(text: str, body_bytes: int) -> int:
    """Read the value of `LENGTH_HEADER`.

    Args:
        text: the header's value.
        body_bytes: length of the whole body.

    Raises:
        MalformedBody: it is no length, or one beyond the body.
    """
    length = stated_length(text)
    if length is None:
        raise MalformedBody(
            f"header {LENGTH_HEADER} is {text[:64]!r}; it must be the length of the JSON part"
        )
    if length > body_bytes:
        raise MalformedBody(f"header {LENGTH_HEADER} is {length}, the body has {body_bytes} bytes")
    return length


def take_binary(name: str, size: object, body: ByteString, position: int) -> memoryview:
    """Cut one input's bytes out of the body.

    Args:
        name: the input's name, for the messages.
        size: its parameter ``binary_data_size``.
        body: the whole body.
        position: where the previous tensor ended.

    Raises:
        BadRequest: the size is no length.
        MalformedBody: the body ends before it.
    """
    if type(size) is not int or size < 0:
        raise BadRequest(
            f"input {name!r}: binary_data_size is {size!r}; it must be an integer of 0 or more"
        )
    if size > len(body) - position:
        raise MalformedBody(
            f"input {name!r}: binary_data_size is {size}, only {len(body) - position} bytes are"
            " left",
            position,
        )
    return memoryview(body)[position : position + size]


def decode_raw_input(raw: ByteString, specs: Sequence[TensorSpec]) -> Tensors:
    """Interpret a raw request's body: the bytes of the one input, as a batch of one.

    For BYTES it is one string, without a length in front, so that a file can be sent as it is.

    Args:
        raw: `OutputForms.raw`.
        specs: the model's client-facing inputs.

    Raises:
        BadRequest: the model has several inputs, or more open axes than can be inferred.
        TensorMismatch: the byte length fits no shape of the input.

    Source: V2 protocol, binary tensor data extension, "Raw Binary Request".
    """
    if len(specs) != 1:
        raise BadRequest(
            f"a raw request needs a model with one input, this one has {len(specs)};"
            " send JSON or binary tensors"
        )
    spec = specs[0]
    shape = [1 if axis.kind is AxisKind.BATCH else axis.extent for axis in spec.axes]
    open_axes = [position for position, extent in enumerate(shape) if extent is None]
    if len(open_axes) > 1:
        raise BadRequest(
            f"input {spec.name!r}: a raw request can leave one variable axis open, this input has"
            f" {len(open_axes)}; send JSON or binary tensors"
        )
    if open_axes:
        shape[open_axes[0]] = _open_extent(spec, shape, raw)
    known = [extent or 0 for extent in shape]
    if spec.dtype is BYTES:
        return {spec.name: _one_string(spec.name, known, raw)}
    nbytes = prod(known) * spec.dtype.itemsize
    return {spec.name: view_as_array(spec.name, spec.dtype, known, nbytes, raw)}


def _one_string(name: str, shape: Sequence[int], raw: ByteString) -> Array:
    if prod(shape) != 1:
        raise BadRequest(
            f"input {name!r}: a raw request holds one string, the shape {format_shape(shape)} needs"
            f" {prod(shape)}; send JSON or binary tensors"
        )
    return strings_from_values([bytes(raw)], shape)


def _open_extent(spec: TensorSpec, shape: Sequence[int | None], raw: ByteString) -> int:
    """The extent that makes the body fit: of its length, or 1 for strings."""
    if spec.dtype is BYTES:
        return 1
    row_bytes = prod(extent for extent in shape if extent is not None) * spec.dtype.itemsize
    if not row_bytes:
        return 0
    extent, rest = divmod(len(raw), row_bytes)
    if rest:
        raise TensorMismatch(
            f"input {spec.name!r}", "byte length", f"a multiple of {row_bytes}", len(raw)
        )
    return extent
