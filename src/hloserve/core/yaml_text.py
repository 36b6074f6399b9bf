"""YAML that others wrote, in manifests and node files: a strict reader for hostile text.

What lives here: text to plain values (mappings, lists, strings, numbers, booleans, null). What does
not: files, and what the keys mean (`hloserve.bundle.manifest`, `hloserve.config.layers`). Pure
functions; any thread.

Rules.
1. No anchors, aliases and tags: a document is no larger than its text, and holds plain values only.
   Dates stay strings, and there are no merge keys.
2. A key that appears twice is an error. Depth and number of values are bounded.
3. Every fault of the text is a `YamlFault`, whatever the library raises for it.
"""

from collections.abc import Hashable, Iterator
from contextlib import closing
from typing import Any, NoReturn, cast

import yaml

__all__ = [
    "FASTEST_PARSER",
    "MAX_DEPTH",
    "MAX_VALUES",
    "YamlFault",
    "load_yaml",
]

MAX_DEPTH = 50
MAX_VALUES = 50_000
_MAX_NUMBER_LENGTH = 100
_PREFIX = "tag:yaml.org,2002:"

# Ten times as fast where libyaml was there when PyYAML was built; both give the same events.
FASTEST_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlFault(Exception):
    """Text that is not acceptable YAML; the message says where and why."""


def load_yaml(
    text: str,
    parser: Any = FASTEST_PARSER,
    *,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> object:
    """Parse one document into plain values; None when there is none.

    Args:
        text: the document.
        parser: one of the library's loader classes; only its events are used.
        max_depth: how many mappings and lists may be inside each other.
        max_values: how many values, keys among them, there may be.

    Raises:
        YamlFault: the text breaks YAML or one of this module's rules.
    """
    try:
        with closing(cast("Any", yaml.parse(text, Loader=parser))) as events:
            return _Reader(events, max_depth, max_values).read_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlFault(place + (error.problem or error.context or "not valid YAML")) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # Numbers and escapes out of range reach us as what int(), float() and chr() raise.
        reason = " ".join(str(error).split())[:200]
        raise YamlFault(f"not valid YAML: {reason}") from error


class _Reader:
    """Builds plain values from the parser's events."""

    def __init__(self, events: Iterator[yaml.Event], max_depth: int, max_values: int) -> None:
        self._events = events
        self._max_depth = max_depth
        self._max_values = max_values
        self._values = 0

    def read_document(self) -> object:
        """Read the only document; None when the text holds none."""
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._read_value(next(self._events), depth=0)
        next(self._events)  # the end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            _refuse("there is a second document; keep one", event)
        return value

    def _read_value(self, event: yaml.Event, depth: int) -> object:
        self._values += 1
        if self._values > self._max_values:
            _refuse(f"there are more than {self._max_values} values", event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:  # type: ignore[attr-defined]  # all events that begin a value have it
            _refuse("anchors (&) and aliases (*) are not allowed; write the value out", event)
        if event.tag is not None:  # type: ignore[attr-defined]  # likewise
            _refuse("tags (!) are not allowed; write the plain value", event)
        if isinstance(event, yaml.ScalarEvent):
            return _read_scalar(event)
        if depth >= self._max_depth:
            _refuse(f"nested deeper than {self._max_depth} levels", event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._read_list(depth + 1)
        return self._read_mapping(depth + 1)

    def _read_list(self, depth: int) -> list[object]:
        values = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._read_value(event, depth))
        return values

    def _read_mapping(self, depth: int) -> dict[Hashable, object]:
        mapping: dict[Hashable, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._read_value(event, depth)
            if not isinstance(event, yaml.ScalarEvent):
                _refuse("a key must be a plain value", event)
            if key in mapping:
                _refuse(f"key {str(key)[:80]!r} appears twice; keep one", event)
            mapping[key] = self._read_value(next(self._events), depth)
        return mapping


def _refuse(problem: str, event: yaml.Event) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=cast("yaml.Mark", event.start_mark))


_numbers = yaml.constructor.SafeConstructor()
_CONSTRUCTORS = {
    _PREFIX + "null": _numbers.construct_yaml_null,
    _PREFIX + "bool": _numbers.construct_yaml_bool,
    _PREFIX + "int": _numbers.construct_yaml_int,
    _PREFIX + "float": _numbers.construct_yaml_float,
}


def _read_scalar(event: yaml.ScalarEvent) -> object:
    text: str = event.value
    # Not quoted, so it may be something else than text. A number that is longer is none: to convert
    # it could take seconds.
    if event.implicit[0] and len(text) <= _MAX_NUMBER_LENGTH:
        for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], ()):
            if tag in _CONSTRUCTORS and pattern.match(text):
                return _CONSTRUCTORS[tag](yaml.ScalarNode(tag, text))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            _refuse("a string holds half of a surrogate pair", event)
    return text
