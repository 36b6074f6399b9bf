"""JSON objects whose values are of one kind under names of the client's choice.

What lives here: reading them, so that a value of another kind is told by its name; the parser knows
it as ``$[...]``. What does not: what the names mean (`hloserve.server`). Stateless; any thread.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from hloserve.core.errors import MalformedBody

__all__ = ["RawValues", "decode_json", "decode_object", "decode_values"]

RawValues = dict[str, msgspec.Raw]
"""An object whose values have been skipped, not read."""

_objects = msgspec.json.Decoder(RawValues)
_T = TypeVar("_T")


def decode_object(body: bytes, kind: msgspec.json.Decoder[_T], what: str) -> dict[str, _T]:
    """Read a body that is such an object; an empty body is one of no values.

    Args:
        body: the text.
        kind: reads a value.
        what: what the body is, for messages.

    Raises:
        MalformedBody: it is no JSON object, or has values of another kind; each is named.
    """
    if not body.strip():
        return {}
    values = decode_json(body, _objects, what)
    return decode_values(values, kind, what)


def decode_json(body: bytes, decoder: msgspec.json.Decoder[_T], what: str) -> _T:
    """Read a body that is not empty.

    Args:
        body: the text.
        decoder: reads it.
        what: what the body is, for messages.

    Raises:
        MalformedBody: it is no such JSON.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(f"{what}: {error}") from error
    except RecursionError as error:
        raise MalformedBody(f"{what}: the JSON is nested too deeply") from error


def decode_values(
    values: Mapping[str, msgspec.Raw], kind: msgspec.json.Decoder[_T], what: str
) -> dict[str, _T]:
    """Read the values of an object.

    Raises:
        MalformedBody: values are of another kind; each is named.
    """
    read: dict[str, _T] = {}
    findings: list[str] = []
    for name, value in values.items():
        try:
            read[name] = kind.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            findings.append(f"{name!r}: {error}")
    if findings:
        raise MalformedBody(f"{what}: {'; '.join(findings)}")
    return read
