"""Messages like the last one: the quick way through the codec.

A client's requests differ from each other in their ids and in the bytes of their tensors. What
lives here: recognising such a message, and writing such an answer, by comparing and copying whole
pieces. What does not: reading and checking a message for the first time
(`hloserve.wire.v2_protobuf`), whose result is what a repeat stands for. Reading takes half the
time so, writing half. The server's event loop alone calls it.

Rules.
1. A pattern is learned from a message that was read and checked in full, and only if writing it
   again by the pattern gives the same bytes.
2. A message that is not exactly of the pattern, to the last byte, is none of ours: it is read in
   full.
3. Only patterns that were seen twice in a row are kept, one per model, and a bounded number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hloserve.core.dtypes import BOOL
from hloserve.core.requests import InferRequest
from hloserve.core.tensors import Array, Tensors

__all__ = ["learn_request", "learn_response", "repeat_of", "response_like"]

_MODEL_TAG, _ID_TAG = 0x0A, 0x1A
_LONGEST_TEXT = 127
"""Texts up to this long have a length of one byte."""

_MOST_PATTERNS = 1024
_LARGEST_BYTES = 64 * 1024
"""Above it, what the full codec does per message no longer matters."""


class _Tensor(NamedTuple):
    head: bytes
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


class _Pattern(NamedTuple):
    model: str
    start: bytes
    middle: bytes
    outputs: tuple[str, ...]
    tensors: tuple[_Tensor, ...]
    body_bytes: int  # of the message without its id


_patterns: dict[bytes, _Pattern] = {}
_candidates: dict[bytes, _Pattern] = {}


def repeat_of(body: bytes, deadline_ns: int) -> InferRequest | None:
    """Read a ModelInferRequest that is like an earlier one; None when it is not.

    The arrays are views of `body`.
    """
    if len(body) < 2:
        return None
    pattern = _patterns.get(body[: body[1] + 2])
    if pattern is None:
        return None
    model, start, middle, outputs, tensors, body_bytes = pattern
    position = len(start)
    request_id = ""
    if len(body) != body_bytes:
        length = len(body) - body_bytes - 2
        if not 0 < length <= _LONGEST_TEXT or body[position] != _ID_TAG:
            return None
        if body[position + 1] != length:
            return None
        position += 2
        try:
            request_id = body[position : position + length].decode()
        except UnicodeDecodeError:
            return None  # the full codec says what is wrong
        position += length
    if not body.startswith(middle, position):
        return None
    position += len(middle)
    inputs: Tensors = {}
    for head, name, dtype, shape, nbytes in tensors:
        if not body.startswith(head, position):
            return None
        position += len(head)
        inputs[name] = np.ndarray(shape, dtype, body, position)
        position += nbytes
    return InferRequest(model, inputs, request_id, "", outputs, deadline_ns, {})


def learn_request(
    body: bytes, request: InferRequest, records: Sequence[bytes], outputs: bytes, heads: list[bytes]
) -> None:
    """Keep the pattern of a message that was read in full, if it has one.

    Args:
        body: the message.
        request: what it says.
        records: its announcements of tensors, each with tag and length.
        outputs: its requested outputs, likewise, joined.
        heads: tag and length of each of its raw contents.
    """
    model = request.model.encode()
    if (
        len(body) > _LARGEST_BYTES
        or len(model) > _LONGEST_TEXT
        or request.version
        or request.parameters
        or not all(_is_plain(array) for array in request.inputs.values())
    ):
        return
    start = bytes((_MODEL_TAG, len(model))) + model
    middle = b"".join(records) + outputs
    tensors = tuple(
        _Tensor(head, name, array.dtype, array.shape, array.nbytes)
        for head, (name, array) in zip(heads, request.inputs.items(), strict=True)
    )
    contents = [piece for t in tensors for piece in (t.head, request.inputs[t.name].tobytes())]
    bare = b"".join((start, middle, *contents))
    text = request.id.encode()
    id_field = bytes((_ID_TAG, len(text))) + text if 0 < len(text) <= _LONGEST_TEXT else b""
    if body != start + id_field + bare[len(start) :]:
        return
    pattern = _Pattern(request.model, start, middle, request.outputs, tensors, len(bare))
    if _candidates.get(start) != pattern:
        _keep(_candidates, start, pattern)
    else:
        _keep(_patterns, start, pattern)


def _is_plain(array: Array) -> bool:
    """Any bytes will do for its elements, and they are there."""
    return array.nbytes > 0 and array.dtype != BOOL.numpy and not array.dtype.hasobject


def _keep(table: dict[bytes, _Pattern], key: bytes, pattern: _Pattern) -> None:
    if len(table) >= _MOST_PATTERNS:
        table.clear()
    table[key] = pattern


class _Answer(NamedTuple):
    start: bytes
    rest: bytes
    dtype: np.dtype[Any]


_answers: dict[tuple[str, str, tuple[int, ...]], _Answer] = {}


def response_like(model: str, request_id: str, name: str, array: Array) -> bytes | None:
    """Write a ModelInferResponse of one output like an earlier one; None when there was none."""
    answer = _answers.get((model, name, array.shape))
    if answer is None or answer.dtype is not array.dtype:
        return None
    text = request_id.encode()
    if len(text) > _LONGEST_TEXT:
        return None
    id_field = bytes((_ID_TAG, len(text))) + text if text else b""
    return b"".join((answer.start, id_field, answer.rest, array.tobytes()))


def learn_response(model: str, name: str, array: Array, start: bytes, rest: bytes) -> None:
    """Keep how an answer was written: what comes before the id, and after it up to the bytes."""
    dtype = array.dtype
    if array.nbytes > _LARGEST_BYTES or not dtype.isnative or dtype.hasobject:
        return
    if len(_answers) >= _MOST_PATTERNS:
        _answers.clear()
    _answers[model, name, array.shape] = _Answer(start, rest, dtype)
