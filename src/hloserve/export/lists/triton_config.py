"""`config.pbtxt` of a Triton repository: what a TorchScript model takes and returns.

What lives here: reading the text, and the few fields that an export needs. What does not: exporting
(`hloserve.export.lists.run`). Pure functions; any thread.

Source: Triton's model_config.proto; the text format of protobuf.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from hloserve.core.dtypes import DType, by_kserve

__all__ = ["TritonConfig", "TritonConfigFault", "TritonTensor", "batch_ladder", "parse_config"]

Message: TypeAlias = dict[str, list[Any]]
"""Field to all its values, in order: a field that occurs twice has two."""

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*  # left out
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[^\s\#"'{}\[\]<>:,;]+)
    |(?P<mark>[{}\[\]<>:,;])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">", "[": "]"}
_MAX_DEPTH = 20


class TritonConfigFault(ValueError):
    """Text that is not a usable configuration; the message says why."""


@dataclass(frozen=True, slots=True)
class TritonTensor:
    """One input or output; `dims` is in numpy order, without the batch axis."""

    name: str
    dtype: DType
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """The fields that an export needs.

    Attributes:
        max_batch_size: 0 when tensors have no batch axis. 1 when the text does not say.
        inputs: in the order of the model's arguments.
        outputs: in the order of its results.
    """

    max_batch_size: int
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]


def batch_ladder(max_batch_size: int) -> tuple[int, ...]:
    """Batch sizes from 1 to a largest one, each about half of the next.

    Example:
        >>> batch_ladder(12)
        (1, 3, 6, 12)
    """
    sizes = []
    while max_batch_size >= 1:
        sizes.append(max_batch_size)
        max_batch_size //= 2
    return tuple(reversed(sizes))


def parse_config(text: str) -> TritonConfig:
    """Read a configuration.

    Raises:
        TritonConfigFault: it is not protobuf's text format, or a tensor cannot be exported.
    """
    message = _parse_message(text)
    inputs, outputs = _tensors(message, "input"), _tensors(message, "output")
    if not inputs:
        raise TritonConfigFault("config.pbtxt declares no input")
    return TritonConfig(_max_batch_size(message), inputs, outputs)


def _max_batch_size(message: Message) -> int:
    value = message.get("max_batch_size", ["1"])[-1]
    if not (isinstance(value, str) and value.isascii() and value.isdecimal()):
        raise TritonConfigFault(f"max_batch_size must be a whole number, got {value!r}")
    return int(value)


def _tensors(message: Message, field: str) -> tuple[TritonTensor, ...]:
    entries = message.get(field, [])
    for entry in entries:
        if not isinstance(entry, dict):
            raise TritonConfigFault(f"{field} must be a message, got {entry!r}")
    return tuple(_tensor(entry, f"{field} {number}") for number, entry in enumerate(entries))


def _tensor(entry: Message, who: str) -> TritonTensor:
    name = _single(entry, "name", who)
    who = f"{who.split()[0]} {name!r}"
    data_type = _single(entry, "data_type", who)
    try:
        dtype = by_kserve(data_type.removeprefix("TYPE_"))
    except KeyError:
        raise TritonConfigFault(f"{who} has data_type {data_type}, which programs lack") from None
    dims = entry.get("dims", [])
    try:
        extents = tuple(int(extent) for extent in dims)
    except (TypeError, ValueError):
        raise TritonConfigFault(f"{who} has dims {dims}, expected whole numbers") from None
    return TritonTensor(name, dtype, extents)


def _single(entry: Message, field: str, who: str) -> str:
    value = entry.get(field, [None])[-1]
    if not isinstance(value, str):
        raise TritonConfigFault(f"{who} has no {field}")
    return value


def _parse_message(text: str) -> Message:
    return _Tokens(_tokens(text)).read_fields("", depth=0)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise TritonConfigFault(f"config.pbtxt, line {line}: a text is not closed")
        position = match.end()
        if match.lastgroup is not None:
            yield match.lastgroup, match.group()


class _Tokens:
    """Reads fields from tokens, one ahead."""

    def __init__(self, tokens: Iterator[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._next = next(tokens, ("end", ""))

    def _take(self) -> tuple[str, str]:
        taken, self._next = self._next, next(self._tokens, ("end", ""))
        return taken

    def read_fields(self, closing: str, depth: int) -> Message:
        """Read fields up to a closing mark, or to the end."""
        message: Message = {}
        while True:
            kind, text = self._take()
            if text in (",", ";") and kind == "mark":
                continue
            if text == closing and kind in ("mark", "end"):
                return message
            if kind != "word":
                raise TritonConfigFault(f"config.pbtxt: expected a field's name, got {text!r}")
            has_colon = self._next == ("mark", ":")
            if has_colon:
                self._take()
            message.setdefault(text, []).extend(self._read_values(text, depth))

    def _read_values(self, field: str, depth: int) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise TritonConfigFault(f"config.pbtxt is nested deeper than {_MAX_DEPTH} levels")
        kind, text = self._take()
        if kind == "text":
            return [text[1:-1]]
        if kind == "word":
            return [text]
        if text in ("{", "<"):
            return [self.read_fields(_CLOSING[text], depth + 1)]
        if text == "[":
            values = []
            while self._next != ("mark", "]"):
                if self._next == ("mark", ","):
                    self._take()
                else:
                    values += self._read_values(field, depth + 1)
            self._take()
            return values
        raise TritonConfigFault(f"config.pbtxt: field {field!r} has no value")
