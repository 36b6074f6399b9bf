"""The JSON of an infer request as a message: which members there are, and of what type.

What lives here: parsing. What does not: what the members mean (`hloserve.wire.v2_json`).
Stateless; any thread.

Rules.
1. Unknown members are ignored; known ones have the type of the specification, or are null, which
   means absent.
2. The text is bounded before it is parsed, as a number takes up to ten times its text. Its depth is
   bounded by the parser.
"""

import re
from typing import Any, TypeAlias

import msgspec

from hloserve.core.errors import MalformedBody
from hloserve.wire.tensor_bytes import ByteString

__all__ = ["FlatInput", "Input", "Output", "Request", "parse_request"]

Parameters: TypeAlias = dict[str, bool | int | float | str]


class Input(msgspec.Struct):
    """One input; `data` is any JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters | None = None
    data: Any = msgspec.UNSET


class Output(msgspec.Struct):
    """One requested output."""

    name: str
    parameters: Parameters | None = None


class Request(msgspec.Struct):
    """An infer request."""

    inputs: list[Input]
    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[Output] | None = None


class FlatInput(Input):
    """An input whose data is a list of nothing but numbers."""

    data: list[int | float] | msgspec.UnsetType = msgspec.UNSET


class _FlatRequest(Request):
    inputs: list[FlatInput]  # type: ignore[assignment]  # read only


_decoder = msgspec.json.Decoder(Request)
_flat_decoder = msgspec.json.Decoder(_FlatRequest)
"""The common case: its success proves that no bool is among the numbers, at no cost."""


class _RawInput(Input):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RawRequest(Request):
    inputs: list[_RawInput]  # type: ignore[assignment]  # read only


_raw_decoder = msgspec.json.Decoder(_RawRequest)
_numbers_decoder = msgspec.json.Decoder(list[int | float])

_PIECE_BYTES = 256 * 2**10
"""Longer texts are parsed piece by piece: the parser holds the interpreter's lock until it is done,
and parses 250 MB/s. A piece takes 1 ms."""

_MAX_TEXT_BYTES = 64 * 2**20
"""Some 7 million numbers. Triton's limit is the same; binary tensors have none."""

_MAX_LISTS = 2**20
"""A list takes 0.4 us, more than 20 times what a number takes, and two bytes of text."""


# One token or one whole string, so that a token inside a string stays what it is.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?(?:NaN|Infinity)', re.DOTALL)


def _quote_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return token if token[:1] == b'"' else b'"%b"' % token


def parse_request(text: ByteString) -> Request:
    """Parse JSON; bare NaN and Infinity, which many clients write, are taken as strings.

    Raises:
        MalformedBody: it is no JSON, or no infer request, or longer than is read.
    """
    if len(text) > _MAX_TEXT_BYTES:
        raise MalformedBody(
            f"the JSON has {len(text)} bytes, at most {_MAX_TEXT_BYTES} are read; send large"
            " tensors as binary tensors, behind the JSON"
        )
    try:
        if len(text) > _PIECE_BYTES:
            _check_brackets(text)
            if (request := _parse_pieces(text)) is not None:
                return request
        return _flat_decoder.decode(text)
    except msgspec.ValidationError:
        return _parse_general(text, text)
    except msgspec.DecodeError as error:
        quoted = _quote_tokens(text)
        if quoted is None:
            raise _not_json(error, text) from error
        return _parse_general(quoted, text)
    except (RecursionError, UnicodeError) as error:
        raise _not_json(error, text) from error


def _check_brackets(text: ByteString) -> None:
    """Bound what the parser makes of a long text in one go, while nobody else has a turn.

    Raises:
        MalformedBody: it has more lists than are read.
    """
    whole = bytes(text)
    lists = whole.count(b"[") + whole.count(b"{")
    if lists > _MAX_LISTS:
        raise MalformedBody(
            f"the JSON has {lists} lists and objects, at most {_MAX_LISTS} are read; send data as"
            " one flat list, or as binary tensors"
        )


def _parse_pieces(text: ByteString) -> Request | None:
    """Parse a long text, so that other threads get their turns; None when it is not flat numbers.

    What is refused here is left to the parser of the whole, which says why.

    Raises:
        msgspec.DecodeError: it is no JSON.
    """
    try:
        raw = _raw_decoder.decode(text)
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        return None
    try:
        inputs: list[Input] = [
            FlatInput(
                each.name,
                each.shape,
                each.datatype,
                each.parameters,
                each.data
                if isinstance(each.data, msgspec.UnsetType)
                else _parse_numbers(each.data),
            )
            for each in raw.inputs
        ]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return Request(inputs, raw.id, raw.parameters, raw.outputs)


def _parse_numbers(raw: msgspec.Raw) -> list[int | float]:
    """Parse an array of numbers.

    Raises:
        msgspec.DecodeError: it holds something else.
    """
    text = bytes(raw)
    if len(text) <= _PIECE_BYTES:
        return _numbers_decoder.decode(text)
    numbers: list[int | float] = []
    start, last = 1, text.rindex(b"]")
    while start < last:
        end = text.find(b",", start + _PIECE_BYTES, last)
        end = last if end < 0 else end
        numbers += _numbers_decoder.decode(b"[%b]" % text[start:end])
        start = end + 1
    return numbers


def _parse_general(text: ByteString, original: ByteString) -> Request:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        if text is original and (quoted := _quote_tokens(text)) is not None:
            return _parse_general(quoted, original)
        raise _not_json(error, text) from error


def _quote_tokens(text: ByteString) -> bytes | None:
    whole = bytes(text)
    if b"NaN" not in whole and b"Infinity" not in whole:
        return None
    quoted = _TOKENS.sub(_quote_token, whole)
    return None if quoted == whole else quoted  # they stand inside strings


def _not_json(error: Exception, text: ByteString) -> MalformedBody:
    if not text:
        return MalformedBody("the body is empty; an infer request is a JSON object with inputs")
    if isinstance(error, msgspec.ValidationError):
        what = f"the JSON is not an infer request: {error}"
        return MalformedBody(f"{_name_place(str(error), text)}{what}")
    if isinstance(error, RecursionError):
        return MalformedBody("the JSON is nested too deeply")
    return MalformedBody(f"the body is not JSON: {error}")


class _Tensor(msgspec.Struct):
    name: str = ""
    parameters: Any = None


class _Names(msgspec.Struct):
    """Nothing but what a message may need to name; the rest is skipped, not made."""

    inputs: list[_Tensor] | None = None
    outputs: list[_Tensor] | None = None
    parameters: Any = None


_PLACE = re.compile(r"`\$(?:\.(in|out)puts\[(\d+)\])?(\.parameters\[)?")


def _name_place(reason: str, text: ByteString) -> str:
    """Say by name what the parser's message has by number: ``input 'x': parameter 'a': ``."""
    place = _PLACE.search(reason)
    if place is None:
        return ""
    try:
        names = msgspec.json.decode(text, type=_Names)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return ""
    role, number, has_parameter = place.groups()
    named, parameters = "", names.parameters
    if role:
        tensor = ((names.inputs if role == "in" else names.outputs) or [])[int(number)]
        named, parameters = f"{role}put {tensor.name!r}: " if tensor.name else "", tensor.parameters
    if has_parameter and isinstance(parameters, dict):
        for key, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                return f"{named}parameter {key!r}: "
    return named
