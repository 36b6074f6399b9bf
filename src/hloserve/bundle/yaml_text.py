"""The YAML of `manifest.yaml`: a strict reader for hostile text, and a writer that quotes enough.

What lives here: text to plain values (mappings, lists, strings, numbers, booleans, null) and back.
What does not: what the keys mean (`hloserve.bundle.manifest`). Pure functions; any thread.

Rules.
1. No anchors, aliases and tags: a document is no larger than its text, and holds plain values only.
   Dates stay strings, and there are no merge keys.
2. A key that appears twice is an error. Depth and number of values are bounded.
3. Every fault of the text is a `YamlFault`, whatever the library raises for it.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import closing
from typing import Any, NoReturn, cast

import yaml
from typing_extensions import override

__all__ = [
    "FASTEST_PARSER",
    "MAX_DEPTH",
    "MAX_VALUES",
    "Quoted",
    "YamlFault",
    "dump_yaml",
    "load_yaml",
]

MAX_DEPTH = 50
MAX_VALUES = 50_000
_MAX_NUMBER_LENGTH = 100
_PREFIX = "tag:yaml.org,2002:"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?<![.])\Z")
_RESERVED = frozenset(
    ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf")
)  # in some version of YAML

# Ten times as fast where libyaml was there when PyYAML was built; both give the same events.
FASTEST_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlFault(Exception):
    """Text that is not acceptable YAML; the message says where and why."""


class Quoted(str):
    """A string that the writer always puts in quotes."""

    __slots__ = ()


def load_yaml(text: str, parser: Any = FASTEST_PARSER) -> object:
    """Parse one document into plain values.

    Args:
        text: the document.
        parser: one of the library's loader classes; only its events are used.

    Raises:
        YamlFault: the text breaks YAML or one of this module's rules.
    """
    try:
        with closing(cast("Any", yaml.parse(text, Loader=parser))) as events:
            return _Reader(events).read_document()
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

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
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
        if self._values > MAX_VALUES:
            _refuse(f"there are more than {MAX_VALUES} values", event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:  # type: ignore[attr-defined]  # all events that begin a value have it
            _refuse("anchors (&) and aliases (*) are not allowed; write the value out", event)
        if event.tag is not None:  # type: ignore[attr-defined]  # likewise
            _refuse("tags (!) are not allowed; write the plain value", event)
        if isinstance(event, yaml.ScalarEvent):
            return _read_scalar(event)
        if depth >= MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels", event)
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


def dump_yaml(document: Mapping[str, Any], flow: frozenset[str]) -> str:
    """Write a document, one top-level key after the other.

    Args:
        document: plain values; `Quoted` strings are always quoted.
        flow: top-level keys, plain words, whose entries are written in one line each, as
            ``{name: x}``.
    """
    parts = []
    for key, value in document.items():
        if key in flow and isinstance(value, list) and value:
            parts.append(f"{key}:\n" + "".join(f"  - {_dump_line(entry)}\n" for entry in value))
        elif key in flow:
            parts.append(f"{key}: {_dump_line(value)}\n")
        else:
            parts.append(yaml.dump({key: value}, Dumper=_QuotingDumper, **_LAYOUT))
    return "".join(parts)


def _dump_line(value: object) -> str:
    # As the only entry of a list, because YAML ends a document that is a bare word with dots.
    options = _LAYOUT | {"default_flow_style": True}
    line: str = yaml.dump([value], Dumper=_QuotingDumper, **options)
    return line.rstrip("\n")[1:-1]


_LAYOUT: dict[str, Any] = {
    "sort_keys": False,
    "default_flow_style": False,
    "allow_unicode": True,
    "width": 1 << 30,
}


class _QuotingDumper(yaml.SafeDumper):
    """Quotes every string that any YAML version could take for something else."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.match(text) is not None and text.lower() not in _RESERVED
    style = None if is_plain and not isinstance(text, Quoted) else '"'
    return dumper.represent_scalar(_PREFIX + "str", str(text), style=style)


_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(Quoted, _represent_text)
